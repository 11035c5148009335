"""Second derivatives and forward mode of p-Laplacian attention: right, or a clear error."""

import numpy as np
import pytest
import torch
from keras import ops

from keras_graphattn.operators import Visibility
from keras_graphattn.ops import p_laplacian_attention, squared_distances
from tests import reference_dense
from tests.numerics import BACKEND, to_numpy

P = [1.5, 2.0, 4.0]
SHAPE = (2, 6, len(P), 4)
COTANGENT = np.random.default_rng(1).standard_normal(SHAPE).astype("float32")


def arrays(coincident, seed=0):
    generator = np.random.default_rng(seed)
    found = [generator.standard_normal(SHAPE).astype("float32") for _ in range(3)]
    if coincident:
        found[2][:, 3], found[2][:, 4] = found[2][:, 1], found[2][:, 0] * (1 + 1e-3)
    return found


def attention(block_size, causal):
    mask = Visibility(causal=causal)

    def function(query, key, values):
        outputs = p_laplacian_attention(query, key, values, P, mask, block_size=block_size)
        return ops.sum(ops.square(outputs) * ops.convert_to_tensor(COTANGENT))

    return function


def twin(causal):
    mask = torch.tensor(np.tri(SHAPE[1])) if causal else torch.ones((SHAPE[1], SHAPE[1]))
    mask = mask.double().expand(SHAPE[0], len(P), -1, -1)

    def function(query, key, values):
        matrix = reference_dense.p_laplacian_matrix(query, key, values, P, 0.1, mask)
        return (reference_dense.apply_matrix(matrix, values) ** 2 * torch.tensor(COTANGENT)).sum()

    return function


def attempt(function, *arguments):
    """What `function` returns, or the message with which it refuses."""
    try:
        return function(*arguments), None
    except (TypeError, RuntimeError, NotImplementedError) as error:
        return None, f"{error}"


def hessian_products(function, inputs, directions):
    """The derivatives of (gradient of `function`) . directions, a list of arrays."""
    tensors = [ops.convert_to_tensor(x) for x in inputs]
    if BACKEND == "jax":
        import jax

        def slope(*tensors):
            gradients = jax.grad(function, tuple(range(len(tensors))))(*tensors)
            return sum(ops.sum(g * d) for g, d in zip(gradients, directions, strict=True))

        return [to_numpy(x) for x in jax.jit(jax.grad(slope, tuple(range(len(inputs)))))(*tensors)]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as outer:
            outer.watch(tensors)
            with tf.GradientTape() as inner:
                inner.watch(tensors)
                value = function(*tensors)
            gradients = inner.gradient(value, tensors)
            slope = sum(ops.sum(g * d) for g, d in zip(gradients, directions, strict=True))
        return [to_numpy(x) for x in outer.gradient(slope, tensors)]
    return torch_hessian_products(function, inputs, directions, torch.float32)


def torch_hessian_products(function, inputs, directions, dtype=torch.float64):
    tensors = [torch.tensor(x, dtype=dtype, requires_grad=True) for x in inputs]
    gradients = torch.autograd.grad(function(*tensors), tensors, create_graph=True)
    slope = sum((g * torch.tensor(d)).sum() for g, d in zip(gradients, directions, strict=True))
    return [x.numpy().astype("float64") for x in torch.autograd.grad(slope, tensors)]


@pytest.mark.parametrize(
    ("block_size", "causal", "coincident"),
    [
        (6, True, True),
        (4, False, True),
        pytest.param(6, False, False, marks=pytest.mark.slow),
        pytest.param(2, True, False, marks=pytest.mark.slow),
    ],
)
def test_hessian_products_are_those_of_the_naive_twin(block_size, causal, coincident):
    inputs, directions = arrays(coincident), arrays(False, seed=2)
    actual, error = attempt(hessian_products, attention(block_size, causal), inputs, directions)
    if error:  # blocks that are formed again have none on TensorFlow
        assert "recompute_grad" in error
        assert block_size < SHAPE[1]
        return
    expected = torch_hessian_products(twin(causal), inputs, directions)
    for found, wanted in zip(actual, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def test_hessian_products_of_distances():
    _, rows, columns = arrays(False)
    columns[:, 2] = rows[:, 4]
    directions = arrays(False, seed=2)[:2]
    weights = np.random.default_rng(3).standard_normal((2, len(P), 6, 6)).astype("float32")
    actual = hessian_products(
        lambda r, c: ops.sum(squared_distances(r, c) ** 2 * ops.convert_to_tensor(weights)),
        (rows, columns),
        directions,
    )

    def naive(rows, columns):
        squares = ((rows[:, :, None] - columns[:, None]) ** 2).sum(-1).permute(0, 3, 1, 2)
        return (squares**2 * torch.tensor(weights)).sum()

    expected = torch_hessian_products(naive, (rows, columns), directions)
    for found, wanted in zip(actual, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("block_size", [6, 4])
def test_forward_mode_is_right_or_says_that_there_is_none(block_size):
    inputs, directions = arrays(False), arrays(False, seed=2)
    tensors = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in inputs]
    gradients = torch.autograd.grad(twin(False)(*tensors), tensors)
    expected = sum((g.numpy() * d).sum() for g, d in zip(gradients, directions, strict=True))
    slope, error = attempt(forward_slope, attention(block_size, False), inputs, directions)
    if error:
        assert any(word in error for word in ("forward", "jvp", "functorch")), error
    else:
        np.testing.assert_allclose(to_numpy(slope), expected, rtol=1e-4)


def forward_slope(function, inputs, directions):
    tensors, tangents = ([ops.convert_to_tensor(x) for x in y] for y in (inputs, directions))
    if BACKEND == "jax":
        import jax

        return jax.jvp(function, tuple(tensors), tuple(tangents))[1]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.autodiff.ForwardAccumulator(tensors, tangents) as accumulator:
            value = function(*tensors)
        return accumulator.jvp(value)
    import torch.autograd.forward_ad as forward_ad

    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, t) for x, t in zip(tensors, tangents, strict=True)]
        return forward_ad.unpack_dual(function(*duals)).tangent
