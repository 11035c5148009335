"""Empty signals, unknown lengths, one-way graphs, and numbers that would overflow."""

import networkx
import numpy as np
import pytest
import scipy.sparse
from keras import ops

from keras_graphattn.masks import GraphDiffusion, Hypercube, RandomWalk, Tree
from tests.masks.registry import CASES, EVERY, HEADS
from tests.numerics import BACKEND, to_numpy


@pytest.mark.parametrize(("name", "k"), EVERY)
def test_an_empty_batch_gives_an_empty_batch(name, k):
    case = CASES[name][k](np.random.default_rng(0), 12)
    shared = name == "Entries" and case.batch == 1  # one matrix for all examples
    inputs = {key: given if shared else given[:0] for key, given in case.inputs.items()}
    x = np.zeros((0, case.length, HEADS, 3), "float32")
    features = np.zeros((0, case.length, HEADS, 2), "float32")
    for path in ("auto", *case.mask.paths):
        assert tuple(case.mask.apply(x, path, **inputs).shape) == x.shape
        found = case.mask.attend(features, features, x, path, **inputs)
        assert tuple(found.shape) == x.shape


@pytest.mark.parametrize("name", ["Causal", "Exponential", "Toeplitz", "LowRank", "Segments"])
def test_no_tokens_give_no_tokens(name):
    mask = CASES[name][0](np.random.default_rng(0), 12).mask
    inputs = {"segment_ids": np.zeros((2, 0), "int32")} if name == "Segments" else {}
    x = np.zeros((2, 0, HEADS, 3), "float32")
    for path in mask.paths:
        assert tuple(mask.apply(x, path, **inputs).shape) == x.shape
        assert tuple(mask.attend(x, x, x, path, **inputs).shape) == x.shape
    assert tuple(mask.dense(0, **inputs).shape)[2:] == (0, 0)


def test_no_tokens_are_refused_by_masks_of_fixed_size():
    x = np.zeros((2, 0, 1, 3), "float32")
    for mask in (Hypercube(), Tree([-1, 0]), GraphDiffusion([[0, 1]])):
        with pytest.raises(ValueError, match="length=0"):
            mask.apply(x)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a trace with an unknown length")
def test_a_hypercube_of_unknown_length():
    import tensorflow as tf

    x = np.random.default_rng(0).standard_normal((1, 8, 1, 2)).astype("float32")
    signature = [tf.TensorSpec((None, None, 1, 2), "float32")]
    mask = Hypercube(dimension=3)
    mask.build(x.shape)
    for path in mask.paths:
        found = tf.function(lambda x, path=path: mask.apply(x, path), signature)(x)
        np.testing.assert_allclose(to_numpy(found), to_numpy(mask.apply(x, path)), rtol=1e-6)
    with pytest.raises(ValueError, match="give `dimension`"):
        tf.function(lambda x: Hypercube().apply(x), signature)(x)


@pytest.mark.parametrize("path", ["series", "dense"])
def test_a_normalised_laplacian_is_the_same_for_all_multiples_of_the_weights(path):
    mask = GraphDiffusion(edge_weights=True, operator="normalized_laplacian")
    x, weights = np.eye(3, dtype="float32")[None, :, None], np.array([[1.0, 0.5]], "float32")
    inputs = {"edges": np.array([[[0, 1], [1, 2]]])}
    mask.build(x.shape)
    expected = to_numpy(mask.apply(x, path, **inputs, edge_weights=weights))
    for factor in (3e-38, 1e-20, 1e20, 1e38, 3e38):
        found = mask.apply(x, path, **inputs, edge_weights=(factor * weights).astype("float32"))
        np.testing.assert_allclose(to_numpy(found), expected, rtol=1e-5, err_msg=f"{factor}")


@pytest.mark.parametrize("make", [GraphDiffusion, RandomWalk, Tree])
def test_one_way_graphs_are_refused(make):
    graph = networkx.DiGraph([("a", "b"), ("b", "c")])
    with pytest.raises(ValueError, match="none back"):
        make(graph)
    both = networkx.DiGraph([("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")])
    for mask in (make(both), make(graph.to_undirected())):
        mask.build((None, 3, 1, 1))
        assert (to_numpy(mask.dense()) > 0.0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tree(np.arange(50) - 1, initial_rate=2.0), "overflows"),
        (lambda: Tree([-1, 0], initial_offset=90.0), "overflows"),
        (lambda: Tree(np.arange(50) - 1, initial_rate=2.0, initial_offset=-90.0), "overflows"),
        (lambda: RandomWalk([[0, 1], [1, 2]], decay=1e12, learn_decay=True), "decay"),
        (lambda: RandomWalk([[0, 1], [1, 2]], normalization=500.0), "normalization"),
        (lambda: GraphDiffusion(scipy.sparse.csr_array((0, 0))), "at least one node"),
        (lambda: RandomWalk(networkx.Graph([(0, 1, {"weight": "x"})])), "must be numbers"),
    ],
)
def test_numbers_that_overflow_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make().build((None, 3, 1, 1))


PAIRS = [[0, 1], [1, 2]]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: RandomWalk(edge_weights=[1.0, 2.0]), "edge_weights, with graph=None"),
        (lambda: RandomWalk(num_nodes=3), "num_nodes, with graph=None"),
        (lambda: RandomWalk(walks=[[[0, 1]], [[1, 0]]], num_nodes=2, seed=1), "num_nodes and seed"),
        (lambda: RandomWalk(halt_probability=0.1), "halt_probability, with graph=None"),
        (lambda: RandomWalk(PAIRS, exact=True, seed=1), "seed, with graph=a graph"),
        (lambda: GraphDiffusion(num_nodes=3), "num_nodes=3, with graph=None"),
        (lambda: GraphDiffusion(PAIRS, spectral_bound=4.0), "spectral_bound=4.0, with a graph"),
    ],
)
def test_options_without_effect_are_refused(make, names):
    with pytest.raises(ValueError, match=f"Received: {names}"):
        make()


def test_times_that_overflow_are_refused():
    edges = [(0, node) for node in range(1, 60)]
    with pytest.raises(ValueError, match="too large for float32"):
        GraphDiffusion(edges, operator="adjacency", initial_time=9.0)


def test_empty_edges_at_a_call():
    mask = GraphDiffusion(operator="normalized_laplacian")
    x = np.random.default_rng(0).standard_normal((2, 5, 1, 2)).astype("float32")
    found = mask.apply(x, edges=np.zeros((2, 0, 2), "int32"))
    np.testing.assert_allclose(to_numpy(found), x, rtol=1e-5)
    assert ops.shape(found) == (2, 5, 1, 2)
