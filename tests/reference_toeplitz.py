"""Toeplitz matrices entry by entry, for torch tensors in float64."""

import numpy as np
import torch


def toeplitz_matrix(table, grid_shape):
    """`M[n, i, j] = table[n, i - j + centre]` over row-major grid positions i, j."""
    places = np.stack(np.unravel_index(np.arange(np.prod(grid_shape)), grid_shape), axis=-1)
    offsets = places[:, None] - places[None] + np.asarray(grid_shape) - 1
    return table[(slice(None), *(torch.as_tensor(axis) for axis in np.moveaxis(offsets, -1, 0)))]


def with_prefix(matrix, count):
    """Adds rows and columns of ones before those of `matrix`."""
    return torch.nn.functional.pad(matrix, (count, 0, count, 0), value=1.0)


def toeplitz_product(table, x, grid_shape):
    return torch.einsum("nts,bsnd->btnd", toeplitz_matrix(table, grid_shape), x)
