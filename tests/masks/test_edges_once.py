"""The same graph in every form. Edges count once; loops and edges of weight 0 are refused."""

import functools
import inspect

import networkx
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_graphattn import graphs, masks
from keras_graphattn.masks import GraphDiffusion, RandomWalk, Tree
from keras_graphattn.masks.graphs.edges import read_graph
from tests.call_inputs import MASKS, batch_for, made
from tests.numerics import BACKEND, assert_close, to_numpy, value_and_gradients

PATH = np.array([[0, 1], [1, 2], [2, 3], [4, 5]])  # a forest, so that every mask accepts it
WITH_EDGES = [name for name in MASKS if "edges" in MASKS[name]().inputs_at_call]


def matrix(mask, **inputs):
    mask.build((None, 6, 1, 2))
    return to_numpy(mask.dense(**inputs))


@pytest.mark.parametrize("make", [GraphDiffusion, RandomWalk, Tree])
def test_what_is_refused_of_a_graph(make):
    with pytest.raises(ValueError, match=r"edges 1 and 4 both join nodes 1 and 2.* 1 and 2"):
        make(np.concatenate([PATH, [[2, 1]]]), [1.0, 1.0, 1.0, 1.0, 2.0])
    with pytest.raises(ValueError, match="edge 2, from node 3 to itself"):
        make([[0, 1], [1, 2], [3, 3]])


def test_entries_of_a_sparse_matrix():
    rows, columns = np.concatenate([PATH, PATH[:, ::-1], PATH, PATH[:, ::-1]]).T
    twice = scipy.sparse.coo_array((np.ones(16), (rows, columns)), shape=(6, 6))
    with pytest.raises(ValueError, match=r"several at \(0, 1\)\. If scipy may add them"):
        read_graph(twice)
    twice.sum_duplicates()
    assert read_graph(twice).data.tolist() == [2.0] * 8
    with pytest.raises(ValueError, match="loop at node 2"):
        read_graph(scipy.sparse.csr_array(np.diag([0.0, 0.0, 1.0])))


def in_every_form(weights):
    """Yields the graph `PATH` on 6 nodes in each form, by the name of its kind."""
    u, v = np.concatenate([PATH, PATH[:, ::-1]]).T
    yield "edges", (PATH, weights, 6)
    yield "edges", (np.stack([u, v], axis=1), np.tile(weights, 2), 6)
    yield "edges", (np.repeat(PATH, 2, axis=0), np.repeat(weights, 2), 6)
    three_times = np.concatenate([PATH[::-1], PATH[:, ::-1], PATH])
    yield "edges", (three_times, np.concatenate([weights[::-1], weights, weights]), 6)
    graph = networkx.Graph()
    graph.add_nodes_from(f"node {i}" for i in range(6))
    for (one, other), weight in zip(PATH, weights, strict=True):
        graph.add_edge(f"node {other}", f"node {one}", weight=weight)
    parallel = networkx.MultiDiGraph(graph)
    parallel.add_edges_from(list(parallel.edges(data=True)))
    yield from (("networkx", (one,)) for one in (graph, graph.to_directed(), parallel))
    matrix = scipy.sparse.coo_array((np.tile(weights, 2), (u, v)), shape=(6, 6))
    yield from (("scipy", (matrix.asformat(kind),)) for kind in ("coo", "csr", "csc", "lil"))
    if all(weights):
        yield "parents", ([-1, 0, 1, 2, -1, 4], [1.0, *weights[:3], 1.0, weights[3]])


def readers():
    """Maps names to all that is made of a graph, and to the kinds of its forms."""
    every = ("edges", "networkx", "scipy")
    found = {
        "Graph": (lambda edges, weights, n: graphs.Graph(edges, weights, num_nodes=n), every[:1]),
        "read_graph": (lambda graph, *rest: read_graph(graph, *rest[::-1]), every),
    }
    for name in masks.__all__:
        parameters = inspect.signature(getattr(masks, name)).parameters
        if {"graph", "forest"} & set(parameters):
            fixed = {"seed": 0} if "seed" in parameters else {}
            make = functools.partial(getattr(masks, name), **fixed)
            found[name] = make, (*every, "parents") if "forest" in parameters else every
    return found


MADE = readers()


def numbers_of(made):
    if isinstance(made, masks.Mask):
        return matrix(made)
    return (made.adjacency() if isinstance(made, graphs.Graph) else made).toarray()


