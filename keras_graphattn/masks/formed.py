"""Products that form the matrix of a mask, whole or a block of query rows at a time."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keras import ops

from keras_graphattn.numerics.blocks import map_query_blocks
from keras_graphattn.numerics.precision import size_tensor
from keras_graphattn.operators.kernel import masked_scores

if TYPE_CHECKING:
    from keras_graphattn.masks.mask import Mask, Tensors

Tensor = Any

FORMED_PATHS = ("dense", "blockwise")


def formed_product(
    mask: "Mask",
    path: str,
    query: Tensor | None,
    key: Tensor | None,
    x: Tensor,
    parameters: "Tensors",
    inputs: "Tensors",
) -> Tensor:
    """Forms M and returns M x or, with features, [(phi(Q) phi(K)^T) o M] x.

    Args:
        mask: The mask, whose `_matrix` and `_block_rows` give M.
        path: "dense" forms all rows at once, "blockwise" forms `mask.block_size` rows at a time.
        query: Features of the queries, (B, T, N, m), or `None`.
        key: Features of the keys, (B, T, N, m), or `None`.
        x: Signal of shape (B, T, N, D), at least float32.
        parameters: The mask's weights as tensors.
        inputs: The mask's inputs at this call.

    Returns:
        A tensor of shape (B, T, N, D).
    """
    length = ops.shape(x)[1]
    if path == "dense":
        return _product(query, key, x, mask._matrix(length, parameters, inputs))
    whole = {"signal": x}
    whole |= {f"parameter {name}": tensor for name, tensor in parameters.items()}
    whole |= {f"input {name}": tensor for name, tensor in inputs.items()}
    if key is not None:
        whole["key"] = key

    def rows_of_block(rows: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        matrix = mask._block_rows(
            # (R,); the last block may reach past the end
            ops.minimum(rows, size_tensor(length - 1, "int32")),
            length,
            {name: tensors[f"parameter {name}"] for name in parameters},
            {name: tensors[f"input {name}"] for name in inputs},
        )
        return _product(tensors.get("query"), tensors.get("key"), tensors["signal"], matrix)

    by_row = {} if query is None else {"query": query}
    return map_query_blocks(rows_of_block, by_row, whole, length, mask.block_size)


def _product(query: Tensor | None, key: Tensor | None, x: Tensor, matrix: Tensor) -> Tensor:
    """The product with some rows of M, of shape (1 or B, 1 or N, R, T)."""
    matrix = ops.cast(matrix, x.dtype)
    if query is not None and key is not None:
        return masked_scores(query, key, x, matrix)
    # Axes of size 1 take no part in the contraction. Otherwise the gradient is summed over them
    # afterwards, and XLA of TensorFlow 2.21 gets this sum wrong on a CPU for more than 256 rows and
    # columns (XLA of JAX 0.10 does not).
    shared = [axis for axis in (0, 1) if matrix.shape[axis] == 1]
    letters = "".join(letter for axis, letter in enumerate("bn") if axis not in shared)
    matrix = ops.squeeze(matrix, axis=tuple(shared)) if shared else matrix  # (B?, N?, R, T)
    return ops.einsum(f"{letters}ts,bsnd->btnd", matrix, x)
