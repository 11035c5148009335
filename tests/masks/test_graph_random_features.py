"""Graph random features estimate their series without bias, and hide what no walks join."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_graphattn.layers import GraphKernelAttention, MaskedKernelAttention
from keras_graphattn.masks import GraphRandomFeatures
from keras_graphattn.masks.graphs.edges import read_graph
from keras_graphattn.masks.graphs.random_features import (
    loads_of_walks,
    modulation_of_series,
    read_modulation,
)
from keras_graphattn.masks.graphs.walks import features_of_loads
from keras_graphattn.ops import graph_random_features, random_walks
from tests.numerics import assert_close, to_numpy

COUNT = 8  # nodes 6 and 7 are another component
EDGES = [[0, 1], [1, 2], [2, 0], [2, 3], [3, 4], [4, 5], [5, 1], [6, 7]]
WEIGHTS = [0.3, 1.0, 2.5, 0.7, 1.4, 0.2, 3.0, 0.9]
GRAPH = read_graph(EDGES, COUNT, WEIGHTS)
FUNCTIONS = {  # of W, the strength and the length of the walks
    "diffusion": lambda x, s, length: np.exp(s * (x - 1.0)),
    "regularized_laplacian": lambda x, s, length: 1.0 / (1.0 + s - s * x),
    "random_walk": lambda x, s, length: (1.0 - s + s * x) ** (2 * length - 2),
}
STRENGTH = {"normalized_adjacency": 0.8, "adjacency": 0.15}


def matrix_of(operator):
    """W, from the edges."""
    found = np.zeros((COUNT, COUNT))
    for (u, v), weight in zip(EDGES, WEIGHTS, strict=True):
        found[u, v] = found[v, u] = weight
    degrees = found.sum(axis=1)
    return found / np.sqrt(np.outer(degrees, degrees)) if operator[0] == "n" else found


def function_of(symmetric, function):
    """f(W) by its eigenvalues."""
    values, vectors = np.linalg.eigh(symmetric)
    return (vectors * function(values)) @ vectors.T


def drawn_steps(seeds, walks, length, **options):
    """F_k and G_k of these seeds: (2, seeds, L, n, n)."""
    drawn = [graph_random_features(GRAPH, walks, length, seed, **options) for seed in seeds]
    return np.array(
        [[[step.toarray() for step in f.steps] for f in side] for side in zip(*drawn, strict=True)]
    )


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("operator", STRENGTH)
def test_estimates_have_no_bias(operator):
    """Two walks only: with one set of walks for both sides, the diagonal would be too large."""
    strength, exact = STRENGTH[operator], matrix_of(operator)
    steps = drawn_steps(range(200), 2, 12, halt_probability=0.25, operator=operator)
    for name, function in FUNCTIONS.items():
        modulation = read_modulation(name, strength, 12).start[:, 0]
        left, right = np.einsum("k,askvi->asvi", modulation, steps)
        found = left @ right.swapaxes(1, 2)
        truth = function_of(exact, lambda x, f=function: f(x, strength, 12))
        for statistic in (lambda m: np.trace(m, axis1=-2, axis2=-1), lambda m: m.sum((-2, -1))):
            drawn = statistic(found)
            error = drawn.mean() - statistic(truth)
            assert abs(error) < 3.0 * drawn.std() / np.sqrt(len(drawn)), name
        assert not found[:, :6, 6:].any()


@pytest.mark.slow_on("jax", "tensorflow")
def test_the_variance_falls_as_the_number_of_walks():
    spread = []
    for number in (40, 160):
        left, right = drawn_steps(range(40), number, 5).sum(axis=2)
        spread.append(np.var(left @ right.swapaxes(1, 2), axis=0).mean())
    assert 3.0 < spread[0] / spread[1] < 5.5


@pytest.mark.slow_on("jax", "tensorflow")
@settings(max_examples=20)
@given(st.lists(st.floats(-2.0, 2.0), max_size=6), st.floats(0.1, 3.0))
def test_the_modulation_squared_is_the_series(others, first):
    series = [first, *others]
    found = modulation_of_series(np.array(series))
    product = np.convolve(found, found)[: len(series)]
    np.testing.assert_allclose(product, series, atol=1e-9 * (1.0 + np.abs(found).max()) ** 2)


@pytest.mark.parametrize("strength", [0.3, [0.1, 0.9]])
def test_named_starts(strength):
    x, each = np.linspace(-1.0, 1.0, 5), np.atleast_1d(strength)
    for name, function in FUNCTIONS.items():
        start = read_modulation(name, strength, 30).start
        assert start.shape == (30, len(each))
        for column, s in zip(start.T, each, strict=True):
            found = np.polyval(column[::-1], x) ** 2
            np.testing.assert_allclose(found, function(x, s, 30), atol=1e-8)


def test_other_names_of_the_nodes_permute_the_features():
    walks = random_walks(GRAPH, 3, 4, seed=2, halt_probability=0.2)
    order = np.random.default_rng(0).permutation(COUNT)  # the new name of each node
    place = np.argsort(order)
    renamed = np.where(walks >= 0, order[walks], -1)[place]
    graph = scipy.sparse.csr_array(GRAPH.toarray()[np.ix_(place, place)])
    for operator in STRENGTH:
        before, after = (
            features_of_loads(drawn, loads_of_walks(of, drawn, 0.2, operator))
            for of, drawn in ((GRAPH, walks), (graph, renamed))
        )
        for one, other in zip(before.steps, after.steps, strict=True):
            expected = one.toarray()[np.ix_(place, place)]
            np.testing.assert_allclose(other.toarray(), expected, rtol=1e-12)


@pytest.mark.slow_on("jax", "tensorflow")
def test_walks_halt_with_their_probability():
    walks = random_walks(GRAPH, 2000, 5, seed=0, halt_probability=0.3)
    going = (walks >= 0).mean(axis=(0, 1))
    np.testing.assert_allclose(going, 0.7 ** np.arange(5), atol=0.02)
    ended = np.diff((walks >= 0).astype(int), axis=2)
    assert (ended <= 0).all()  # no walk goes on after its end


@pytest.mark.slow_on("jax", "tensorflow")
def test_a_modulation_that_is_not_learned_is_the_start_of_a_learned_one():
    x = np.random.default_rng(0).standard_normal((2, COUNT, 2, 3)).astype("float32")
    for strength in (0.7, [0.7, 1.5]):
        learned, fixed = (
            GraphRandomFeatures(
                EDGES, WEIGHTS, COUNT, strength=strength, learn_modulation=learn, seed=0
            )
            for learn in (True, False)
        )
        for path in learned.paths:
            assert_close(to_numpy(fixed.apply(x, path)), to_numpy(learned.apply(x, path)), 1e-6)
        assert fixed.trainable_variables == []


@pytest.mark.slow_on("jax", "tensorflow")
def test_pairs_whose_walks_do_not_meet_are_unseen():
    """One short walk from each node leaves pairs of one component without a meeting."""
    mask = GraphRandomFeatures(EDGES, WEIGHTS, COUNT, num_walks=1, walk_length=2, seed=1)
    layer = GraphKernelAttention(2, 4, mask=mask)
    x = np.random.default_rng(1).standard_normal((1, COUNT, 6)).astype("float32")
    _, found = layer(x, return_attention_scores=True)
    meet = to_numpy(mask.dense()) > 0.0
    assert not meet[:, :, :6, :6].all()
    assert meet[:, :, np.arange(COUNT), np.arange(COUNT)].all()
    np.testing.assert_array_equal(to_numpy(found) > 0.0, meet)
    assert_close(to_numpy(found).sum(axis=-1), np.ones((1, 2, COUNT)), 1e-6)
    kernel = MaskedKernelAttention(2, 4, mask=type(mask).from_config(mask.get_config()))
    _, found = kernel(x, return_attention_scores=True)
    assert not to_numpy(found)[~meet].any()


def test_series_with_negative_coefficients_are_products_only():
    features = GraphRandomFeatures(EDGES, WEIGHTS, COUNT, num_walks=4000, walk_length=2, seed=3)
    x = ops.eye(COUNT)[:, None]
    modulation = ops.convert_to_tensor([[1.0], [-0.5]])
    found = features._right.transposed_product(x, modulation)
    found = features._left.product(found, modulation)
    right = function_of(matrix_of("normalized_adjacency"), lambda x: (1.0 - 0.5 * x) ** 2)
    assert np.abs(to_numpy(found)[:, 0] - right).max() < 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graph": None}, "GraphDiffusion"),
        ({"series": "heat"}, "series"),
        ({"series": [1.0, 1.0, 0.0]}, "no negative factors"),
        ({"series": [0.0, 1.0]}, "first coefficient of `series` must be positive"),
        ({"series": [1.0, 1.0], "strength": 2.0}, "Leave `strength`"),
        ({"series": [1.0, 1.0], "walk_length": 3}, "Leave `strength`"),
        ({"series": "random_walk", "strength": 1.0}, "below 1"),
        ({"strength": -1.0}, "strength"),
        ({"strength": 200.0}, "smaller `strength`"),
        ({"halt_probability": 1.0}, "halt_probability"),
        ({"num_walks": 0}, "num_walks"),
        ({"operator": "laplacian"}, "operator"),
        ({"strength": [0.1, 0.2, 0.3]}, "for all 2 heads"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GraphRandomFeatures(**{"graph": EDGES} | options).build((None, COUNT, 2, 3))


def test_rows_of_a_large_graph_are_those_of_the_matrix_and_not_of_its_transpose(monkeypatch):
    mask = GraphRandomFeatures(EDGES, WEIGHTS, COUNT, num_walks=2)
    mask.build((None, COUNT, 2, 3))
    dense = to_numpy(mask.dense())
    assert np.abs(dense - dense.swapaxes(2, 3)).max() > 0.01
    monkeypatch.setattr("keras_graphattn.masks.mask.ROWS_FROM_MATRIX", 3)
    assert_close(to_numpy(mask.rows(ops.arange(3))), dense[:, :, :3], 1e-6)
