"""Graphormer's layers against formulas written pair by pair, and its model under padding."""

from types import SimpleNamespace

import numpy as np
import pytest

from keras_graphattn.filters import FirstOrder
from keras_graphattn.graphs import GraphBatches, precompute
from recipes.common.training.graphormer import BiasedAttention, StructuralBias
from recipes.common.training.graphs import NEEDED
from recipes.graph_regression import data
from recipes.graph_regression.__main__ import RECIPE
from recipes.graph_regression.model import build
from tests.numerics import randomise, to_numpy
from tests.recipes.formulas import assert_is_formula

torch = pytest.importorskip("torch")
HEADS, SIZE, WIDTH, HOPS, FARTHEST, TYPES = 2, 3, 6, 3, 4, 3
RANDOM = np.random.default_rng(0)


def pairs_of(batch, length):
    distances = RANDOM.integers(-1, FARTHEST + 3, (batch, length, length)).astype("int32")
    paths = RANDOM.integers(0, TYPES, (batch, length, length, HOPS)).astype("int32")
    ends = RANDOM.integers(0, HOPS + 1, (batch, length, length, 1))
    return distances, np.where(np.arange(HOPS) < ends, paths, -1).astype("int32")


def bias_formula(distances, paths, of_distance, of_edge, of_virtual_node):
    batch, length = distances.shape[:2]
    rows = []
    for example in range(batch):
        for i in range(-1, length):
            for j in range(-1, length):
                if i < 0 or j < 0:
                    rows.append(of_virtual_node)
                    continue
                distance = distances[example, i, j]
                row = FARTHEST + 1 if distance < 0 else min(distance, FARTHEST)
                edges = [e for e in paths[example, i, j] if e >= 0]
                mean = sum(of_edge[hop, e] for hop, e in enumerate(edges)) / max(len(edges), 1)
                rows.append(of_distance[row] + mean)
    shape = (batch, length + 1, length + 1, HEADS)
    return torch.stack(rows).reshape(shape).permute(0, 3, 1, 2)


@pytest.mark.parametrize("length", [1, 5])
def test_bias_is_its_formula_in_values_and_gradients(length):
    distances, paths = pairs_of(2, length)
    layer = StructuralBias(HEADS, FARTHEST, HOPS, TYPES)
    layer(distances, paths)
    randomise(layer, scale=0.7)

    def formula(weights):
        return bias_formula(distances, paths, **weights)

    assert_is_formula(layer, formula, [], distances, paths, bounds=(1e-6, 1e-5))


@pytest.mark.parametrize("filter", [None, FirstOrder(3)], ids=["softmax", "gfsa"])
def test_attention_is_its_formula_in_values_and_gradients(filter):
    tokens = RANDOM.normal(size=(2, 5, WIDTH)).astype("float32")
    bias = RANDOM.normal(size=(2, HEADS, 5, 5)).astype("float32")
    mask = np.array([[True] * 5, [True] * 3 + [False] * 2])
    layer = BiasedAttention(HEADS, SIZE, filter)
    layer(tokens, bias, mask)
    randomise(layer, scale=0.7)

    def formula(tokens, bias, weights):
        def project(name):
            kernel = weights[f"{name}/kernel"]
            return torch.einsum("btd,dnh->bnth", tokens, kernel) + weights[f"{name}/bias"][:, None]

        scores = project("query") @ project("key").transpose(-1, -2) / SIZE**0.5 + bias
        scores = torch.where(torch.tensor(mask)[:, None, None], scores, -torch.inf)
        a = torch.softmax(scores, dim=-1)
        if filter is not None:
            w0, w1, w2 = (
                weights[f"{name}_coefficient"][:, None, None]
                for name in ("identity", "linear", "power")
            )
            a = w0 * torch.eye(5, dtype=a.dtype) + w1 * a + w2 * (a + 2 * (a @ a - a))
        outputs = torch.einsum(
            "bnth,nhd->btd", a @ project("value"), weights["attention_output/kernel"]
        )
        return outputs + weights["attention_output/bias"]

    assert_is_formula(layer, formula, [tokens, bias], mask)
    again = BiasedAttention.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()


def molecules():
    """Molecules of different sizes; among them trees, whose shortest paths are the only ones."""
    graphs = [data.make(np.random.default_rng([1, i])) for i in range(30)]
    trees = [graph for graph in graphs if len(graph.edges) < graph.num_nodes]
    return [*trees[:2], graphs[3]]


GRAPHS = molecules()
PROBLEM = SimpleNamespace(features=GRAPHS[0].node_features.shape[1])
SIZES = ["--layers", "2", "--heads", "2", "--key-dim", "4", "--feed-forward", "8", "--hops", "3"]
OPTIONS = RECIPE.parse([*SIZES, "--walks", "3", "--walk-length", "3"])


def answer(model, graphs, size):
    walks = precompute(graphs, "walks", num_walks=3, walk_length=3, verbose=False)
    paths = precompute(graphs, "paths", hops=3, verbose=False)
    pairs = {
        "distances": precompute(graphs, "distances", verbose=False),
        "paths": [data.bonds_on_paths(*both) for both in zip(graphs, paths, strict=True)],
    }
    batches = GraphBatches(
        graphs,
        len(graphs),
        node_arrays={"walks": walks},
        pair_arrays=pairs,
        inputs=list(model.input),
        sizes=[size],
    )
    inputs = batches[0][0]
    padding = ~inputs["node_mask"]
    inputs["nodes"] = np.where(padding[..., None], np.nan, inputs["nodes"]).astype("float32")
    return to_numpy(model(inputs))


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", ["softmax", "gfsa", *NEEDED])
def test_padded_nodes_change_nothing(name):
    model = build(RECIPE.trial(PROBLEM, name, OPTIONS))
    randomise(model, scale=0.4)
    expected = answer(model, GRAPHS, 24)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(answer(model, GRAPHS, 29), expected, atol=2e-5)


@pytest.mark.slow_on("jax", "tensorflow")
def test_graphormer_ignores_the_order_of_the_nodes_and_sees_bonds_and_distances():
    model = build(RECIPE.trial(PROBLEM, "gfsa", OPTIONS))
    randomise(model, scale=0.4)
    graph = GRAPHS[0]
    order = np.random.default_rng(0).permutation(graph.num_nodes)
    kind = type(graph)
    turned = kind(
        order[graph.edges],
        node_features=graph.node_features[np.argsort(order)],
        edge_features=graph.edge_features,
        label=graph.label,
    )
    expected = answer(model, [graph], 24)
    np.testing.assert_allclose(answer(model, [turned], 24), expected, atol=2e-5)
    features, bonds = graph.node_features, graph.edge_features
    other_bonds = kind(graph.edges, node_features=features, edge_features=(bonds + 1) % 3, label=0)
    moved = np.array([graph.edges[0], *graph.edges[1:-1], [0, graph.num_nodes - 1]])
    other_edges = kind(moved, node_features=features, edge_features=bonds, label=0)
    for other in (other_bonds, other_edges):
        assert np.abs(answer(model, [other], 24) - expected).max() > 1e-4
