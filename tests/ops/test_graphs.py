"""Graphs as data, sparse products and spectra; and what is refused."""

import numpy as np
import pytest
import scipy.sparse
from keras import ops

from keras_graphattn.masks import GraphDiffusion, Hypercube, RandomWalk
from keras_graphattn.masks.graphs.edges import read_graph, spectral_radius, transition_matrix
from keras_graphattn.masks.graphs.sparse import SparseMatrix
from keras_graphattn.masks.graphs.walks import random_walks
from keras_graphattn.numerics.segments import add_rows
from tests import reference_topology as reference
from tests.numerics import assert_close, to_numpy, value_and_gradients


def random_matrix(rows, columns, seed=0):
    """Rows of 0 to many entries, one of them full."""
    generator = np.random.default_rng(seed)
    dense = generator.standard_normal((rows, columns))
    dense[generator.random((rows, columns)) > generator.random((rows, 1)) ** 2] = 0.0
    dense[rows // 2] = 1.0
    return dense


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (13, 70), (70, 13)])
def test_sparse_product_and_its_gradient(rows, columns):
    dense = random_matrix(rows, columns)
    matrix = SparseMatrix(scipy.sparse.csr_array(dense))
    x = np.random.default_rng(1).standard_normal((columns, 2, 3))
    value, gradients = value_and_gradients(matrix, x)
    assert_close(value, np.einsum("rc,cnd->rnd", dense, x), 1e-6)
    cotangent = np.random.default_rng(7).standard_normal(value.shape)
    assert_close(gradients[0], np.einsum("rc,rnd->cnd", dense, cotangent), 1e-6)


def test_product_with_an_empty_matrix_is_zero():
    matrix = SparseMatrix(scipy.sparse.csr_array((3, 2)))
    assert not to_numpy(matrix(np.ones((2, 4), "float32"))).any()


@pytest.mark.parametrize("ordered", [True, False])
def test_add_rows(ordered):
    targets = np.array([0, 2, 2, 5, 5, 5])
    x = np.random.default_rng(0).standard_normal((6, 2, 3))
    right = np.zeros((7, 2, 3))
    np.add.at(right, targets, x)
    rows = ops.convert_to_tensor(targets, "int32")
    value, gradients = value_and_gradients(lambda x: add_rows(x, rows, 7, ordered), x)
    assert_close(value, right, 1e-6)
    cotangent = np.random.default_rng(7).standard_normal(value.shape)
    assert_close(gradients[0], cotangent[targets], 1e-6)


def test_spectral_radius_is_tight():
    graph = read_graph(reference.random_edges(200, 6.0))
    largest = np.linalg.eigvalsh(graph.toarray()).max()
    assert largest <= spectral_radius(graph) <= 1.02 * largest


@pytest.mark.parametrize("scale", [1e-310, 1e-30, 1.0, 1e15, 1e300])
def test_steps_of_a_walk_are_shares_of_any_weights(scale):
    graph = read_graph([[0, 1], [1, 2], [3, 4]], 6, [scale, 3.0 * scale, 1.0])
    steps = transition_matrix(graph)
    expected = np.zeros((6, 6))
    expected[[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]] = [1.0, 0.25, 0.75, 1.0, 1.0, 1.0]
    np.testing.assert_allclose(steps.toarray(), expected, rtol=1e-12)
    assert graph[0, 1] == scale  # the graph is as it was


def test_walks_walk_along_edges():
    graph = read_graph(reference.random_edges(25, 2.0, 3), 25)
    walks = random_walks(graph, 6, 5, seed=1)
    assert (walks[:, :, 0] == np.arange(25)[:, None]).all()
    alone = np.diff(graph.indptr) == 0
    assert alone.any()
    assert (walks[alone][:, :, 1:] == -1).all()
    here, there = walks[~alone][:, :, :-1].ravel(), walks[~alone][:, :, 1:].ravel()
    assert (there >= 0).all()
    assert (graph.toarray()[here, there] > 0).all()
    np.testing.assert_array_equal(walks, random_walks(graph, 6, 5, seed=1))
    assert (walks != random_walks(graph, 6, 5, seed=2)).any()


@pytest.mark.parametrize("scale", [1e-300, 1e-15, 1.0, 1e15, 1e20])
def test_walks_take_edges_by_their_weights_beside_any_other_weights(scale):
    """The first nodes' weights are far from those of the others."""
    graph = read_graph([[0, 1], [1, 2], [3, 4], [4, 5], [4, 6]], 7, [scale, scale, 1.0, 2.0, 5.0])
    walks = random_walks(graph, 8000, 2, seed=0)
    shares = np.stack([np.bincount(steps, minlength=7) for steps in walks[:, :, 1]]) / 8000
    expected = transition_matrix(graph).toarray()
    assert np.abs(shares - expected).max() < 5 * np.sqrt(0.25 / 8000)
    assert (shares[expected == 0] == 0).all()


class WithFunction(GraphDiffusion):
    """As subclasses had it that gave a function of the operator."""

    def spectral_function(self, library, x, time):
        return library.exp(-time * x)


EDGE = [[0, 1]]
ONE_WAY = np.array([[0.0, 1e12, 1.0], [1e12, 0.0, 0.0], [0.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GraphDiffusion([[0, 5]], num_nodes=3), "num_nodes"),
        (lambda: GraphDiffusion(EDGE, [-1.0]), "positive"),
        (lambda: GraphDiffusion("graph"), "integer array of edges"),
        (lambda: GraphDiffusion(scipy.sparse.csr_array([[0, 1], [0, 0]])), "symmetric"),
        # the other way of an edge is missing beside much larger weights
        (lambda: GraphDiffusion(scipy.sparse.csr_array(ONE_WAY)), "symmetric"),
        (lambda: GraphDiffusion(EDGE, operator="signless"), "operator"),
        (lambda: GraphDiffusion(EDGE, function="wave"), "function"),
        (lambda: GraphDiffusion(EDGE, function="resolvent"), "no resolvents"),
        (lambda: WithFunction(EDGE), "of your own"),
        (lambda: GraphDiffusion(EDGE, initial_time=0.0), "initial_time"),
        (lambda: GraphDiffusion(EDGE, max_time=0.5), "max_time"),
        (lambda: GraphDiffusion(EDGE, tolerance=0.0), "tolerance"),
        (lambda: GraphDiffusion(EDGE, initial_time=1e9), "2000 terms"),
        (lambda: GraphDiffusion(), "spectral_bound"),
        (
            lambda: GraphDiffusion(operator="normalized_laplacian", spectral_bound=1.9),
            "as large as 2",
        ),
        (lambda: Hypercube(-1.0), "initial_time"),
        (lambda: Hypercube(dimension=-1), "dimension"),
        (lambda: Hypercube().apply(np.ones((1, 6, 1, 1), "float32")), "2\\^d"),
        (lambda: RandomWalk(EDGE, walks=[[[0]]]), "Leave one of them out"),
        (lambda: RandomWalk(exact=True), "needs a graph"),
        (lambda: RandomWalk(EDGE, num_walks=0), "num_walks"),
        (lambda: RandomWalk(EDGE, exact=True, num_walks=9), "Received: num_walks, with"),
        (lambda: RandomWalk(num_walks=9), "Received: num_walks, with"),
        (lambda: RandomWalk(walks=[[[0]]], walk_length=1), "Received: walk_length, with"),
        (lambda: RandomWalk(walks=[[[3]]]), "walks"),
        (lambda: RandomWalk(EDGE, decay=-1.0), "decay"),
    ],
)
def test_wrong_graphs_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
