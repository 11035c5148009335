"""Toeplitz products in tiles: every row is as exact as if it were computed separately.

One long FFT mixes all tokens, with an error of 1e-7 of the largest. In a causal product this error
leaks from the future into the past. In any product it changes rows that are much smaller than the
largest row, which happens with kernel features. Here the sequence is split into tiles. Tiles that
are equal or neighbours use a matrix product, and so do tiles that see each other in part. All other
pairs of tiles use the product of their spectra, frequency by frequency. So zeros of the table stay
exact zeros, and the error of a row is relative to the tokens that the row sees. The cost is
O(n^1.5).
"""

import math
from typing import Any

import numpy as np
from keras import ops

from keras_graphattn.numerics.precision import at_least_float32, constant, pad, take
from keras_graphattn.ops.toeplitz.rows import skewed, toeplitz_rows

Tensor = Any


def tile_size(length: int) -> int:
    """Returns a power of 2 near the square root of the length, at least 64."""
    return max(64, 1 << round(math.log2(max(length, 1)) / 2))


def tiled_toeplitz_product(
    table: Tensor,
    x: Tensor,
    size: int | None = None,
    limits: tuple[int, int] | None = None,
) -> Tensor:
    """Returns `y_i = sum_j table[i - j] x_j`, exact row by row, differentiable in both.

    Args:
        table: Tensor of shape (N, 2 T - 1), for offsets from `-(T - 1)` to `T - 1`.
        x: Tensor of shape (B, T, N, D).
        size: Number of tokens of a tile; `tile_size(T)` by default.
        limits: The first and the last offset that is seen, if the table is 0 at all others.
            Without it, the factors of offsets of one sign are all seen, or none is.

    Returns:
        A tensor of the shape and dtype of `x`. It is computed in at least float32.

    Example:

    >>> lower = np.array([[0.0, 0.0, 1.0, 1.0, 1.0]], "float32")  # 1 where i >= j
    >>> x = np.array([1.0, 2.0, 1e30], "float32").reshape(1, 3, 1, 1)
    >>> keras.ops.convert_to_numpy(tiled_toeplitz_product(lower, x)).ravel()[:2].tolist()
    [1.0, 3.0]
    """
    table, x = at_least_float32(table), ops.convert_to_tensor(x)
    batch, length, heads, width = ops.shape(x)
    size = tile_size(length) if size is None else size
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


def _seen_in_part(limits: tuple[int, int] | None, count: int, size: int) -> set[int]:
    """The distances of two tiles at which some of their offsets are within the limits, not all."""
    first, last = limits or (-count * size, count * size)
    found = set()
    for apart in range(-(count - 1), count):
        lowest, highest = apart * size - (size - 1), apart * size + size - 1
        some, every = first <= highest and lowest <= last, first <= lowest and highest <= last
        if some and not every:
            found.add(apart)
    return found


def _by_matrix(table: Tensor, tiles: Tensor, apart: int) -> Tensor:
    """Products of the tiles (B, N, D, tiles, size) with the tiles that are `apart` before them."""
    count, size = tiles.shape[-2:]
    offsets = apart * size + np.arange(-(size - 1), size) + table.shape[1] // 2
    block = toeplitz_rows(take(table, offsets, axis=1), 0, size)
    before, after = max(apart, 0), max(-apart, 0)
    seen = tiles[..., after : count - before, :]
    product = ops.einsum("nij,bndtj->bndti", _in_heads(block, tiles), seen)
    return pad(product, [(0, 0)] * 3 + [(before, after), (0, 0)]) if apart else product


def _by_spectra(table: Tensor, tiles: Tensor, exact: set[int]) -> Tensor:
    """Products between tiles at all other distances, by their spectra."""
    count, size = tiles.shape[-2:]
    apart = np.arange(-(count - 1), count)[::-1, None]  # reversed, as `skewed` needs it
    within = np.concatenate([np.arange(size), [0], np.arange(-(size - 1), 0)])[None]
    counted = ~np.isin(apart, sorted(exact)) & (np.arange(2 * size) != size)[None]
    indices = np.where(counted, apart * size + within + table.shape[1] // 2, 0)
    kernel = ops.reshape(take(table, indices.ravel().astype("int32"), axis=1), (-1, *indices.shape))
    kernel = ops.where(constant(counted), kernel, ops.cast(0.0, kernel.dtype))
    blocks = [_pairs(part, count) for part in ops.rfft(kernel, fft_length=2 * size)]
    real, imaginary = ops.rfft(tiles, fft_length=2 * size)
    blocks = [_in_heads(part, tiles) for part in blocks]

    def product(block: Tensor, spectrum: Tensor) -> Tensor:
        return ops.einsum("nfij,bndjf->bndif", block, spectrum)

    spectrum = (
        product(blocks[0], real) - product(blocks[1], imaginary),
        product(blocks[0], imaginary) + product(blocks[1], real),
    )
    return ops.irfft(spectrum, fft_length=2 * size)[..., :size]


def _pairs(spectra: Tensor, count: int) -> Tensor:
    """(N, 2 tiles - 1, frequencies) -> (N, frequencies, tiles, tiles); offsets decrease."""
    return skewed(ops.transpose(spectra, (0, 2, 1)), count)


def _in_heads(block: Tensor, tiles: Tensor) -> Tensor:
    return ops.broadcast_to(block, (tiles.shape[1], *block.shape[1:]))
