"""GraphKernelAttention answers to D^-1 [exp(Q K^T / sqrt d) o M] V with everything formed."""

import keras
import numpy as np
import pytest
import torch

from keras_graphattn.layers import GraphKernelAttention
from keras_graphattn.masks import RandomWalk, Tree
from tests import reference_topology as reference
from tests.numerics import (
    assert_all_close,
    assert_close,
    layer_reference,
    layer_value_and_gradients,
    randomise,
    to_numpy,
)
from tests.reference import project, project_out

HEADS, KEY, FEATURES, LENGTH = 2, 4, 6, 9
PARENTS = reference.random_parents(LENGTH, seed=2, cut=0.3)
DISTANCES = reference.shortest_paths(LENGTH, reference.parent_edges(PARENTS))


def tokens(seed=0):
    shape = (2, LENGTH, FEATURES)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def naive(x, weights, matrix, keys=None):
    query, key, values = (project(x, weights, name) for name in ("query", "key", "value"))
    products = torch.exp(torch.einsum("btnh,bsnh->bnts", query, key) / KEY**0.5) * matrix
    products = products if keys is None else products * keys[:, None, None, :]
    total = products.sum(-1, keepdim=True)
    attention = products / torch.where(total > 0, total, 1.0)
    return project_out(torch.einsum("bnts,bsnh->btnh", attention, values), weights)


@pytest.mark.parametrize("padded", [False, True])
def test_tree_kernel(padded):
    layer = GraphKernelAttention(HEADS, KEY, mask=Tree(PARENTS, name="mask"), name="layer")
    layer.build((None, LENGTH, FEATURES))
    randomise(layer)
    keys = np.ones((2, LENGTH), bool)
    keys[0, [1, 5]] = not padded

    def matrix(w):
        return reference.exponential_matrix(DISTANCES, w["mask/rate"], w["mask/offset"])

    call = {"value_mask": keys} if padded else {}
    value, gradients = layer_value_and_gradients(layer, tokens(), **call)
    expected, expected_gradients = layer_reference(
        layer, lambda x, w: naive(x, w, matrix(w), torch.tensor(keys)), tokens()
    )
    assert_close(value, expected, 1e-5)
    assert_all_close(gradients, expected_gradients, 1e-4)


def test_walks_of_each_example():
    walks = np.random.default_rng(0).integers(0, LENGTH, (2, LENGTH, 3, 3)).astype("int32")
    layer = GraphKernelAttention(HEADS, KEY, mask=RandomWalk(), name="layer")
    layer.build((None, LENGTH, FEATURES))
    randomise(layer)
    matrix = torch.stack(
        [reference.walk_matrix(reference.walk_features(w, torch.ones(HEADS))) for w in walks]
    )
    value, _ = layer_value_and_gradients(layer, tokens(), mask_inputs={"walks": walks})
    expected, _ = layer_reference(layer, lambda x, w: naive(x, w, matrix), tokens())
    assert_close(value, expected, 1e-5)


def test_saves_with_its_graph_and_trains(tmp_path):
    ring = [[i, (i + 1) % LENGTH] for i in range(LENGTH)]
    inputs = keras.Input((LENGTH, FEATURES))
    mask = RandomWalk(ring, learn_decay=True, seed=3)
    model = keras.Model(inputs, GraphKernelAttention(HEADS, KEY, mask=mask)(inputs))
    model.compile("sgd", "mse")
    model.fit(tokens(), tokens(1), verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert_close(again.predict(tokens(), verbose=0), model.predict(tokens(), verbose=0), 1e-6)


@pytest.mark.slow_on("jax")
def test_scores_and_what_is_refused():
    layer = GraphKernelAttention(HEADS, KEY, mask=Tree(PARENTS))
    _, scores = layer(tokens(), return_attention_scores=True)
    np.testing.assert_allclose(to_numpy(scores).sum(-1), 1.0, rtol=1e-5)
    assert (to_numpy(scores)[:, :, np.isinf(DISTANCES)] == 0.0).all()
    with pytest.raises(ValueError, match="mask"):
        GraphKernelAttention(HEADS, KEY, mask=None)
    with pytest.raises(ValueError, match="attention_axes"):
        GraphKernelAttention(HEADS, KEY, mask=Tree(PARENTS), attention_axes=(1,))
