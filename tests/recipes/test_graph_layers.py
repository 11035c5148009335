"""GCN and GAT against dense formulas, and the attentions on graphs under padding."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest

from keras_graphattn.graphs import Graph, GraphBatches, precompute
from recipes.common.attentions import Trial
from recipes.common.training.graph_layers import GraphAttention, GraphConvolution
from recipes.common.training.graphs import NEEDED, build, inputs_of
from tests.numerics import randomise, to_numpy
from tests.recipes.formulas import assert_is_formula
from tests.reference_topology import random_edges

torch = pytest.importorskip("torch")
SIZES, WIDTH = (7, 4, 1), 5
RANDOM = np.random.default_rng(0)
GRAPHS = [
    Graph(
        random_edges(n, seed=n) if n > 1 else [], None, RANDOM.normal(size=(n, WIDTH)), num_nodes=n
    )
    for n in SIZES
]
INPUTS = GraphBatches(GRAPHS, len(SIZES), num_buckets=1)[0][0]


def dense(edges, count):
    """A + I of one example, with padding left out."""
    matrix = torch.eye(count, dtype=torch.float64)
    for u, v in edges:
        if u >= 0:
            matrix[u, v] = matrix[v, u] = 1.0
    return matrix


def gcn_formula(nodes, weights):
    kernel, bias = weights["dense/kernel"], weights["bias"]
    found = []
    for x, edges in zip(nodes, INPUTS["edges"], strict=True):
        matrix = dense(edges, len(x))
        scale = torch.diag(matrix.sum(dim=1) ** -0.5)
        found.append(scale @ matrix @ scale @ x @ kernel + bias)
    return torch.stack(found)


def gat_formula(nodes, weights):
    kernel, bias = weights["dense/kernel"], weights["bias"]
    found = []
    for x, edges in zip(nodes, INPUTS["edges"], strict=True):
        seen = dense(edges, len(x)) > 0
        heads = []
        for head in range(2):
            y = x @ kernel[:, 3 * head : 3 * head + 3]
            scores = (y @ weights["of_target"][head])[:, None] + y @ weights["of_source"][head]
            scores = torch.nn.functional.leaky_relu(scores, 0.2)
            shares = torch.softmax(torch.where(seen, scores, -torch.inf), dim=1)
            heads.append(shares @ y)
        found.append(torch.cat(heads, dim=1) + bias)
    return torch.stack(found)


CASES = {
    "gcn": (lambda **kwargs: GraphConvolution(6, **kwargs), gcn_formula),
    "gat": (lambda **kwargs: GraphAttention(2, 3, **kwargs), gat_formula),
}


def made(name, **kwargs):
    layer = CASES[name][0](**kwargs)
    layer(INPUTS["nodes"], INPUTS["edges"])
    randomise(layer, scale=0.7)
    return layer


@pytest.mark.parametrize("name", CASES)
def test_layers_are_their_dense_formulas_in_values_and_gradients(name):
    assert_is_formula(made(name), CASES[name][1], [INPUTS["nodes"]], INPUTS["edges"])


@pytest.mark.parametrize("name", CASES)
def test_layers_survive_large_scores_and_half_precision(name):
    layer = made(name)
    large = to_numpy(layer(100.0 * INPUTS["nodes"], INPUTS["edges"]))
    assert np.isfinite(large).all()
    half = made(name, dtype="mixed_bfloat16")
    half.set_weights(layer.get_weights())
    found = to_numpy(half(INPUTS["nodes"], INPUTS["edges"]))
    expected = to_numpy(layer(INPUTS["nodes"], INPUTS["edges"]))
    np.testing.assert_allclose(found, expected, atol=0.05 * np.abs(expected).max())
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()


SIZES_OF_MODEL = {"heads": 2, "key_dim": 4, "layers": 2, "feed_forward": 8}
NO_DROPOUT = {"dropout": 0.0, "head_dropout": 0.0}
AROUND = {"skip": True, "normalise": True, "pooling": "sum", "graph_size": True}
OPTIONS = SimpleNamespace(**SIZES_OF_MODEL, **NO_DROPOUT, **AROUND, walks=3, walk_length=3)
SETTINGS = {"gfsa": {"filter": {"name": "first_order", "order": 2}}}


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("embedding", [True, False])
@pytest.mark.parametrize("name", ["softmax", "gfsa", *NEEDED])
def test_models_ignore_padding_and_the_order_of_the_nodes(name, embedding):
    options = SimpleNamespace(**vars(OPTIONS), embedding=embedding)
    problem = SimpleNamespace(features=WIDTH, classes=["a", "b", "c"])
    model = build(Trial(problem, name, SETTINGS.get(name, {}), options))
    assert any(layer.name == "embedding" for layer in model.layers) == embedding
    assert model.get_layer("layer_1").output.shape == (None, None, 8)
    randomise(model, scale=0.4)
    model = keras.Model(model.input, model.get_layer("head").output)  # probabilities may be 0 or 1
    walks = precompute(GRAPHS, "walks", num_walks=3, walk_length=3, verbose=False)

    def answer(graphs, walks, size):
        arrays = {"walks": walks}
        batches = GraphBatches(
            graphs, len(graphs), node_arrays=arrays, sizes=[size], inputs=inputs_of(name)
        )
        return to_numpy(model(batches[0][0]))

    expected = answer(GRAPHS, walks, 7)
    close = {"atol": 1e-6 * np.abs(expected).max()}
    np.testing.assert_allclose(answer(GRAPHS, walks, 12), expected, **close)
    order = np.random.default_rng(0).permutation(7)  # node i becomes order[i]
    back = np.argsort(order)
    features = GRAPHS[0].node_features[back]
    other = Graph(order[GRAPHS[0].edges], node_features=features)
    steps = np.where(walks[0] >= 0, order[walks[0]], -1)[back].astype("int32")
    found = answer([other, *GRAPHS[1:]], [steps, *walks[1:]], 7)
    np.testing.assert_allclose(found, expected, **close)
    if name in NEEDED:  # the edges count, too
        fewer = Graph(GRAPHS[0].edges[:2], node_features=GRAPHS[0].node_features)
        drawn = precompute([fewer], "walks", num_walks=3, walk_length=3, verbose=False)
        found = answer([fewer, *GRAPHS[1:]], [*drawn, *walks[1:]], 7)
        assert np.abs(found[0] - expected[0]).max() > 1e-4
