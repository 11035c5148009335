import numpy as np
import pytest
import torch

from keras_graphattn.operators.singular import left_singular_vectors, right_singular_vectors
from keras_graphattn.ops import orthogonality_penalty, singular_value_attention
from tests import reference
from tests.numerics import (
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

MASK = np.array([[True, True, False, True, True], [True, False, False, True, False]])


def logits(count=1, seed=0):
    shape = (count, 2, 5, 3, 4)  # count x (B, T, N, H)
    return list(np.random.default_rng(seed).standard_normal(shape).astype("float32"))


@pytest.mark.parametrize("mask", [None, MASK])
@pytest.mark.parametrize("side", ["left", "right"])
def test_orthogonality_penalty_agrees_with_naive_twin(side, mask):
    vectors = {"left": left_singular_vectors, "right": right_singular_vectors}[side]

    def naive(x):
        columns = None if mask is None else torch.tensor(mask)[:, :, None, None]
        if side == "left":
            singular = reference.softmax(x) * (1 if columns is None else columns)
        else:
            singular = reference.softmax(x, columns, dim=1)
        gram = torch.einsum("btnh,btng->bnhg", singular, singular)
        return (gram - torch.eye(4)).abs().mean()

    value, gradients = value_and_gradients(
        lambda x: orthogonality_penalty(vectors(x, mask)), *logits()
    )
    expected, expected_gradients = reference_value_and_gradients(naive, *logits())
    assert_close(value, expected, 1e-6)
    assert_all_close(gradients, expected_gradients, 1e-5)


def test_orthonormal_columns_have_no_penalty():
    columns = np.linalg.qr(np.random.default_rng(0).standard_normal((9, 4)))[0]
    assert float(to_numpy(orthogonality_penalty(columns[None, :, None, :]))) < 1e-6
    assert float(to_numpy(orthogonality_penalty(2 * columns[None, :, None, :]))) > 0.7


def test_product_equals_the_matrix_it_never_forms():
    left, right, values = logits(3)
    product = to_numpy(singular_value_attention(left, right, values))
    matrix = np.einsum("btnh,bsnh->bnts", left, right)
    assert_close(product, np.einsum("bnts,bsnh->btnh", matrix, values), 1e-6)
