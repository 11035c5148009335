"""Batches of constant shapes, in an order that depends on the seed and the epoch only.

`Batches` of arrays of one length, `Windows` over one long row of tokens, and `Buckets` of sequences
of about the same length; `OfProcess` has the rows of one of several processes, and `untuned` is the
form for TensorFlow. Interrupted training continues with the same batches as without the
interruption. The last batch is filled up with rows of weight 0: nothing is compiled twice.
"""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from recipes.common.command.parsing import UsageError

ROUND_TO = 16
Batch = tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]  # inputs, labels, weights


def filled_weights(real: int, size: int) -> np.ndarray:
    """Weights of a batch of `size` rows, of which only the first `real` are examples."""
    weights = np.zeros(size, "float32")
    weights[:real] = size / real
    return weights


class Batches(keras.utils.PyDataset):
    """Batches of `batch_size` rows of arrays, for `fit` and `evaluate`.

    Args:
        inputs: Arrays by input name, all with the same first dimension.
        labels: Array of class numbers.
        batch_size: Rows of every batch.
        seed: Seed of the order, which is another one in each epoch; the arrays' own when None.
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

    def __getitem__(self, index: int) -> Batch:
        chosen = self.order[index * self.batch_size :][: self.batch_size]
        weights = filled_weights(len(chosen), self.batch_size)
        fill = np.resize(self.order, self.batch_size - len(chosen))
        chosen = np.concatenate([chosen, fill])
        inputs = {name: array[chosen] for name, array in self.inputs.items()}
        return inputs, self.labels[chosen], weights


class Windows(Batches):
    """Batches of windows of `context` tokens; every token but the first is counted once.

    Window k begins at token k * stride and predicts the token after each of its own; the last one
    is moved back to end with the text. A token has weight 1 only if no earlier window has predicted
    it: with a stride below the context, all counted tokens but those of the first window have at
    least context - stride tokens before them.

    Args:
        tokens: Token numbers of shape (T,), T > context. The first one is context only.
        context: Tokens of each window.
        batch_size: Windows of every batch.
        stride: Tokens from one window to the next; the context by default.
        seed: Seed of the order of the windows; the text's own order when None.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        context: int,
        batch_size: int,
        stride: int | None = None,
        seed: int | None = None,
    ) -> None:
        if len(tokens) <= context:
            raise UsageError(
                f"a part of the text has {len(tokens)} tokens; a window needs {context + 1}: give "
                "a longer text or a smaller --context"
            )
        self.tokens, self.context = tokens, context
        last = len(tokens) - 1 - context
        starts = np.append(np.arange(0, last, stride or context), last)
        self.counted_from = np.append(0, starts[:-1] + context)
        super().__init__({}, starts, batch_size, seed)

    @property
    def num_predictions(self) -> int:
        """How many tokens are counted: all but the first."""
        return len(self.tokens) - 1

    def __getitem__(self, index: int) -> Batch:
        chosen = self.order[index * self.batch_size :][: self.batch_size]
        real = np.arange(self.batch_size) < len(chosen)
        chosen = np.resize(chosen, self.batch_size)
        places = self.labels[chosen, None] + np.arange(self.context)
        counted = real[:, None] & (places + 1 > self.counted_from[chosen, None])
        inputs = {
            "token_ids": self.tokens[places].astype("int32"),
            "padding_mask": np.ones(places.shape, "int32"),
        }
        return inputs, self.tokens[places + 1].astype("int32"), counted.astype("float32")


class OfProcess(keras.utils.PyDataset):
    """The rows of batches that one of several processes has: its share of every array."""

    def __init__(self, batches: keras.utils.PyDataset, number: int, count: int) -> None:
        super().__init__()
        self.batches, self.number, self.count = batches, number, count

    @property
    def num_batches(self) -> int:
        return self.batches.num_batches

    def __getitem__(self, index: int) -> Batch:
        return keras.tree.map_structure(self._share, self.batches[index])

    def _share(self, array: np.ndarray) -> np.ndarray:
        rows = len(array) // self.count
        return array[self.number * rows :][:rows]


