"""MaskedKernelAttention answers to D^-1 [(phi(Q) phi(K)^T) o M] V with everything formed."""

import keras
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_graphattn.layers import MaskedKernelAttention
from keras_graphattn.masks import Causal, Exponential, LowRank, Product, Segments
from tests import reference, reference_kernel
from tests.numerics import (
    BACKEND,
    assert_all_close,
    assert_close,
    layer_reference,
    layer_value_and_gradients,
    randomise,
    reference_weights,
    to_numpy,
)
from tests.random_masks import draw_masks, joined_mask

HEADS, KEY, FEATURES, LENGTH = 2, 4, 10, 9
IDS = np.array([[3, 3, 3, 5, 5, 5, 5, 3, -1], [0, 1, 1, 1, 1, 1, 2, 2, 2]], "int32")


def built(**options):
    options.setdefault("dtype", "float32")
    layer = MaskedKernelAttention(HEADS, KEY, name="layer", seed=0, **options)
    layer.build((None, None, FEATURES))
    randomise(layer)
    return layer


def tokens(length=LENGTH, batch=2, seed=0):
    shape = (batch, length, FEATURES)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def ones(length=LENGTH):
    return torch.ones((1, 1, length, length), dtype=torch.float64)


def exponential(weights, length=LENGTH):
    return reference_kernel.exponential_matrix(
        length, weights["mask/log_rates"], weights.get("mask/log_weights")
    )


MASKS = {
    "none": (lambda: None, lambda w: ones(), {}),
    "causal": (Causal, lambda w: reference_kernel.causal_matrix(LENGTH), {}),
    "exponential": (lambda: Exponential(2, name="mask"), exponential, {}),
    "packed and causal": (
        lambda: Product([Causal(), Segments()]),
        lambda w: (
            reference_kernel.segment_matrix(torch.tensor(IDS))
            * reference_kernel.causal_matrix(LENGTH)
        ),
        {"mask_inputs": {"segment_ids": IDS}},
    ),
}


@pytest.mark.parametrize("feature_map", ["relu", "squared_relu", "elu", "favor"])
@pytest.mark.parametrize("mask", MASKS)
def test_agrees_with_naive_twin_in_values_and_gradients(mask, feature_map):
    make, matrix, inputs = MASKS[mask]
    layer, x = built(mask=make(), feature_map=feature_map), tokens()
    frozen = {"directions": torch.tensor(to_numpy(layer.directions))} if "favor" in feature_map else {}
    value, gradients = layer_value_and_gradients(layer, x, **inputs)
    expected, expected_gradients = layer_reference(
        layer,
        lambda x, w: reference_kernel.layer_outputs(x, {**w, **frozen}, matrix(w), feature_map),
        x,
    )
    assert_close(value, expected, 1e-5)
    assert_all_close(gradients, expected_gradients, 3e-5)


@given(data=st.data(), mask=st.sampled_from(["none", "causal", "exponential"]))
@settings(max_examples=10)
def test_agrees_with_naive_twin_under_masks(data, mask):
    make, matrix, _ = MASKS[mask]
    path = data.draw(st.sampled_from(["auto", "dense"] + ["blockwise"] * (mask != "none")))
    masks = draw_masks(data, batch=2, length=LENGTH, heads=HEADS)
    seen = joined_mask(masks, batch=2, length=LENGTH, heads=HEADS)
    layer, x = built(mask=make(), path=path), tokens()
    full = lambda w: matrix(w) * torch.tensor(seen, dtype=torch.float64)  # noqa: E731
    value, gradients = layer_value_and_gradients(layer, x, **masks)
    expected, expected_gradients = layer_reference(
        layer, lambda x, w: reference_kernel.layer_outputs(x, w, full(w)), x
    )
    assert_close(value, expected, 1e-5, floor=1e-3)
    if np.abs(expected).max() > 0:
        assert_all_close(gradients, expected_gradients, 3e-5)


@pytest.mark.parametrize("mask", ["none", "causal", "exponential"])
def test_padding_is_unseen_and_rows_that_see_nothing_are_zero(mask):
    make, matrix, _ = MASKS[mask]
    layer, x = built(mask=make()), tokens()
    kept = np.array([[0, 0, 1, 1, 0, 1, 1, 1, 0], [0] * 9], bool)
    for name in ("value_mask", "query_mask"):
        outputs = to_numpy(layer(x, x, **{name: kept}))
        columns = torch.tensor(kept)[:, None, None, :] if name == "value_mask" else 1.0
        rows = torch.tensor(kept)[:, None, :, None] if name == "query_mask" else 1.0
        weights = reference_weights(layer)
        expected = reference_kernel.layer_outputs(
            torch.tensor(x).double(), weights, matrix(weights) * columns * rows
        )
        assert_close(outputs, expected.numpy(), 1e-5)
        bias = to_numpy(layer.output_dense.bias)
        assert (outputs[1] == bias.astype("float32")).all()
    garbage = np.where(kept[..., None], x, 1e6).astype("float32")
    before, after = (to_numpy(layer(y, y, value_mask=kept))[0][kept[0]] for y in (x, garbage))
    np.testing.assert_array_equal(before, after)


FILTERS = [("first_order", 4), ("chebyshev", 3)]


@pytest.mark.parametrize(("kind", "order"), FILTERS)
@pytest.mark.parametrize("mask", ["none", "exponential", "packed and causal"])
def test_filters_of_the_operator_equal_the_dense_product(mask, kind, order):
    make, matrix, inputs = MASKS[mask]
    layer, x = built(mask=make(), filter=kind, order=order), tokens()

    def filtered(weights):
        if kind == "first_order":
            names = ("identity_coefficient", "linear_coefficient", "power_coefficient")
            coefficients = [weights[name] for name in names]
            return lambda a: reference.first_order_filter(a, *coefficients, order)

        def chebyshev(a):
            total, eye = 0.0, torch.eye(a.shape[-1], dtype=a.dtype).expand_as(a)
            before, current = None, eye
            jacobi = polynomial_matrices(a, order, kind)
            for coefficient, power in zip(weights["filter_coefficients"], jacobi, strict=True):
                total = total + coefficient[:, None, None] * power
            del before, current
            return total

        return chebyshev

    value, gradients = layer_value_and_gradients(layer, x, **inputs)
    expected, expected_gradients = layer_reference(
        layer,
        lambda x, w: reference_kernel.layer_outputs(x, w, matrix(w), filtered=filtered(w)),
        x,
    )
    assert_close(value, expected, 1e-5)
    assert_all_close(gradients, expected_gradients, 3e-5)
