"""Relative positions on a grid of any rank (image patches, video), after optional prefix tokens."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_graphattn.checks import is_list, is_whole, one_of, whole
from keras_graphattn.masks.fourier import FourierMask
from keras_graphattn.masks.mask import Tensors
from keras_graphattn.numerics.precision import at_least_float32, pad, take
from keras_graphattn.ops.toeplitz.fourier import table_shape, toeplitz_product
from keras_graphattn.ops.toeplitz.rows import block_toeplitz_rows, toeplitz_matrix

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class BlockToeplitz(FourierMask):
    """M[i, j] = exp(b[i_1 - j_1, ..., i_d - j_d]) for tokens i, j of a grid, b learned per head.

    The tokens are in row-major order. Prefix tokens (CLS, registers) come first, and all their
    factors are 1. The path "fft" has an error of 1e-7 of the largest row.

    Args:
        grid_shape: Size of each axis of the grid, such as `(14, 14)`.
        num_prefix_tokens: Number of tokens before the grid.
        form: `"offsets"` learns a factor for each offset. `"distance"` learns a factor for each
            |i_1 - j_1| + ... + |i_d - j_d|.
        **kwargs: `name`, `trainable` and `dtype` of a Keras layer, and
            `coefficient_learning_rate_multiplier`, the property, 30 by default.

    Weights:
        `log_factors`, of shape (num_heads, 2 s_1 - 1, ..., 2 s_d - 1), or (num_heads,
        s_1 + ... + s_d - d + 1) for `form="distance"`. They start at 0: every factor is 1.

    Raises:
        ValueError: For arguments out of range, and for lengths that are not the number of tokens.

    Example:

    >>> mask = BlockToeplitz((2, 2), num_prefix_tokens=1, form="distance")
    >>> mask.build((None, 5, 1, 8))
    >>> _ = mask.log_factors.assign(np.log([[1.0, 0.5, 0.25]]))
    >>> keras.ops.convert_to_numpy(mask.dense())[0, 0, :2].round(3).tolist()
    [[1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.5, 0.5, 0.25]]

    Source: Choromanski et al., arXiv 2107.07999, Definition 3.2, Lemma 3.3 and Section 5.4.
    """

    # At any length, writing whole lines of the grid is faster than writing the matrix at once.
    dense_limit: ClassVar[int] = 0

    def __init__(
        self,
        grid_shape: Sequence[int],
        num_prefix_tokens: int = 0,
        form: str = "offsets",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        sizes = list(grid_shape) if is_list(grid_shape) else []
        if not sizes or not all(_is_size(size) for size in sizes):
            raise ValueError(
                "`grid_shape` must be one or more integers of at least 1 and less than 2147483648. "
                f"Received: grid_shape={grid_shape!r}"
            )
        grid = tuple(int(size) for size in sizes)
        num_prefix_tokens = whole(0)("num_prefix_tokens", num_prefix_tokens, {})
        one_of("offsets", "distance")("form", form, {})
        self.grid_shape, self.num_prefix_tokens, self.form = grid, num_prefix_tokens, form
        if num_prefix_tokens == 0:  # blocks of whole lines need no slice afterwards
            lines = max(1, FourierMask.block_size // grid[-1])
            self.block_size = lines * grid[-1]  # type: ignore[misc]

    @property
    def length(self) -> int:
        """Number of tokens, prefix tokens included."""
        return self.num_prefix_tokens + math.prod(self.grid_shape)

    @property
    def _fourier_cost(self) -> float:
        rank = len(self.grid_shape)  # the transform has 2^(rank - 1) times as many positions
        return 1.0 if rank == 1 else 0.65 * 2 ** (rank - 1)

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        shape = table_shape(self.grid_shape)
        if self.form == "distance":
            shape = (sum(self.grid_shape) - len(self.grid_shape) + 1,)
        self.log_factors = self._add_logarithms("log_factors", np.zeros((self.num_heads, *shape)))

    def parameters(self) -> Tensors:
        factors = ops.exp(at_least_float32(self.log_factors))
        if self.form == "distance":
            axes = [np.abs(np.arange(1 - size, size)) for size in self.grid_shape]
            distances = sum(np.meshgrid(*axes, indexing="ij"))
            # (N, distances) -> (N, 2 s_1 - 1, ..., 2 s_d - 1)
            factors = take(factors, np.asarray(distances, dtype="int32"), axis=1)
        return {"table": factors}

    def _matrix(self, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        before = (self.num_prefix_tokens, 0)
        matrix = toeplitz_matrix(parameters["table"])  # (N, G, G) for G tokens of the grid
        return pad(matrix, ((0, 0), before, before), fill=1.0)[None]

    def _rows(self, positions: Tensor, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        shape = table_shape(self.grid_shape)
        queries = self._places(ops.cast(positions, "int32"))
        keys = self._places(ops.arange(self.length, dtype="int32"))
        offsets = queries[:, None] - keys[None]  # (R, T)
        table = ops.reshape(parameters["table"], (-1, math.prod(shape)))
        rows = take(table, offsets + math.prod(shape) // 2, axis=1)  # (N, R, T)
        return self._with_prefix(rows, positions)[None]

    def _block_rows(
        self, positions: Tensor, length: Any, parameters: Tensors, inputs: Tensors
    ) -> Tensor:
        size, before, count = self.grid_shape[-1], self.num_prefix_tokens, positions.shape[0]
        if count is None:
            return self._rows(positions, length, parameters, inputs)
        table, positions = parameters["table"], ops.cast(positions, "int32")
        start = ops.maximum(positions[0] - before, 0)
        if before == 0 and count % size == 0:
            return block_toeplitz_rows(table, start // size, count // size, self.grid_shape)[None]
        lines = (count + size - 2) // size + 1  # enough, even if the block starts inside a line
        rows = block_toeplitz_rows(table, start // size, lines, self.grid_shape)
        # of the whole lines, keep the rows that were asked for: (N, lines s, G) -> (N, R, T)
        kept = ops.maximum(positions - before, 0) - start // size * size
        rows = pad(take(rows, kept, axis=1), ((0, 0), (0, 0), (before, 0)))
        return self._with_prefix(rows, positions)[None]

    def _places(self, positions: Tensor) -> Tensor:
        """The places of tokens if lines are 2 s - 1 apart; prefix tokens are at place 0.

        Then the difference of two places is the index of their offset in the flat table.
        """
        rest = ops.maximum(positions - self.num_prefix_tokens, 0)
        place, stride = 0, 1
        for size in reversed(self.grid_shape):
            place, rest = place + stride * (rest % size), rest // size
            stride *= 2 * size - 1
        return place

    def _with_prefix(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Sets 1 where the query or the key is a prefix token; `rows` is (N, R, T)."""
        if self.num_prefix_tokens == 0:
            return rows
        key = ops.arange(self.length, dtype="int32") < self.num_prefix_tokens
        query = ops.cast(positions, "int32") < self.num_prefix_tokens
        ones = ops.cast(1.0, rows.dtype)
        return ops.where(ops.logical_or(query[:, None], key[None, :]), ones, rows)

    def _signal(self, x: Tensor, path: str, parameters: Tensors, inputs: Tensors) -> Tensor:
        if not isinstance(x.shape[1], int):
            x = ops.reshape(x, (-1, self.length, *x.shape[2:]))
        # (B, P, N, D) and (B, T - P, N, D) for P prefix tokens
        before, grid = x[:, : self.num_prefix_tokens], x[:, self.num_prefix_tokens :]
        outputs = toeplitz_product(parameters["table"], grid, self.grid_shape)
        if self.num_prefix_tokens == 0:
            return outputs
        outputs = outputs + ops.sum(before, axis=1, keepdims=True)
        everything = ops.sum(x, axis=1, keepdims=True)  # (B, 1, N, D), for the prefix rows
        return ops.concatenate([ops.zeros_like(before) + everything, outputs], axis=1)

    def _check_length(self, length: int) -> None:
        if length != self.length:
            raise ValueError(
                f"A grid of shape {self.grid_shape} with {self.num_prefix_tokens} prefix tokens "
                f"has {self.length} tokens. Received: a sequence of length {length}. Change "
                "`grid_shape` or `num_prefix_tokens`."
            )

    def _known_length(self, inputs: Tensors) -> Any:
        return self.length

    def choose_path(
        self, length: int | None, features: int | None = None, width: int | None = None
    ) -> str:
        return super().choose_path(self.length, features, width)

    def get_config(self) -> dict[str, Any]:
        names = ("num_prefix_tokens", "form")
        config = {name: getattr(self, name) for name in names}
        return {**super().get_config(), "grid_shape": list(self.grid_shape), **config}


def _is_size(value: Any) -> bool:
    return is_whole(value) and 0 < value < 2**31
