from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import ops

from recipes.common.attentions import Trial
from recipes.common.training.layers import attend
from recipes.time_series.__main__ import RECIPE

ATTENTIONS = RECIPE.attentions
RANDOM = np.random.default_rng(3)
TOKENS = RANDOM.normal(size=(3, 7, 6)).astype("float32")
MASK = np.array([[True] * 7, [True] * 4 + [False] * 3, [False] * 2 + [True] * 5])


def make(name, dtype=None):
    tokens = keras.Input((None, 6), dtype="float32")
    mask = keras.Input((None,), dtype="bool")
    filters = {"gfsa": "first_order", "agf": "jacobi"}
    settings = {"filter": {"name": filters[name], "order": 2}} if name in filters else {}
    trial = Trial(None, name, settings, SimpleNamespace(heads=2, key_dim=4))
    outputs = attend(trial, tokens, mask, "attend")
    model = keras.Model([tokens, mask], outputs)
    for weight in model.trainable_weights:
        weight.assign(0.5 * np.random.default_rng(len(weight.shape)).normal(size=weight.shape))
    return model


@pytest.mark.parametrize("name", ATTENTIONS)
def test_padding_has_no_influence_on_other_tokens(name):
    model = make(name)
    expected = ops.convert_to_numpy(model([TOKENS, MASK]))
    assert expected.shape == TOKENS.shape
    filled = np.where(MASK[..., None], TOKENS, 7.0)
    result = ops.convert_to_numpy(model([filled, MASK]))
    np.testing.assert_allclose(result[MASK], expected[MASK], atol=1e-5)
    moved = TOKENS + np.where(MASK, 0.5, 0.0)[..., None] * RANDOM.normal(size=(1, 1, 6))
    assert np.abs(ops.convert_to_numpy(model([moved, MASK]))[MASK] - expected[MASK]).max() > 1e-3


def test_linear_attention_is_its_formula():
    model = make("linear")
    weights = {weight.path: ops.convert_to_numpy(weight) for weight in model.weights}

    def project(part):
        kernel, bias = weights[f"attend_{part}/kernel"], weights[f"attend_{part}/bias"]
        return np.einsum("btd,dnh->bnth", TOKENS, kernel) + bias[:, None]

    def phi(x):
        return np.where(x > 0, x, np.expm1(np.minimum(x, 0))) + 1

    scores = np.einsum("bnth,bnsh->bnts", phi(project("query")), phi(project("key")))
    scores = scores * MASK[:, None, None]
    scores = scores / scores.sum(axis=-1, keepdims=True)
    heads = np.einsum("bnts,bnsh->btnh", scores, project("value"))
    expected = np.einsum("btnh,nhd->btd", heads, weights["attend/kernel"]) + weights["attend/bias"]
    np.testing.assert_allclose(ops.convert_to_numpy(model([TOKENS, MASK])), expected, atol=1e-5)


def test_nothing_to_see_gives_numbers():
    nothing = np.zeros_like(MASK)
    for name in ATTENTIONS:
        assert np.isfinite(ops.convert_to_numpy(make(name)([TOKENS, nothing]))).all()
