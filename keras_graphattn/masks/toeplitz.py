"""Toeplitz masks: the factor of two tokens depends only on their relative position.

An entry of a Toeplitz matrix depends on the offset i - j along a sequence. An entry of a
block-Toeplitz matrix depends on one offset per axis of a grid. A *table* has one number per offset.
A sequence is a grid with one axis. There are three ways to multiply with such a matrix.

*One transform* (`toeplitz_product`). Suppose that the rows of a grid, of length s, are stored
2 s - 1 places apart. Then every offset has its own distance in memory. So the table of the grid,
read in memory order, is the table of one long sequence. The product with a block-Toeplitz matrix of
any rank is then one convolution in one dimension, by one real FFT: O(n log n). It is exact, and
cheaper than one transform for each axis.

*Tiles* (`tiled_toeplitz_product`). One long FFT mixes all tokens, with an error of 1e-7 of the
largest. In a causal product this error leaks from the future into the past. In any product it
changes rows that are much smaller than the largest row, which happens with kernel features. So the
sequence is split into tiles. A matrix product is used for equal and for neighbouring tiles, and for
tiles that see only a part of each other. All other pairs of tiles use the product of their spectra,
frequency by frequency. Then zeros of the table stay exact zeros, and the error of a row is relative
to the tokens that the row sees. The cost is O(n^1.5).

*Rows* (`block_toeplitz_rows`). Row i + 1 is row i moved by one place. So a block of rows comes from
one short part of the table: repeat it, then read the numbers with rows that are shorter by one.
This needs no gather of single numbers, and the backward pass is a sum; a gather would need a
scatter there, which is slow.
"""

import math
from collections.abc import Sequence
from typing import ClassVar, Unpack

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_graphattn.checks import (
    cached,
    checked,
    flag,
    is_list,
    is_whole,
    one_of,
    plain,
    tensor,
    whole,
)
from keras_graphattn.masks.inputs import Length, Tensors
from keras_graphattn.masks.mask import (
    DENSE_LIMIT,
    Mask,
    MaskOptions,
    PairMatrix,
    Positions,
    Rows,
    Shape,
    Signal,
    finite,
)
from keras_graphattn.numerics.precision import at_least_float32, constant, pad, positions_of, take
from keras_graphattn.types import Float, Int, Tensor

# The length from which the FFT is faster than rows in blocks, divided by m D / (m + D + 32). It is
# for a CPU with two cores, forward and backward, m = D = 32. With `KERAS_BACKEND=<backend> python
# benchmarks/toeplitz_masks.py --lengths 2048 4096 8192 16384 --heads 1` the FFT becomes faster
# between 2048 and 4096 tokens on tensorflow, 4096 and 8192 on torch, 8192 and 16384 on jax.
CROSSOVER = {"tensorflow": 220.0, "torch": 600.0, "jax": 1170.0}
# For products in tiles (`--causal`): between 8192 and 16384 tokens on tensorflow and jax. On torch
# it is above 16384, the longest length measured; the number extrapolates the ratio of the times.
CROSSOVER_IN_TILES = {"tensorflow": 1000.0, "torch": 1800.0, "jax": 1360.0}

Grid = Sequence[int]
Table = Float[Tensor, "N? ..."]  # (N, 2 s_1 - 1, ..., 2 s_d - 1), for a grid (s_1, ..., s_d)


def table_shape(grid_shape: Grid) -> tuple[int, ...]:
    """The number of offsets of each axis of a grid: `2 s - 1`, from `-(s - 1)` to `s - 1`."""
    return tuple(2 * size - 1 for size in grid_shape)


