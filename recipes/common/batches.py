"""Batches of constant shape, in an order that depends on the seed and the epoch alone."""

import keras
import numpy as np

from recipes.common.measures import filled_weights


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
