"""Windows over a long row of tokens: each token is predicted once, from those before it."""

import keras
import numpy as np

from recipes.common.command import UsageError


class Windows(keras.utils.PyDataset):
    """Batches of windows of `context` tokens; every token but the first is counted once.

    Window k begins at token k * stride and predicts the token after each of its own; the last one
    is moved back to end with the text. Only what no window before has predicted has weight 1: with
    a stride below the context, all counted tokens but those of the first window have at least
    context - stride tokens before them. The last batch is filled up with windows of weight 0.

    With a seed the windows are shuffled anew for each epoch, as a function of (seed, epoch):
    training that was interrupted goes on with the very batches that it would have seen.

    Args:
        tokens: Token numbers of shape (T,), T > context. The first one is context alone.
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
