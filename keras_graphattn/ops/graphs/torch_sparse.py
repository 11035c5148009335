"""Sums of rows and sparse products by torch's own kernels.

`keras.ops.segment_sum` on torch is 12 to 64 times slower than `add_rows`.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from keras_graphattn.checks import traced_by_torch

Tensor = Any


def add_rows(x: Tensor, targets: Tensor, count: int) -> Tensor:
    """Sums the rows of `x` with the same target: (rows, ...) -> (count, ...)."""
    rows = x.reshape(x.shape[0], math.prod(x.shape[1:]))  # -1 would fail for a tensor of no rows
    zeros = rows.new_zeros((count, rows.shape[1]))
    targets = targets.long()
    if traced_by_torch():  # an export of `index_add` to ONNX is wrong where targets repeat
        found = zeros.scatter_add(0, targets[:, None].expand(rows.shape), rows)
    else:
        found = zeros.index_add(0, targets, rows)
    return found.reshape(count, *x.shape[1:])


def kept(constants: dict[Any, Tensor], key: Any, make: Callable[[], Tensor]) -> Tensor:
    """Returns the constant of a key, and makes it if it is missing.

    Only ordinary tensors are stored. A tensor that is made while torch traces, or under
    `torch.inference_mode`, cannot be used afterwards.
    """
    import torch

    if traced_by_torch():
        return make()
    found = constants.get(key)
    if found is None:
        found = make()
        if type(found) is torch.Tensor and not found.is_inference():
            constants[key] = found
    return found


def row_numbers(numbers: Any, like: Tensor) -> Tensor:
    """Returns an array of integers as row numbers for torch, on the device of `like`."""
    import torch

    return torch.tensor(numbers, dtype=torch.int64, device=like.device)


def matrix_product(
    matrix: Any, like: Tensor, constants: dict[Any, Tensor]
) -> Callable[[Tensor], Tensor]:
    """Returns x -> matrix x by torch's CSR product, for x (columns, ...) on the device of `like`.

    `constants` stores the matrix for the next call, by device and dtype.
    """
    if like.device.type == "meta":
        return lambda x: x.new_empty((matrix.shape[0], *x.shape[1:]))
    with _sparse_refused_by_name():
        constant = kept(constants, (like.device, like.dtype), lambda: _csr_tensor(matrix, like))

    def product(x: Tensor) -> Tensor:
        from torch.autograd import forward_ad

        value, tangent = forward_ad.unpack_dual(x)
        if tangent is not None:  # torch's CSR product has no forward mode
            return forward_ad.make_dual(product(value), product(tangent))
        with _sparse_refused_by_name():
            return (constant @ x.reshape(x.shape[0], -1)).reshape(-1, *x.shape[1:])

    return product


@contextmanager
def _sparse_refused_by_name() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if "do not have strides" not in str(error):
            raise
        raise RuntimeError(
            "The transforms of torch.func do not support sparse matrices. Use torch.autograd "
            "instead: `torch.autograd.grad`, or `torch.autograd.forward_ad` for forward mode."
        ) from error


def _csr_tensor(matrix: Any, like: Tensor) -> Tensor:
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse", UserWarning)  # "CSR is in beta state"
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype("int64")),
            torch.from_numpy(matrix.indices.astype("int64")),
            torch.from_numpy(matrix.data),
            matrix.shape,
            dtype=like.dtype,
            device=like.device,
        )
