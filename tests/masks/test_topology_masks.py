"""Tree, diffusion, hypercube and walk masks equal naive matrices, also in gradients."""

import json

import keras
import numpy as np
import pytest
import torch
from keras import ops

from keras_graphattn.graphs import Graph, precompute
from keras_graphattn.masks import DistanceTable, GraphDiffusion, Tree
from tests import reference_topology as reference
from tests.numerics import (
    BACKEND,
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)
from tests.topology_cases import (
    HEADS,
    check,
    diffusion,
    diffusion_of_batch,
    hypercube,
    random_features_of,
    tree,
    trees_of_batch,
    walks_of,
    walks_of_batch,
)

CASES = {
    "tree": tree,
    "deep tree": lambda: tree(kind="deep"),
    "tree table": lambda: tree(function="table"),
    "path table": lambda: tree(kind="path", function="table"),
    "caterpillar table": lambda: tree(kind="caterpillar", function="table"),
    "tree per example": trees_of_batch,
    "table per example": lambda: trees_of_batch("table"),
    "laplacian": diffusion,
    "normalized laplacian": lambda: diffusion(operator="normalized_laplacian"),
    "adjacency": lambda: diffusion(operator="adjacency"),
    "graph per example": lambda: diffusion_of_batch("normalized_laplacian"),
    "plain graph per example": lambda: diffusion_of_batch("laplacian"),
    "adjacency per example": lambda: diffusion_of_batch("adjacency"),
    "hypercube": hypercube,
    "hypercube by bit": lambda: hypercube(dimension=4),
    "walks": walks_of,
    "walks, inner products": lambda: walks_of(normalization=0.0),
    "walks per example": walks_of_batch,
    "random features": random_features_of,
    "random features, adjacency": lambda: random_features_of(operator="adjacency"),
}
PATHS = [
    (name, path) for name, make in CASES.items() for path in make()[0].paths if path != "blockwise"
]


def length_of(mask, inputs):
    if mask.num_nodes is not None:
        return mask.num_nodes
    if not inputs:
        return 16
    return 9 if "edges" in inputs else next(iter(inputs.values())).shape[1]


@pytest.mark.parametrize(("name", "path"), PATHS)
def test_answers_to_brute_force(name, path):
    mask, inputs, matrix = CASES[name]()
    check(mask, inputs, matrix, length_of(mask, inputs), path)


@pytest.mark.parametrize(
    ("kind", "function", "path"),
    [
        ("random", "exponential", "levels"),
        ("deep", "exponential", "scan"),
        ("path", "exponential", "doubling"),
        ("random", "table", "depths"),
        ("path", "table", "centroids"),
    ],
)
def test_a_thousand_nodes(kind, function, path):
    mask, inputs, matrix = tree(1000, kind, function)
    check(mask, inputs, matrix, 1000, path)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("path", ["dense", "series"])
@pytest.mark.parametrize(
    ("operator", "bound"),
    [
        ("laplacian", 60.0),  # the time is split into parts
        ("normalized_laplacian", None),
        ("adjacency", 20.0),
    ],
)
def test_gradients_of_the_weights_of_edges(operator, bound, path):
    count, times = 9, [0.3, 1.1]
    each = [reference.random_edges(count, 2.0, seed)[:12] for seed in (1, 2)]
    edges = np.full((2, 14, 2), -1, "int32")
    weights = np.random.default_rng(0).uniform(0.3, 2.0, edges.shape[:2]).astype("float32")
    for example, found in enumerate(each):
        edges[example, : len(found)] = found
    options = {"operator": operator, "spectral_bound": bound, "learn_time": False}
    mask = GraphDiffusion(edge_weights=True, initial_time=times, **options)
    mask.build((None, count, len(times), count))
    units = np.broadcast_to(np.eye(count, dtype="float32")[None, :, None], (2, count, 2, count))

    def product(edge_weights):
        return mask.apply(units, path, edges=edges, edge_weights=edge_weights)

    def right(edge_weights):
        found = [
            reference.graph_matrix(count, own, operator, edge_weights[example, : len(own)])
            for example, own in enumerate(each)
        ]
        found = [
            reference.positive_exponential(one, torch.tensor(times), operator) for one in found
        ]
        return torch.stack(found).transpose(1, 2)

    value, gradients = value_and_gradients(product, weights)
    right_value, right_gradients = reference_value_and_gradients(right, weights)
    assert_close(value, right_value, 1e-5)
    assert_all_close(gradients, right_gradients, 1e-5)


