"""What torch does in place on a CPU: the same numbers and gradients as the plain form."""

import numpy as np
import pytest
import torch
from keras import ops

from keras_graphattn.operators import BlockwiseOperator, Visibility
from keras_graphattn.operators.softmax import Logits, SoftmaxOperator, scores_of
from keras_graphattn.ops import p_laplacian_attention
from tests.numerics import BACKEND, to_numpy

pytestmark = pytest.mark.skipif(
    BACKEND != "torch" or torch.cuda.is_available(), reason="only torch works in place, on a CPU"
)

BATCH, LENGTH, HEADS, SIZE = 2, 23, 3, 5
KEYS = np.arange(LENGTH)[None] < np.array([[17], [LENGTH]])
MASKS = {
    "none": Visibility(),
    "causal": Visibility(causal=True),
    "padding": Visibility(keys=KEYS, queries=KEYS),
    "entries": Visibility(
        entries=np.random.default_rng(5).random((BATCH, HEADS, LENGTH, LENGTH)) > 0.7, keys=KEYS
    ),
}


def tensors(dtype, twins=0):
    shape = (BATCH, LENGTH, HEADS, SIZE)
    arrays = [np.random.default_rng(i).standard_normal(shape) for i in range(3)]
    arrays[2][:, :twins] = 1.0001 * arrays[2][:, LENGTH - twins :]
    return [torch.tensor(x.astype(dtype), requires_grad=True) for x in arrays]


def twice(mask):
    return lambda *x: ops.concatenate(
        BlockwiseOperator(*x[:2], mask, block_size=9).twice(x[2]), axis=-1
    )


def p_laplacian(mask, p=(1.0, 2.0, 3.0), drop_diagonal=False, block_size=9):
    options = {"drop_diagonal": drop_diagonal, "block_size": block_size}
    return lambda *x: p_laplacian_attention(*x, list(p), mask, **options)


def under_a_bias(mask):
    """Attention whose bias is a function of the first channel of the keys, so it has gradients."""

    def function(query, key, x):
        bias = -3.0 * ops.transpose(key[..., :1], (0, 2, 3, 1)) ** 2
        logits = Logits(bias=bias)
        scores = scores_of(query, key)
        return SoftmaxOperator(scores, mask.joined(LENGTH), logits=logits)(x)

    return function


def found_by(function, inputs, monkeypatch, plain):
    """Outputs, without a gradient too, gradients, and products with the Hessian."""
    from keras_graphattn.numerics import torch_gradient

    with monkeypatch.context() as patch:
        if plain:
            patch.setattr(torch_gradient, "are_ordinary", lambda _: False)
        with torch.no_grad():
            alone = function(*inputs)
        outputs = function(*inputs)
        weights = torch.sin(torch.arange(outputs.numel())).reshape(outputs.shape).to(outputs.dtype)
        loss = (outputs * weights).sum()
        gradients = torch.autograd.grad(loss, inputs, retain_graph=True)
        again = torch.autograd.grad(loss, inputs, create_graph=True)
        hessian = torch.autograd.grad(sum((x * x).sum() for x in again), inputs)
    return [to_numpy(x.detach()) for x in (alone, outputs, *gradients, *hessian)]


def assert_same(function, inputs, monkeypatch, tolerance):
    quick, plain = (found_by(function, inputs, monkeypatch, x) for x in (False, True))
    for actual, expected in zip(quick, plain, strict=True):
        largest = np.abs(expected).max()
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * largest)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_two_applications(mask, dtype, monkeypatch):
    tolerance = 3e-6 if dtype == "float32" else 1e-12
    assert_same(twice(MASKS[mask]), tensors(dtype), monkeypatch, tolerance)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softmax_under_a_bias(mask, dtype, monkeypatch):
    tolerance = 3e-6 if dtype == "float32" else 1e-12
    assert_same(under_a_bias(MASKS[mask]), tensors(dtype), monkeypatch, tolerance)


def test_softmax_under_a_bias_has_no_weights_that_slow_a_cpu_down():
    scores, steps = ops.zeros((1, 1, 1, 200)), ops.arange(200, dtype="float32")
    weights = to_numpy(Logits(bias=-steps[None, None, None]).weights(scores)[0])[0, 0, 0]
    assert weights[60] > 0.0
    assert not ((weights > 0.0) & (weights < 1e-30)).any()
    np.testing.assert_allclose(weights[:60], np.exp(-np.arange(60.0)) * (1 - np.exp(-1)), 1e-5)


@pytest.mark.parametrize("overwrite", [False, True])
def test_scores_are_overwritten_only_where_that_is_allowed(overwrite):
    query, key, _ = tensors("float32")
    scores = scores_of(query, key)
    expected = to_numpy(scores.detach())
    logits = Logits(bias=ops.cast(np.arange(LENGTH) / 9.0, "float32")[None, None, None])
    leaf = scores.detach().clone().requires_grad_()  # torch writes into no such tensor
    found = []
    for one, is_kept in ((scores.detach().clone(), False), (leaf, True), (scores, False)):
        found.append(SoftmaxOperator(one, logits=logits, overwrite=overwrite).matrix())
        assert np.array_equal(to_numpy(one.detach()), expected) == (is_kept or not overwrite)
    for one in found[1:]:
        np.testing.assert_array_equal(*(to_numpy(x.detach()) for x in (one, found[0])))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("twins", [0, 8])
@pytest.mark.parametrize("drop_diagonal", [False, True])
@pytest.mark.parametrize("block_size", [9, LENGTH])
def test_p_laplacian_attention(mask, twins, drop_diagonal, block_size, monkeypatch):
    function = p_laplacian(MASKS[mask], drop_diagonal=drop_diagonal, block_size=block_size)
    assert_same(function, tensors("float64", twins), monkeypatch, 1e-11)


@pytest.mark.parametrize("numbers", [1, 2 * LENGTH**2, 4 * LENGTH**2])
def test_how_many_heads_are_taken_together_changes_nothing(numbers, monkeypatch):
    from keras_graphattn.operators import torch_blockwise, torch_p_laplacian

    for module in (torch_blockwise, torch_p_laplacian):
        monkeypatch.setattr(module, "_NUMBERS", numbers)
    for mask in MASKS.values():
        for function in (twice(mask), p_laplacian(mask, block_size=LENGTH)):
            assert_same(function, tensors("float64", 8), monkeypatch, 1e-11)


@pytest.mark.parametrize("make", [twice, p_laplacian, under_a_bias])
@pytest.mark.parametrize("number", [np.nan, np.inf, 1e35])
def test_what_is_hidden_may_be_any_number(make, number, monkeypatch):
    inputs = tensors("float32")
    inputs[1].data[0, 17:] = number
    function = make(MASKS["padding"])
    quick = to_numpy(function(*inputs).detach())
    with monkeypatch.context() as patch:
        patch.setattr("keras_graphattn.numerics.torch_gradient.are_ordinary", lambda _: False)
        plain = to_numpy(function(*inputs).detach())
    assert np.isfinite(quick).all()
    np.testing.assert_allclose(quick, plain, atol=1e-6)
