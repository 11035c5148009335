"""Dropout: in training alone, on the attention matrix or on the matrix of the whole filter."""

import numpy as np
import pytest
import torch

from keras_graphattn import layers
from keras_graphattn.filters import FirstOrder, Monomial
from keras_graphattn.masks import Exponential
from tests.filters import reference
from tests.layers.twins import built, tokens, with_a_mask
from tests.numerics import assert_close, to_numpy

LAYERS = {
    "graph filter": (layers.GraphFilterAttention, {}),
    "graph filter, on the filter": (layers.GraphFilterAttention, {"dropout_on": "filter"}),
    "differential": (layers.DifferentialAttention, {}),
    "p-Laplacian": (layers.PLaplacianAttention, {}),
    "high frequencies": (layers.ScaledHighFrequencyAttention, {}),
    "ContraNorm, scale 0": (layers.ContraNormAttention, {"scale": 0.0}),
    "AGF": (layers.AttentiveGraphFilter, {}),
    "AGF, causal": (layers.AttentiveGraphFilter, {"causal": True}),
    "kernel": (layers.MaskedKernelAttention, {}),
    "edges": (layers.EdgeAttention, {"graph": [[0, 1], [1, 2], [3, 6]], "num_virtual_nodes": 1}),
    "GKAT": (layers.GraphKernelAttention, {"mask": Exponential}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_in_training_alone(name):
    kind, options = LAYERS[name]

    def make(**dropout):
        return kind(4, 3, **with_a_mask(options), **dropout)

    layer, plain, x = built(lambda: make(dropout=0.5, seed=1)), built(make), tokens(7)
    for target, source in zip(plain.trainable_weights, layer.trainable_weights, strict=True):
        target.assign(source)
    still = to_numpy(layer(x))
    np.testing.assert_array_equal(still, to_numpy(layer(x, training=False)))
    assert_close(still, to_numpy(plain(x)), 1e-6)
    first, second = (to_numpy(layer(x, training=True)) for _ in range(2))
    assert np.abs(first - still).max() > 1e-3
    assert np.abs(first - second).max() > 1e-3


def showing(filter, dropout_on="attention", length=6):
    """A layer with values that are the identity and A = 1/n: in training, its dropped matrix."""
    layer = layers.GraphFilterAttention(
        1, length, dropout=0.5, seed=3, use_bias=False, dropout_on=dropout_on, filter=filter
    )
    layer.build((None, length, length))
    for dense in (layer.value_dense, layer.output_dense):
        dense.kernel.assign(np.eye(length).reshape(tuple(dense.kernel.shape)))
    for dense in (layer.query_dense, layer.key_dense):
        dense.kernel.assign(np.zeros(tuple(dense.kernel.shape)))
    x = np.eye(length, dtype="float32")[None]
    return layer, x, to_numpy(layer(x, training=True))[0]


def test_dropout_drops_the_same_matrix_in_both_applications():
    _, _, dropped = showing(FirstOrder(3))
    assert set(np.unique(dropped.round(4))) == {0.0, 0.3333}  # 1 / 6, kept and scaled by 2
    initial = {"identity": 0.3, "linear": 0.5, "power": 0.7}
    _, _, filtered = showing(FirstOrder(3, initial_coefficients=initial))
    coefficients = {f"{name}_coefficient": torch.tensor([x]) for name, x in initial.items()}
    expected = reference.matrix(FirstOrder(3), torch.tensor(dropped)[None, None], coefficients)
    assert_close(filtered, expected[0, 0].numpy(), 1e-6)


@pytest.mark.parametrize(
    "filter",
    [
        FirstOrder(initial_coefficients={"identity": 0.5, "power": 1.5}),
        Monomial(2, initial_coefficients=[0.5, 1.0, 2.0]),
    ],
    ids=["first_order", "monomial"],
)
def test_dropout_on_the_filter_drops_entries_of_its_matrix(filter):
    layer, x, dropped = showing(filter, "filter")
    matrix = to_numpy(layer(x, return_filter_matrix=True)[1])[0, 0]
    assert set(np.unique((dropped / matrix).round(4))) == {0.0, 2.0}
    assert_close(to_numpy(layer(x, training=False))[0], matrix, 1e-6)
    _, _, on_attention = showing(filter, "attention")
    assert len(np.unique((on_attention / matrix).round(4))) > 2