@pytest.mark.all_cases
@pytest.mark.parametrize("name", MADE)
def test_a_graph_is_the_same_in_every_form(name):
    make, kinds = MADE[name]
    forms = in_every_form(np.array([0.5, 1.5, 2.0, 0.7]))
    first, *others = (numbers_of(make(*form)) for kind, form in forms if kind in kinds)
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-6)


@pytest.mark.all_cases
@pytest.mark.parametrize("name", MADE)
def test_an_edge_of_weight_0_is_refused_in_every_form(name):
    make, kinds = MADE[name]
    for kind, form in in_every_form(np.array([0.5, 0.0, 2.0, 0.7])):
        if kind in kinds:
            with pytest.raises(ValueError, match="positive"):
                make(*form)


@pytest.mark.slow_on("jax")
@settings(max_examples=1 if BACKEND == "jax" else 4)  # JAX compiles every example
@given(seed=st.integers(0, 1000))
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("name", WITH_EDGES)
def test_edges_of_a_batch(name, hidden, seed):
    """Matrix and gradients of each edge's weights are the same, eager and compiled."""
    mask = made(name)
    with pytest.MonkeyPatch.context() as patch:
        if hidden:
            patch.setattr("keras_graphattn.masks.inputs.known_value", lambda given: None)
        _check_edges_of_a_batch(mask, np.random.default_rng(seed))


def _check_edges_of_a_batch(mask, generator):
    once = batch_for(mask, generator.integers(1000))
    places = generator.permuted(
        np.tile(np.arange(36) % 12, (3, 1)), axis=1
    )  # each edge three times
    again = {"edges": np.take_along_axis(once["edges"], places[..., None], axis=1)}
    flipped = generator.random((3, 36)) < 0.5
    again["edges"] = np.where(flipped[..., None], again["edges"][..., ::-1], again["edges"])
    if "edge_weights" not in once:
        found, right = (to_numpy(mask.dense(7, **inputs)) for inputs in (again, once))
        assert_close(found, right, 1e-6)
        return
    edges = once["edges"], again["edges"]
    weights = once["edge_weights"], np.take_along_axis(once["edge_weights"], places, axis=1)
    (right, of_once), (found, of_again) = (
        value_and_gradients(lambda w, e=e: mask.dense(7, edges=e, edge_weights=w), w)
        for e, w in zip(edges, weights, strict=True)
    )
    assert_close(found, right, 1e-6)
    summed = np.zeros((3, 12))
    np.add.at(summed, (np.arange(3)[:, None], places), of_again[0])
    assert_close(summed, of_once[0], 1e-5)
    first = np.take_along_axis(of_again[0], np.argsort(places, axis=1, kind="stable")[:, :3], 1)
    assert_close(
        first, first.mean(axis=1, keepdims=True).repeat(3, 1), 1e-6
    )  # the gradient is split evenly


@pytest.mark.slow
def test_nodes_beyond_the_square_root_of_int32():
    count, edges = 50000, np.array([[[49999, 3], [3, 49999], [7, 49998], [-1, -1], [46341, 3]]])
    mask = GraphDiffusion(operator="normalized_laplacian", tolerance=1e-3)
    mask.build((None, count, 1, 1))
    x = np.zeros((1, count, 1, 1), "float32")
    x[0, [3, 7]] = 1.0
    found = to_numpy(mask.apply(x, "series", edges=edges))[0, :, 0, 0]
    right = GraphDiffusion(
        edges[0, [0, 2, 4]], num_nodes=count, operator="normalized_laplacian", tolerance=1e-3
    )
    right.build((None, count, 1, 1))
    assert_close(found, to_numpy(right.apply(x, "series"))[0, :, 0, 0], 1e-5)


def test_the_bound_of_a_batch_is_that_of_each_example():
    """If one example exceeds the bound, the error names this example; see also `OF_ONE`."""
    star, path = [[0, k] for k in range(1, 6)], [[k, k + 1] for k in range(5)]
    edges = np.array([path, star])
    for operator, bound in (("laplacian", 6.0), ("adjacency", 5.0**0.5)):
        wide, narrow = (
            GraphDiffusion(operator=operator, spectral_bound=factor * bound)
            for factor in (1.0001, 0.99)
        )
        wide.check_inputs(6, edges=edges)
        with pytest.raises(ValueError, match=f"example 1: .* is {bound:.4g}"):
            narrow.check_inputs(edges=edges)


def test_inputs_stay_as_they_are():
    mask = made("GraphDiffusion plain, weighted")
    inputs = batch_for(mask)
    copies = {name: array.copy() for name, array in inputs.items()}
    mask.check_inputs(7, **inputs)
    for name, array in inputs.items():
        np.testing.assert_array_equal(array, copies[name])
