"""Batches of constant shapes, in an order that depends on the seed and the epoch only.

`Batches` of arrays of one length, `Buckets` of sequences of about the same length, and `Windows`
over one long row of tokens. What is left over in the last batch is filled up with rows of weight 0.
"""

from typing import Protocol

import keras
import numpy as np

from recipes.common.command.parsing import UsageError

ROUND_TO = 16


def filled_weights(real: int, size: int) -> np.ndarray:
    """Weights of a batch of `size` rows, of which the first `real` are no filling."""
    weights = np.zeros(size, "float32")
    weights[:real] = size / real
    return weights


class Batches(keras.utils.PyDataset):
    """Batches of arrays for `fit` and `evaluate`.

    All batches have `batch_size` rows, so nothing is compiled twice: the last one is filled up
    with other examples of weight 0. With a seed, the examples are shuffled anew for each epoch,
    as a function of (seed, epoch): training that was interrupted goes on with the very batches
    that it would have seen.

    Args:
        inputs: Arrays by input name, all with the same first dimension.
        labels: Array of class numbers.
        batch_size: Rows of every batch.
        seed: Seed of the shuffling; the arrays' own order when None.
    """

    def __init__(
        self,
        inputs: dict[str, np.ndarray],
        labels: np.ndarray,
        batch_size: int,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.inputs, self.labels, self.batch_size, self.seed = inputs, labels, batch_size, seed
        self.start_epoch(0)

    def start_epoch(self, epoch: int) -> None:
        """Orders the examples for `epoch`, which counts from 0."""
        order = np.arange(len(self.labels))
        if self.seed is not None:
            order = np.random.default_rng([self.seed, epoch]).permutation(order)
        self.epoch, self.order = epoch, order

    @property
    def num_batches(self) -> int:
        return -(-len(self.labels) // self.batch_size)

    def __getitem__(self, index: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        start = index * self.batch_size
        chosen = self.order[start : start + self.batch_size]
        weights = filled_weights(len(chosen), self.batch_size)
        fill = np.resize(self.order, self.batch_size - len(chosen))
        chosen = np.concatenate([chosen, fill])
        inputs = {name: array[chosen] for name, array in self.inputs.items()}
        return inputs, self.labels[chosen], weights


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


class Windows(keras.utils.PyDataset):
    """Batches of windows of `context` tokens; every token but the first is counted once.

    Window k begins at token k * stride and predicts the token after each of its own; the last one
    is moved back to end with the text. Only what no window before has predicted has weight 1: with
    a stride below the context, all counted tokens but those of the first window have at least
    context - stride tokens before them. The last batch is filled up with windows of weight 0.

    With a seed the windows are shuffled anew for each epoch, as a function of (seed, epoch):
    training that was interrupted goes on with the very batches that it would have seen.

    Args:
        tokens: Token numbers of shape (T,), T > context. The first one is context only.
        context: Tokens of each window.
        batch_size: Windows of every batch.
        stride: Tokens from one window to the next; the context by default.
        seed: Seed of the shuffling; the text's own order when None.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        context: int,
        batch_size: int,
        stride: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if len(tokens) <= context:
            raise UsageError(
                f"a part of the text has {len(tokens)} tokens; a window needs {context + 1}: give "
                "a longer text or a smaller --context"
            )
        self.tokens, self.context, self.batch_size, self.seed = tokens, context, batch_size, seed
        last = len(tokens) - 1 - context
        self.starts = np.append(np.arange(0, last, stride or context), last)
        self.counted_from = np.append(0, self.starts[:-1] + context)
        self.start_epoch(0)

    @property
    def labels(self) -> np.ndarray:
        """Where each window begins: one entry for each."""
        return self.starts

    @property
    def num_predictions(self) -> int:
        """How many tokens are counted: all but the first."""
        return len(self.tokens) - 1

    def start_epoch(self, epoch: int) -> None:
        """Orders the windows for `epoch`, which counts from 0."""
        order = np.arange(len(self.starts))
        if self.seed is not None:
            order = np.random.default_rng([self.seed, epoch]).permutation(order)
        self.epoch, self.order = epoch, order

    @property
    def num_batches(self) -> int:
        return -(-len(self.starts) // self.batch_size)

    def __getitem__(self, index: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        chosen = self.order[index * self.batch_size :][: self.batch_size]
        real = np.arange(self.batch_size) < len(chosen)
        chosen = np.resize(chosen, self.batch_size)
        places = self.starts[chosen, None] + np.arange(self.context)
        counted = real[:, None] & (places + 1 > self.counted_from[chosen, None])
        inputs = {
            "token_ids": self.tokens[places].astype("int32"),
            "padding_mask": np.ones(places.shape, "int32"),
        }
        return inputs, self.tokens[places + 1].astype("int32"), counted.astype("float32")
