"""Batches of sequences of about the same length, so that little padding is computed."""

from typing import Protocol

import keras
import numpy as np

from recipes.common.measures import filled_weights

ROUND_TO = 16


class Sequences(Protocol):
    """Labelled examples of different lengths, that can be padded to any length."""

    @property
    def labels(self) -> np.ndarray:
        """The label of each example, (N,)."""

    @property
    def lengths(self) -> np.ndarray:
        """The length of each example, (N,)."""

    @property
    def mean_lengths(self) -> np.ndarray:
        """The mean length of each example's sequences, (N,)."""

    def inputs(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """The model's inputs for the examples at `indices`, padded to `length`."""


def bucket_lengths(lengths: np.ndarray, longest: int, count: int = 4) -> list[int]:
    """Up to `count` lengths to pad to, each taking about as many of the sequences.

    The last one is `longest`, the length of the longest sequence in any split.
    """
    bounds = np.quantile(lengths, np.arange(1, count + 1) / count, method="higher")
    rounded = -(-bounds.astype(int) // ROUND_TO) * ROUND_TO
    return sorted({min(int(bound), longest) for bound in rounded} | {longest})


class Buckets(keras.utils.PyDataset):
    """Batches of `batch_size` rows, each padded to the least of `lengths` that holds its bucket.

    One shape per bucket: nothing more is compiled. The last batch of a bucket is filled up with
    other examples of weight 0. With a seed, examples are shuffled within their buckets and the
    batches among each other, anew for each epoch, as a function of (seed, epoch): training that
    was interrupted goes on with the very batches that it would have seen.

    Args:
        split: The examples.
        lengths: Lengths to pad to; the last one holds the longest example.
        batch_size: Rows of every batch.
        seed: Seed of the shuffling; the examples' own order when None.
    """

    def __init__(
        self, split: Sequences, lengths: list[int], batch_size: int, seed: int | None = None
    ) -> None:
        super().__init__()
        self.split, self.lengths, self.batch_size, self.seed = split, lengths, batch_size, seed
        self.bucket = np.searchsorted(lengths, split.lengths)
        self.start_epoch(0)

    @property
    def labels(self) -> np.ndarray:
        """The labels of all examples."""
        return self.split.labels

    def start_epoch(self, epoch: int) -> None:
        """Orders the examples and the batches for `epoch`, which counts from 0."""
        random = None if self.seed is None else np.random.default_rng([self.seed, epoch])
        batches = []
        for number, length in enumerate(self.lengths):
            members = np.flatnonzero(self.bucket == number)
            if random is not None:
                members = random.permutation(members)
            batches += [
                (length, members[at : at + self.batch_size])
                for at in range(0, len(members), self.batch_size)
            ]
        order = range(len(batches)) if random is None else random.permutation(len(batches))
        self.epoch = epoch
        self.batches = _unlike_first([batches[index] for index in order])

    @property
    def num_batches(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        length, chosen = self.batches[index]
        weights = filled_weights(len(chosen), self.batch_size)
        chosen = np.resize(chosen, self.batch_size)
        return self.split.inputs(chosen, length), self.split.labels[chosen], weights

    def padding_share(self) -> float:
        """The share of all tokens in the batches that is padding."""
        total = sum(length for length, _ in self.batches) * self.batch_size
        return 1.0 - float(self.split.mean_lengths.sum()) / total


def _unlike_first(
    batches: list[tuple[int, np.ndarray]],
) -> list[tuple[int, np.ndarray]]:
    """Puts a batch of another length second: on TensorFlow, Keras takes from the first two which
    sizes are constant.
    """
    for index, (length, _) in enumerate(batches):
        if length != batches[0][0]:
            batches[1], batches[index] = batches[index], batches[1]
            break
    return batches