@cached
def fast_fourier_length(length: int) -> int:
    """The smallest even number >= `length` with no prime factor above 5."""
    half = max(1, -(-length // 2))
    powers = range(half.bit_length())
    odd = [3**i * 5**j for i in powers for j in powers if 3**i * 5**j < 2 * half]
    return int(2 * min(factor << (-(-half // factor) - 1).bit_length() for factor in odd))


@checked(table=tensor("_ ..."), x=tensor("B T N D"))
def toeplitz_product(table: Table, x: Signal, grid_shape: Grid | None = None) -> Signal:
    """Returns `y_i = sum_j table[i - j] x_j`, in O(n log n) per column, differentiable in both.

    In every row, the error is about 1e-7 of the largest entry of the column. So rows that are much
    smaller than the largest row have few correct digits.

    Args:
        table: Tensor of shape (N, 2 s_1 - 1, ..., 2 s_d - 1): for each head the factor of each
            offset, from `-(s - 1)` to `s - 1` along each axis. If N is 1, all heads share it.
        x: Tensor of shape (B, T, N, D), the tokens of the grid in row-major order.
        grid_shape: `(s_1, ..., s_d)`, whose product is T. By default a sequence, `(T,)`.

    Returns:
        A tensor of the shape and dtype of `x`. It is computed in at least float32.

    Raises:
        ValueError: If the shapes do not match.

    Example:

    >>> lower = np.array([[0.0, 0.0, 1.0, 1.0, 1.0]], "float32")  # 1 where i >= j
    >>> x = np.array([1.0, 2.0, 3.0], "float32").reshape(1, 3, 1, 1)
    >>> keras.ops.convert_to_numpy(toeplitz_product(lower, x)).ravel().round(4).tolist()
    [1.0, 3.0, 6.0]

    Source: Choromanski et al., arXiv 2107.07999, Lemma 3.3. They use an FFT per axis; here it is
    one FFT.
    """
    table, x = at_least_float32(table), ops.convert_to_tensor(x)
    grid_shape = _checked_grid(table, x, grid_shape)
    return ops.cast(_by_one_transform(table, at_least_float32(x), grid_shape), x.dtype)


def _checked_grid(table: Table, x: Signal, grid_shape: Grid | None) -> Grid:
    length, heads = x.shape[1], x.shape[2]
    grid_shape = plain(grid_shape)
    if grid_shape is None:
        grid_shape = (length,)
    elif not is_list(grid_shape) or not all(is_whole(size) and size > 0 for size in grid_shape):
        raise ValueError(
            f"`grid_shape` must be a list of sizes. Received: grid_shape={grid_shape!r}"
        )
    grid_shape = tuple(grid_shape)
    if None in grid_shape:
        raise ValueError(
            "A Toeplitz product by FFT needs a fixed length. Received: "
            f"x.shape={tuple(x.shape)}. Give `x` a fixed second axis."
        )
    expected = table_shape(grid_shape)
    if (
        math.prod(grid_shape) != length
        or tuple(table.shape[1:]) != expected
        or table.shape[0] not in (1, heads)
    ):
        raise ValueError(
            f"For `grid_shape`={grid_shape}, `x` must have shape (B, {math.prod(grid_shape)}, "
            f"N, D) and `table` (N, {', '.join(map(str, expected))}). "
            f"Received: x.shape={tuple(x.shape)}, table.shape={tuple(table.shape)}"
        )
    return grid_shape


def _by_one_transform(table: Table, x: Signal, grid_shape: Grid) -> Signal:
    """`toeplitz_product` for tensors of one dtype, at least float32."""
    offsets = math.prod(table_shape(grid_shape))
    length = fast_fourier_length(offsets)
    # (N, length): offset 0 first, negative offsets last, zeros between them
    flat, centre = ops.reshape(table, (table.shape[0], offsets)), offsets // 2
    zeros = ops.zeros((table.shape[0], length - offsets), dtype=table.dtype)
    kernel = ops.concatenate([flat[:, centre:], zeros, flat[:, :centre]], axis=-1)
    kernel = [part[:, None] for part in ops.rfft(kernel, fft_length=length)]
    columns = ops.transpose(x, (0, 2, 3, 1))  # (B, N, D, T)
    others = ops.shape(columns)[:3]
    # every axis of the grid but the first is padded to 2 s - 1
    wide = (grid_shape[0], *table_shape(grid_shape[1:]))
    if len(grid_shape) > 1:
        columns = ops.reshape(columns, (*others, *grid_shape))
        widths = [(0, full - size) for full, size in zip(wide, grid_shape, strict=True)]
        columns = ops.reshape(pad(columns, [(0, 0)] * 3 + widths), (*others, math.prod(wide)))
    signal = ops.rfft(columns, fft_length=length)
    real = signal[0] * kernel[0] - signal[1] * kernel[1]
    imaginary = signal[0] * kernel[1] + signal[1] * kernel[0]
    # the product of two transforms is the convolution; keep the places of the tokens
    product = ops.irfft((real, imaginary), fft_length=length)[..., : math.prod(wide)]
    product = ops.reshape(product, (*others, *wide))
    product = product[(..., *(slice(size) for size in grid_shape))]
    product = ops.reshape(product, (*others, math.prod(grid_shape)))
    return ops.transpose(product, (0, 3, 1, 2))


def tiled_toeplitz_product(
    table: Float[Tensor, "N? _"],
    x: Signal,
    size: int | None = None,
    limits: tuple[int, int] | None = None,
) -> Signal:
    """`y_i = sum_j table[i - j] x_j` for a sequence, exact row by row, in tiles of `size` tokens.

    `limits` are the first and the last offset that is seen, if the table is 0 at all others.
    Without limits, either all offsets of one sign are seen, or none of them.
    """
    table, x = at_least_float32(table), ops.convert_to_tensor(x)
    batch, length, heads, width = ops.shape(x)
    if size is None:
        size = max(64, 1 << round(math.log2(max(length, 1)) / 2))
    count = -(-length // size)
    padding = count * size - length
    table = pad(table, ((0, 0), (padding, padding)))
    signal = pad(at_least_float32(x), ((0, 0), (0, padding), (0, 0), (0, 0)))
    tiles = ops.reshape(signal, (batch, count, size, heads, width))
    tiles = ops.transpose(tiles, (0, 3, 4, 1, 2))  # (B, N, D, tiles, size)
    exact = {-1, 0, 1} | _seen_in_part(limits, count, size)
    product = sum(_by_matrix(table, tiles, apart) for apart in exact if abs(apart) < count)
    if count > 2:
        product = product + _by_spectra(table, tiles, exact)
    product = ops.transpose(product, (0, 3, 4, 1, 2))  # (B, tiles, size, N, D)
    product = ops.reshape(product, (batch, count * size, heads, width))
    return ops.cast(product[:, :length], x.dtype)


Tiles = Float[Tensor, "B N D tiles size"]


def _seen_in_part(limits: tuple[int, int] | None, count: int, size: int) -> set[int]:
    """The distances of two tiles at which some of their offsets, but not all, are in the limits."""
    first, last = limits or (-count * size, count * size)
    seen = set()
    for apart in range(-(count - 1), count):
        lowest, highest = apart * size - (size - 1), apart * size + size - 1
        some, every = first <= highest and lowest <= last, first <= lowest and highest <= last
        if some and not every:
            seen.add(apart)
    return seen


def _by_matrix(table: Float[Tensor, "N? _"], tiles: Tiles, apart: int) -> Tiles:
    """Products of the tiles with the tiles that are `apart` before them."""
    count, size = tiles.shape[-2:]
    offsets = apart * size + np.arange(-(size - 1), size) + table.shape[1] // 2
    block = toeplitz_rows(take(table, offsets, axis=1), 0, size)
    before, after = max(apart, 0), max(-apart, 0)
    seen = tiles[..., after : count - before, :]
    product = ops.einsum("nij,bndtj->bndti", _in_heads(block, tiles), seen)
    return pad(product, [(0, 0)] * 3 + [(before, after), (0, 0)]) if apart else product


def _by_spectra(table: Float[Tensor, "N? _"], tiles: Tiles, exact: set[int]) -> Tiles:
    """Products between tiles at all other distances, by their spectra."""
    count, size = tiles.shape[-2:]
    apart = np.arange(-(count - 1), count)[::-1, None]  # reversed, as `_skewed` needs it
    within = np.concatenate([np.arange(size), [0], np.arange(-(size - 1), 0)])[None]
    counted = ~np.isin(apart, sorted(exact)) & (np.arange(2 * size) != size)[None]
    indices = np.where(counted, apart * size + within + table.shape[1] // 2, 0)
    kernel = ops.reshape(take(table, indices.ravel().astype("int32"), axis=1), (-1, *indices.shape))
    kernel = ops.where(constant(counted), kernel, ops.cast(0.0, kernel.dtype))
    # (N, 2 tiles - 1, frequencies) -> (N, frequencies, tiles, tiles)
    blocks = [
        _in_heads(_skewed(ops.transpose(part, (0, 2, 1)), count), tiles)
        for part in ops.rfft(kernel, fft_length=2 * size)
    ]
    real, imaginary = ops.rfft(tiles, fft_length=2 * size)

    def product(block: Tensor, spectrum: Tensor) -> Tensor:
        return ops.einsum("nfij,bndjf->bndif", block, spectrum)

    spectrum = (
        product(blocks[0], real) - product(blocks[1], imaginary),
        product(blocks[0], imaginary) + product(blocks[1], real),
    )
    return ops.irfft(spectrum, fft_length=2 * size)[..., :size]


def _in_heads(block: Float[Tensor, "N? ..."], tiles: Tiles) -> Float[Tensor, "N ..."]:
    return ops.broadcast_to(block, (tiles.shape[1], *block.shape[1:]))


def _skewed(window: Float[Tensor, "..."], rows: int) -> Float[Tensor, "..."]:
    """`out[..., r, j] = window[..., rows - 1 - r + j]`: [1, 2, 3, 4] -> [[2, 3, 4], [1, 2, 3]]."""
    *others, width = ops.shape(window)
    columns = width - rows + 1
    if rows == 1:
        return window[..., None, :]
    repeated = ops.broadcast_to(window[..., None, :], (*others, rows, width))
    flat = ops.reshape(repeated, (*others, rows * width))
    flat = flat[..., rows - 1 : rows - 1 + rows * (width - 1)]  # now rows of length width - 1
    return ops.reshape(flat, (*others, rows, width - 1))[..., :columns]


def toeplitz_rows(
    table: Float[Tensor, "N? _"],
    start: int | Int[Tensor, ""],
    count: int,
    length: int | None = None,
) -> Float[Tensor, "N? R T"]:
    """`count` rows of the Toeplitz matrix of a sequence from `start`, and its first columns.

    Rows past the end have meaningless numbers.
    """
    size = (table.shape[1] + 1) // 2
    length = size if length is None else length
    # window[k] with k = count - 1 - r + j is the factor of the offset start + r - j.
    if isinstance(start, int) and start + count <= size:
        first = size - start - count
        return _skewed(ops.flip(table, axis=1)[:, first : first + count + length - 1], count)
    offsets = ops.cast(start, "int32") + count - 1
    offsets = offsets - positions_of(count + length - 1)
    indices = ops.clip(offsets + size - 1, 0, 2 * size - 2)
    return _skewed(take(table, indices, axis=1), count)


def block_toeplitz_rows(
    table: Table, first_line: int | Int[Tensor, ""], lines: int, grid_shape: Grid
) -> Float[Tensor, "N? R T"]:
    """Rows of the block-Toeplitz matrix of a grid, for whole lines: tokens along the last axis.

    Lines past the end have meaningless numbers.
    """
    *leading, size = grid_shape
    if not leading:
        return toeplitz_rows(table, first_line * size, lines * size, size)
    offsets = table_shape(leading)
    slabs = ops.reshape(table, (table.shape[0], math.prod(offsets), 2 * size - 1))
    ours = ops.cast(first_line, "int32") + positions_of(lines)
    ours = ops.minimum(ours, math.prod(leading) - 1)[:, None]
    theirs = positions_of(math.prod(leading))[None, :]
    indices, stride = 0, 1
    # the index of the offset between two lines, (lines, all lines)
    for extent, width in zip(reversed(leading), reversed(offsets), strict=True):
        offset = ours % extent - theirs % extent + (extent - 1)
        indices, stride = indices + stride * offset, stride * width
        ours, theirs = ours // extent, theirs // extent
    windows = take(ops.flip(slabs, axis=-1), ops.reshape(indices, (-1,)), axis=1)
    blocks = ops.reshape(_skewed(windows, size), (-1, lines, math.prod(leading), size, size))
    blocks = ops.transpose(blocks, (0, 1, 3, 2, 4))  # (N, lines, s_d, all lines, s_d)
    return ops.reshape(blocks, (-1, lines * size, math.prod(grid_shape)))


class OfOffsets(PairMatrix):
    """Base of matrices whose entries depend on i - j: a subclass writes `_of_offsets`."""

    def _of_offsets(self, offsets: Int[Tensor, "..."], parameters: Tensors) -> Table:
        """The numbers (1 or N, ...) of offsets i - j of any shape."""
        raise NotImplementedError(f"{type(self).__name__} must write `_of_offsets`.")

    def _table(self, length: int, parameters: Tensors) -> Table:
        """The numbers of the offsets of at least `length` tokens, (N, 2 T - 1)."""
        return self._of_offsets(ops.arange(1 - length, length, dtype="int32"), parameters)

    def _rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
        offsets = ops.cast(positions, "int32")[:, None] - positions_of(length)[None]  # (R, T)
        return self._of_offsets(offsets, parameters)[None]

    def _matrix(self, length: Length, parameters: Tensors, inputs: Tensors) -> Rows:
        if not isinstance(length, int) or length == 0:
            return super()._matrix(length, parameters, inputs)
        return toeplitz_rows(self._table(length, parameters), 0, length, length)[None]

    def _block_rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
        if not isinstance(length, int) or length == 0 or positions.shape[0] is None:
            return self._rows(positions, length, parameters, inputs)
        table = self._table(length, parameters)
        return toeplitz_rows(table, positions[0], positions.shape[0], length)[None]


class FourierMask(Mask):
    """Base of masks whose path "fft" convolves a table of factors with the tokens."""

    paths: tuple[str, ...] = ("dense", "blockwise", "fft")
    dense_limit: ClassVar[int] = DENSE_LIMIT

    hides_keys = False
    _in_tiles = False  # whether the product uses tiles, exact row by row, not one transform
    _fourier_cost = 1.0  # of the transform, relative to that of the rows; 1 for a sequence

    def choose_path(
        self, length: int | None, features: int | None = None, width: int | None = None
    ) -> str:
        return self._faster_path(length, features, width, self._in_tiles)

    def choose_causal_path(
        self, length: int | None, features: int | None = None, width: int | None = None
    ) -> str:
        return self._faster_path(length, features, width, in_tiles=True)

    def _faster_path(
        self, length: int | None, features: int | None, width: int | None, in_tiles: bool
    ) -> str:
        if not isinstance(length, int):  # JAX cannot cut an unknown length into blocks
            return "dense" if keras.backend.backend() == "jax" else "blockwise"
        features, width = features or 1, width or 1
        measured = CROSSOVER_IN_TILES if in_tiles else CROSSOVER
        crossover = measured.get(keras.backend.backend(), 1170.0) * self._fourier_cost
        if length >= crossover * features * width / (features + width + 32):
            return "fft"
        return "dense" if length <= self.dense_limit else "blockwise"


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Toeplitz(OfOffsets, FourierMask):
    """M[i, j] = exp(b[i - j]): relative positions, with a learned table b per head.

    The path "fft" uses one transform of the sequence, O(n log n). Its error is 1e-7 of the largest
    row. Causal masks and masks with initial slopes use a product in tiles instead, O(n^1.5). There
    a token never changes a row that must not see it, not even by rounding.

    Args:
        max_length: Longest sequence, which sets the size of the table.
        causal: Whether M[i, j] = 0 for j > i.
        initial_slopes: With `None`, b starts at 0 and every factor at 1. With a number, or one per
            head, b starts at minus the slope times the distance. `"alibi"` uses ALiBi's slopes.
        **kwargs: Those of every `Mask`.

    Weights:
        `log_factors`, of shape (num_heads, 2 max_length - 1) for the offsets from
        `-(max_length - 1)` to `max_length - 1`. If causal, of shape (num_heads, max_length) for
        the offsets from 0.

    Raises:
        ValueError: For arguments out of range and for sequences longer than `max_length`.

    Example:

    >>> mask = Toeplitz(max_length=8, initial_slopes=np.log(2.0))
    >>> mask.build((None, None, 1, 4))
    >>> keras.ops.convert_to_numpy(mask.dense(3))[0, 0].round(3).tolist()
    [[1.0, 0.5, 0.25], [0.5, 1.0, 0.5], [0.25, 0.5, 1.0]]

    Source: Choromanski et al., arXiv 2107.07999, Section 3.2. The product in tiles is ours.
    """

    _settings = ("max_length", "causal", "initial_slopes")

    def __init__(
        self,
        max_length: int,
        causal: bool = False,
        initial_slopes: ArrayLike | None = None,
        **kwargs: Unpack[MaskOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.max_length: int = whole()("max_length", max_length, {})
        self.causal = self.is_causal = self.hides_keys = flag("causal", causal)
        is_alibi = isinstance(initial_slopes, str) and initial_slopes == "alibi"
        if initial_slopes is not None and not is_alibi:
            slopes = np.asarray(finite("initial_slopes", initial_slopes))
            if slopes.ndim > 1 or np.any(slopes < 0.0):
                raise ValueError(
                    '`initial_slopes` must be None, "alibi", or a number or one per head, not '
                    f"negative. Received: initial_slopes={initial_slopes!r}"
                )
            initial_slopes = slopes.tolist()
        self.initial_slopes = initial_slopes
        self._in_tiles = self.is_causal or initial_slopes is not None

    @classmethod
    def alibi(
        cls, max_length: int, causal: bool = True, **kwargs: Unpack[MaskOptions]
    ) -> "Toeplitz":
        """Returns a mask that starts with ALiBi's slopes, 2^(-8 k / N) for heads k = 1 ... N.

        Source: Press et al., "Train Short, Test Long", arXiv 2108.12409.
        """
        return cls(max_length, causal, initial_slopes="alibi", **kwargs)

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        slopes = 0.0 if self.initial_slopes is None else self.initial_slopes
        if isinstance(slopes, str):
            slopes = 2.0 ** (-8.0 * np.arange(1, self.num_heads + 1) / self.num_heads)
        slopes = self._of_heads("initial_slopes", slopes)
        # one for each offset: (2 max_length - 1,), or (max_length,) if causal
        first = 0 if self.is_causal else 1 - self.max_length
        distances = np.abs(np.arange(first, self.max_length))
        self.log_factors = self._add_parameter("log_factors", -slopes[:, None] * distances)

    def parameters(self) -> Tensors:
        factors = ops.exp(self._weights("log_factors")["log_factors"])
        if self.is_causal:  # (N, max_length) -> (N, 2 max_length - 1)
            factors = pad(factors, ((0, 0), (self.max_length - 1, 0)))
        return {"table": factors}

    def _of_offsets(self, offsets: Int[Tensor, "..."], parameters: Tensors) -> Table:
        return take(parameters["table"], offsets + (self.max_length - 1), axis=1)

    def _table(self, length: int, parameters: Tensors) -> Table:
        return parameters["table"]

    def _signal(self, x: Signal, path: str, parameters: Tensors, inputs: Tensors) -> Signal:
        table = self._middle(x, parameters)
        if self._in_tiles:
            return tiled_toeplitz_product(table, x)
        return _by_one_transform(table, x, (x.shape[1],))

    def _causal_signal(self, x: Signal, path: str, parameters: Tensors, inputs: Tensors) -> Signal:
        past = self._middle(x, parameters)[:, x.shape[1] - 1 :]  # (N, T)
        return tiled_toeplitz_product(pad(past, ((0, 0), (x.shape[1] - 1, 0))), x)

    def _middle(self, x: Signal, parameters: Tensors) -> Float[Tensor, "N _"]:
        """The middle of the table, (N, 2 T - 1): all offsets of T tokens."""
        length = x.shape[1]
        if not isinstance(length, int):
            raise ValueError(
                'The path "fft" of a Toeplitz mask needs a fixed length. Received: a signal of '
                f'shape {tuple(x.shape)}. Fix the length, or use path="blockwise" or "dense".'
            )
        beyond = self.max_length - length
        return parameters["table"][:, beyond : beyond + 2 * length - 1]

    def _check_length(self, length: int) -> None:
        if length > self.max_length:
            raise ValueError(
                f"This Toeplitz mask has factors for at most {self.max_length} tokens. Received: "
                f"a sequence of length {length}. Use a larger `max_length`."
            )

    @property
    def _own_length(self) -> int:
        return self.max_length


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
        **kwargs: Those of every `Mask`.

    Attributes:
        length: Number of tokens, prefix tokens included.

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
        **kwargs: Unpack[MaskOptions],
    ) -> None:
        super().__init__(**kwargs)
        given = plain(grid_shape)
        sizes = given if is_list(given) else []
        if not sizes or not all(is_whole(size) and 0 < size < 2**31 for size in sizes):
            raise ValueError(
                "`grid_shape` must be one or more integers of at least 1 and less than 2147483648. "
                f"Received: grid_shape={grid_shape!r}"
            )
        self.grid_shape = tuple(int(size) for size in sizes)
        self.num_prefix_tokens: int = whole(0)("num_prefix_tokens", num_prefix_tokens, {})
        self.form = one_of("offsets", "distance")("form", form, {})
        self.length: int = self.num_prefix_tokens + math.prod(self.grid_shape)
        rank = len(self.grid_shape)  # the transform has 2^(rank - 1) times as many positions
        self._fourier_cost = 1.0 if rank == 1 else 0.65 * 2 ** (rank - 1)
        if num_prefix_tokens == 0:  # blocks of whole lines need no slice afterwards
            lines = max(1, FourierMask.block_size // self.grid_shape[-1])
            self.block_size = lines * self.grid_shape[-1]  # type: ignore[misc]

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        shape = table_shape(self.grid_shape)
        if self.form == "distance":
            shape = (sum(self.grid_shape) - len(self.grid_shape) + 1,)
        self.log_factors = self._add_parameter("log_factors", np.zeros((self.num_heads, *shape)))

    def parameters(self) -> Tensors:
        factors = ops.exp(self._weights("log_factors")["log_factors"])
        if self.form == "distance":
            axes = [np.abs(np.arange(1 - size, size)) for size in self.grid_shape]
            distances = sum(np.meshgrid(*axes, indexing="ij"))
            # (N, distances) -> (N, 2 s_1 - 1, ..., 2 s_d - 1)
            factors = take(factors, np.asarray(distances, dtype="int32"), axis=1)
        return {"table": factors}

    def _rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
        shape = table_shape(self.grid_shape)
        queries = self._places(ops.cast(positions, "int32"))
        keys = self._places(positions_of(self.length))
        offsets = queries[:, None] - keys[None]  # (R, T)
        table = ops.reshape(parameters["table"], (-1, math.prod(shape)))
        rows = take(table, offsets + math.prod(shape) // 2, axis=1)  # (N, R, T)
        return self._with_prefix(rows, positions)[None]

    def _block_rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
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

    def _places(self, positions: Positions) -> Positions:
        """The places of tokens if lines are 2 s - 1 apart; prefix tokens are at place 0.

        Then the difference of two places is the index of their offset in the flat table.
        """
        rest = ops.maximum(positions - self.num_prefix_tokens, 0)
        place, stride = 0, 1
        for size in reversed(self.grid_shape):
            place, rest = place + stride * (rest % size), rest // size
            stride *= 2 * size - 1
        return place

    def _with_prefix(
        self, rows: Float[Tensor, "N? R T"], positions: Positions
    ) -> Float[Tensor, "N? R T"]:
        """Sets 1 where the query or the key is a prefix token; `rows` is (N, R, T)."""
        if self.num_prefix_tokens == 0:
            return rows
        key = positions_of(self.length) < self.num_prefix_tokens
        query = ops.cast(positions, "int32") < self.num_prefix_tokens
        ones = ops.cast(1.0, rows.dtype)
        return ops.where(ops.logical_or(query[:, None], key[None, :]), ones, rows)

    def _signal(self, x: Signal, path: str, parameters: Tensors, inputs: Tensors) -> Signal:
        if not isinstance(x.shape[1], int):
            x = ops.reshape(x, (-1, self.length, *x.shape[2:]))
        # (B, P, N, D) and (B, T - P, N, D) for P prefix tokens
        before, grid = x[:, : self.num_prefix_tokens], x[:, self.num_prefix_tokens :]
        outputs = _by_one_transform(parameters["table"], grid, self.grid_shape)
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

    @property
    def _own_length(self) -> int:
        return self.length

    def choose_path(
        self, length: int | None, features: int | None = None, width: int | None = None
    ) -> str:
        return super().choose_path(self.length, features, width)

    def get_config(self) -> dict[str, object]:
        return {
            **super().get_config(),
            "grid_shape": list(self.grid_shape),
            "num_prefix_tokens": self.num_prefix_tokens,
            "form": self.form,
        }
