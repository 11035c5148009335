"""Masks over random forests and graphs of up to 1000 nodes, eager and compiled."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_graphattn.masks import GraphDiffusion, Tree
from tests import reference_topology as reference
from tests.numerics import BACKEND, to_numpy
from tests.topology_cases import HEADS, WIDTH, check, diffusion, tree

KINDS = st.sampled_from(["random", "path", "deep", "balanced", "star", "caterpillar"])
SEEDS = st.integers(0, 1000)
WAYS = st.sampled_from(
    {"jax": ["graph", "eager"], "tensorflow": ["eager", "graph", "xla"], "torch": ["eager"]}[
        BACKEND
    ]
)


def check_forest(count, kind, seed, data, most_levels):
    function = data.draw(st.sampled_from(["exponential", "table"]))
    mask, inputs, matrix = tree(count, kind, function, weighted=bool(seed % 2), seed=seed)
    paths = [p for p in mask.paths if p != "levels" or mask._forest.height < most_levels]
    path, way = data.draw(st.sampled_from(paths)), data.draw(WAYS)
    if way == "eager" and BACKEND == "jax" and count > 40:
        way = None  # otherwise JAX compiles every shape of every step
    check(mask, inputs, matrix, count, path, seed, way)


def check_graph(count, degree, seed, data):
    """Checks a graph with isolated nodes; large ones only against their eigenvectors."""
    operator = data.draw(st.sampled_from(["laplacian", "normalized_laplacian", "adjacency"]))
    path, way = data.draw(st.sampled_from(["dense", "series"])), data.draw(WAYS)
    if count <= 40:
        check(*diffusion(count, operator, seed=seed), count, path, seed, way, floor=0.2)
        return
    edges = reference.random_edges(count, degree, seed)
    mask = GraphDiffusion(edges, num_nodes=count, operator=operator, initial_time=[0.2, 0.9])
    mask.build((None, count, HEADS, WIDTH))
    found = np.linalg.eigh(reference.graph_matrix(count, edges, operator).numpy())
    values, vectors = (torch.tensor(array) for array in found)
    sign = 1.0 if operator == "adjacency" else -1.0

    def matrix(logit):
        time = mask.max_time * torch.sigmoid(logit)
        return (vectors * torch.exp(sign * time[:, None, None] * values)) @ vectors.T

    check(mask, {}, matrix, count, path, seed, way, floor=0.2)


@pytest.mark.slow_on("jax")
@settings(max_examples=8)
@given(count=st.integers(1, 40), kind=KINDS, seed=SEEDS, data=st.data())
def test_small_forests(count, kind, seed, data):
    check_forest(count, kind, seed, data, 256)


@settings(max_examples=3)
@given(count=st.integers(41, 1000), kind=KINDS, seed=SEEDS, data=st.data())
def test_forests(count, kind, seed, data):
    check_forest(count, kind, seed, data, 40)


@pytest.mark.slow
@settings(max_examples=60)
@given(count=st.integers(1, 1000), kind=KINDS, seed=SEEDS, data=st.data())
def test_many_forests(count, kind, seed, data):
    check_forest(count, kind, seed, data, 256)


@pytest.mark.slow_on("tensorflow")
@settings(max_examples=5)
@given(count=st.integers(1, 40), seed=SEEDS, data=st.data())
def test_small_graphs(count, seed, data):
    check_graph(count, 3.0, seed, data)


@settings(max_examples=3)
@given(count=st.integers(41, 1000), degree=st.floats(0, 8), seed=SEEDS, data=st.data())
def test_graphs(count, degree, seed, data):
    check_graph(count, degree, seed, data)


@pytest.mark.slow
@settings(max_examples=40)
@given(count=st.integers(1, 1000), degree=st.floats(0, 8), seed=SEEDS, data=st.data())
def test_many_graphs(count, degree, seed, data):
    check_graph(count, degree, seed, data)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize(
    ("function", "path"),
    [("exponential", "scan"), ("exponential", "doubling"), ("table", "centroids")],
)
def test_large_trees_never_see_each_other(function, path):
    """Two paths of 600 and 700 nodes, one after the other: long enough for transforms."""
    parents = np.arange(1300) - 1
    parents[600] = -1
    mask = Tree(parents, function=function)
    mask.build((None, 1300, 1, 2))
    x = np.random.default_rng(0).standard_normal((1, 1300, 1, 2)).astype("float32")
    changed = np.concatenate([x[:, :600], 1e4 * x[:, 600:]], axis=1)
    before, after = (to_numpy(mask.apply(values, path)) for values in (x, changed))
    np.testing.assert_array_equal(before[:, :600], after[:, :600])
    assert np.abs(before[:, 600:] - after[:, 600:]).min() > 0
