"""Token sequences of different lengths, and labelled splits of them. Does not import Keras."""

import dataclasses
import hashlib
from collections.abc import Iterable

import numpy as np

from recipes.common.data.chance import Chance, of_accuracy

PADDING = 0  # no token, where all real tokens are 1 or more


@dataclasses.dataclass
class Ragged:
    """Sequences one after the other in one array, with the places where each begins and ends."""

    values: np.ndarray  # (all tokens,) whole numbers
    offsets: np.ndarray  # (N + 1,) int64

    @classmethod
    def of(cls, sequences: Iterable[np.ndarray]) -> "Ragged":
        sequences = list(sequences)
        lengths = [len(one) for one in sequences]
        values = np.concatenate(sequences) if sequences else np.zeros(0, "uint8")
        return cls(values, np.concatenate([[0], np.cumsum(lengths)]).astype("int64"))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def take(self, indices: np.ndarray) -> "Ragged":
        return Ragged.of([self[index] for index in indices])

    def padded(self, indices: np.ndarray, length: int, padding: int = PADDING) -> np.ndarray:
        """The sequences at `indices`, with padding after them: (len(indices), length) int32."""
        steps = np.arange(length)
        lengths = self.lengths[indices][:, None]
        places = np.minimum(self.offsets[indices][:, None] + steps, max(len(self.values) - 1, 0))
        return np.where(steps < lengths, self.values[places], padding).astype("int32")


@dataclasses.dataclass
class Split:
    """Examples of one or several token sequences each, by the model's input, and their classes."""

    tokens: dict[str, Ragged]
    labels: np.ndarray  # (N,) int32

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> np.ndarray:
        """Length of the longest sequence of each example, (N,)."""
        return np.max([one.lengths for one in self.tokens.values()], axis=0)

    @property
    def mean_lengths(self) -> np.ndarray:
        """Mean length of the sequences of each example, (N,)."""
        return np.mean([one.lengths for one in self.tokens.values()], axis=0)

    def inputs(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """The tokens of the examples at `indices`, padded to `length`, by the model's input."""
        return {name: one.padded(indices, length) for name, one in self.tokens.items()}

    def take(self, indices: np.ndarray) -> "Split":
        tokens = {name: one.take(indices) for name, one in self.tokens.items()}
        return Split(tokens, self.labels[indices])


@dataclasses.dataclass
class Problem:
    """A task's data: three splits, none of which shares an example with another by design."""

    task: str
    classes: list[str]
    vocabulary: int  # largest token + 1, padding counted
    train: Split
    validation: Split
    test: Split

    @property
    def splits(self) -> dict[str, Split]:
        return {"train": self.train, "validation": self.validation, "test": self.test}

    @property
    def length(self) -> int:
        return int(max(split.lengths.max() for split in self.splits.values()))

    def chance(self) -> Chance:
        return of_accuracy(**{name: split.labels for name, split in self.splits.items()})

    def digest(self) -> str:
        digest = hashlib.sha256("\n".join(self.classes).encode())
        for split in self.splits.values():
            for one in split.tokens.values():
                digest.update(one.values.tobytes() + one.offsets.tobytes())
            digest.update(split.labels.astype("int64").tobytes())
        return digest.hexdigest()[:16]


def majority_level(labels: np.ndarray) -> dict[str, float]:
    """The best levels that one constant answer can have on `labels`.

    `cross_entropy` is the entropy (in nats) of the classes' own distribution on these labels:
    no constant prediction has a lower loss; `accuracy` is the share of the most frequent class.
    """
    shares = np.bincount(labels) / len(labels)
    present = shares[shares > 0]
    return {
        "cross_entropy": float(-(present * np.log(present)).sum()),
        "accuracy": float(shares.max()),
    }