def untuned(batches: keras.utils.PyDataset) -> Any:
    """A `tf.data.Dataset` of the batches that TensorFlow does not tune.

    Keras makes one that is tuned after 10 ms, 20 ms, 40 ms and so on. The end of an epoch waits for
    the next of these times, so an epoch takes up to twice as long as its steps.
    """
    import tensorflow as tf

    def signature(*arrays: np.ndarray) -> tf.TensorSpec:
        sizes = zip(*(array.shape for array in arrays), strict=True)
        shape = [first if first == second else None for first, second in sizes]
        return tf.TensorSpec(shape, arrays[0].dtype)

    count = batches.num_batches
    signatures = keras.tree.map_structure(signature, batches[0], batches[min(1, count - 1)])
    data = tf.data.Dataset.from_generator(
        lambda: (batches[index] for index in range(count)), output_signature=signatures
    )
    options = tf.data.Options()
    options.autotune.enabled = False
    counted = data.apply(tf.data.experimental.assert_cardinality(count))
    return counted.prefetch(2).with_options(options)


def in_turn(batches: Any) -> Iterator[Batch]:
    """The batches of a `PyDataset`, or of its `untuned` form, as arrays."""
    if isinstance(batches, keras.utils.PyDataset):
        return (batches[index] for index in range(batches.num_batches))
    return batches.as_numpy_iterator()


def bucket_lengths(lengths: np.ndarray, longest: int, count: int = 4) -> list[int]:
    """Up to `count` lengths to pad to, each taking about as many of the sequences.

    The last one is `longest`, the length of the longest sequence in any split.
    """
    bounds = np.quantile(lengths, np.arange(1, count + 1) / count, method="higher")
    rounded = -(-bounds.astype(int) // ROUND_TO) * ROUND_TO
    return sorted({min(int(bound), longest) for bound in rounded} | {longest})


class Buckets(keras.utils.PyDataset):
    """Batches of `batch_size` rows, each padded to the least of `lengths` that holds its bucket.

    One shape per bucket: nothing more is compiled. With a seed, examples are shuffled within their
    buckets and the batches among each other, again for each pass over the data. An epoch is one
    pass, or `steps_per_epoch` batches, at least 2; then the next epoch begins where it ends, in the
    same pass or in a later one. The examples, `split`, have `labels`, `lengths` and `mean_lengths`
    of shape (N,), and `inputs(indices, length)`: the model's inputs for some of them, padded to a
    length.
    """

    def __init__(
        self,
        split: Any,
        lengths: list[int],
        batch_size: int,
        seed: int | None = None,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.split, self.lengths, self.batch_size, self.seed = split, lengths, batch_size, seed
        self.labels, self.steps_per_epoch = split.labels, steps_per_epoch
        self.bucket = np.searchsorted(lengths, split.lengths)
        self.start_epoch(0)

    def start_epoch(self, epoch: int) -> None:
        """Puts the batches of `epoch`, which counts from 0, in their order."""
        if self.steps_per_epoch is None:
            batches = self.one_pass(epoch)
        else:
            size = len(self.one_pass(0))
            first, skipped = divmod(epoch * self.steps_per_epoch, size)
            passes = range(first, first - (-(skipped + self.steps_per_epoch) // size))
            batches = [batch for number in passes for batch in self.one_pass(number)]
            batches = batches[skipped:][: self.steps_per_epoch]
        self.epoch, self.batches = epoch, batches

    def one_pass(self, number: int) -> list[tuple[int, np.ndarray]]:
        """All batches in the order of a pass over the data: padded length and examples."""
        random = None if self.seed is None else np.random.default_rng([self.seed, number])
        batches = []
        for number, length in enumerate(self.lengths):
            members = np.flatnonzero(self.bucket == number)
            if random is not None:
                members = random.permutation(members)
            rows = self.rows(length)
            batches += [(length, members[at : at + rows]) for at in range(0, len(members), rows)]
        order = range(len(batches)) if random is None else random.permutation(len(batches))
        batches = [batches[index] for index in order]
        # `untuned` takes from the first two batches which sizes are constant
        first = batches[0][0]
        others = (i for i, (length, _) in enumerate(batches) if length != first)
        other = next(others, 0)
        if other:
            batches[1], batches[other] = batches[other], batches[1]
        return batches

    def rows(self, length: int) -> int:
        """Rows of a batch that is padded to `length`."""
        return self.batch_size

    @property
    def num_batches(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Batch:
        length, chosen = self.batches[index]
        weights = filled_weights(len(chosen), self.batch_size)
        chosen = np.resize(chosen, self.batch_size)
        return self.split.inputs(chosen, length), self.labels[chosen], weights

    def padding_share(self) -> float:
        """The share of all tokens in the batches that is padding."""
        total = sum(length * self.rows(length) for length, _ in self.one_pass(0))
        return 1.0 - float(self.split.mean_lengths.sum()) / total