@pytest.mark.slow_on("jax")
def test_rows_without_the_matrix(monkeypatch):
    monkeypatch.setattr("keras_graphattn.masks.mask.ROWS_FROM_MATRIX", 3)
    for make in (tree, trees_of_batch, diffusion, walks_of, random_features_of):
        mask, inputs, _ = make()
        dense = to_numpy(mask.dense(**inputs))
        assert_close(to_numpy(mask.rows([4, 1], **inputs)), dense[:, :, [4, 1]], 1e-5)


@pytest.mark.skipif(BACKEND == "torch", reason="torch has no such compiler here")
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("tree", "levels"),
        ("tree", "scan"),
        ("tree", "doubling"),
        ("tree table", "depths"),
        ("caterpillar table", "centroids"),
        ("tree per example", "doubling"),
        ("laplacian", "series"),
        ("graph per example", "series"),
        ("hypercube", "butterfly"),
        ("walks", "features"),
    ],
)
def test_eager_and_compiled(name, path):
    mask, inputs, matrix = CASES[name]()
    way = "eager" if BACKEND == "jax" else "xla"  # the other tests use the other one
    check(mask, inputs, matrix, length_of(mask, inputs), path, way=way)


def test_gradients_reach_edge_weights_of_a_batch():
    parents = reference.random_parents(9, seed=1)[None].astype("int32")
    lengths = np.random.default_rng(0).uniform(0.5, 1.5, (1, 9))
    mask = Tree(edge_weights=True)
    mask.build((None, None, 1, 2))
    x = np.random.default_rng(1).standard_normal((1, 9, 1, 2))

    # the way between two nodes along the edge of each node: (9, 9, 9), infinite across trees
    links = reference.parent_edges(parents[0])
    each = [[float(child == node) for child, _ in links] for node in range(9)]
    ways = torch.tensor(np.stack([reference.shortest_paths(9, links, one) for one in each]))
    same_tree = torch.isfinite(ways[0])
    ways = torch.where(same_tree, ways, 0.0)

    def naive(lengths):
        distances = torch.einsum("e,eij->ij", lengths[0], ways)
        matrix = torch.where(same_tree, torch.exp(-distances), 0.0)
        return torch.einsum("ts,bsnd->btnd", matrix, torch.tensor(x))

    right, right_gradients = reference_value_and_gradients(naive, lengths)
    for path in mask.paths:
        value, gradients = value_and_gradients(
            lambda w, path=path: mask.apply(
                x.astype("float32"), path, parents=parents, edge_weights=w
            ),
            lengths,
        )
        assert_close(value, right, 1e-5)
        assert_all_close(gradients, right_gradients, 1e-5)


@pytest.mark.parametrize("name", CASES)
def test_config_round_trip(name):
    mask, inputs, _ = CASES[name]()
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(mask)))
    again = keras.saving.deserialize_keras_object(config, safe_mode=True)
    assert again.get_config() == mask.get_config()
    assert again.inputs_at_call == mask.inputs_at_call == tuple(inputs)
    assert again.paths == mask.paths
    assert again.built  # from the shape in the saved file
    for old, new in zip(mask.weights, again.weights, strict=True):
        new.assign(old)
    length = length_of(mask, inputs)
    assert_close(
        to_numpy(again.dense(length, **inputs)), to_numpy(mask.dense(length, **inputs)), 1e-6
    )


def test_half_precision_is_float32_inside():
    mask, _, _ = tree()
    x = np.random.default_rng(0).standard_normal((1, 23, HEADS, 2)).astype("float32")
    found = mask.apply(ops.cast(x, "bfloat16"))
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    right = mask.apply(ops.cast(ops.cast(x, "bfloat16"), "float32"))
    assert_close(to_numpy(found), to_numpy(right), 4e-3)


def test_a_table_of_distances_of_a_forest_is_that_of_its_tree_mask():
    parents = reference.random_parents(15, "random", 3, 0.2)
    edges = np.array([[node, parent] for node, parent in enumerate(parents) if parent >= 0])
    (distances,) = precompute([Graph(edges, num_nodes=15)], "distances", verbose=False)
    one, other = Tree(parents, function="table", max_distance=14), DistanceTable(14)
    for mask in (one, other):
        mask.build((None, 15, HEADS, 1))
    table = np.random.default_rng(0).normal(size=(16, HEADS))
    one.log_table.assign(table[:15])
    other.log_table.assign(table)  # the last row is for virtual nodes
    matrices = one.dense(15), other.dense(distances=distances[None])
    assert_close(to_numpy(matrices[1]), to_numpy(matrices[0]), 1e-6)
