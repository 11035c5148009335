"""EdgeAttention: how edges are given, wrong edges, and its expander."""

import keras
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
from keras import ops

from keras_graphattn.graphs import Graph
from keras_graphattn.layers import EdgeAttention
from keras_graphattn.masks.graphs.expander import cycles_of_seed, random_cycles
from keras_graphattn.operators import EdgeOperator
from tests.call_inputs import BAD, BATCH, LENGTH, WRONG
from tests.layers.capabilities import chain
from tests.layers.twins import EDGES, FEATURES, built, tokens
from tests.numerics import (
    BACKEND,
    assert_all_close,
    assert_close,
    differentiated,
    randomise,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)
from tests.tensor_sizes import largest_tensor

pytestmark = pytest.mark.slow_on("jax")

TOKENS = np.random.default_rng(0).standard_normal((BATCH, LENGTH, 5)).astype("float32")
OTHERS = [example for example in range(BATCH) if example != BAD]
RIGHT = {
    "edges": np.repeat([[[0, 1], [1, 2], [5, 2], [4, 6], [6, 0], [-1, -1]]], BATCH, 0),
    "edge_features": np.random.default_rng(1).normal(size=(BATCH, 6, 2)).astype("float32"),
}
RIGHT["edge_features"][:, -1] = np.nan  # of padding


def _features_apart(inputs):
    inputs["edges"][BAD, 3] = [1, 0]


WRONG_INPUTS = {
    **WRONG["edges"],
    "features apart": (_features_apart, r"edges 0 and 3 both join nodes 0 and 1, with the feat"),
    "infinite": (
        lambda inputs: inputs["edge_features"].__setitem__((BAD, 2, 1), np.inf),
        "feature 1 of edge 2 is inf",
    ),
}


def made(**options):
    """A layer whose weights are the same for all forms of its edges."""
    keras.utils.set_random_seed(0)
    return built(lambda: EdgeAttention(2, 3, **options))


def wrong(kind):
    inputs = {name: array.copy() for name, array in RIGHT.items()}
    WRONG_INPUTS[kind][0](inputs)
    return inputs


def layer_of_calls(**options):
    layer = EdgeAttention(2, 3, edge_dim=2, filter="first_order", **options)
    layer.build((None, LENGTH, 5))
    randomise(layer)
    return layer


@pytest.mark.parametrize("kind", WRONG_INPUTS)
def test_wrong_edges_of_a_call(kind):
    with pytest.raises(ValueError, match=rf"of example {BAD}.*{WRONG_INPUTS[kind][1]}"):
        layer_of_calls()(TOKENS, mask_inputs=wrong(kind))


def test_wrong_edges_in_a_compiled_model(monkeypatch):
    if BACKEND == "torch":  # its models are not compiled: values are kept from their eyes
        monkeypatch.setattr("keras_graphattn.masks.inputs.known_value", lambda given: None)
    model = chain([layer_of_calls()], RIGHT, TOKENS.shape)
    outputs = model.predict({"tokens": TOKENS, **RIGHT}, verbose=0)
    assert_close(outputs, to_numpy(model.layers[-1](TOKENS, mask_inputs=RIGHT)), 1e-6)
    for kind in WRONG_INPUTS:
        found = model.predict({"tokens": TOKENS, **wrong(kind)}, verbose=0)
        assert np.isnan(found[BAD]).all(), kind
        np.testing.assert_array_equal(found[OTHERS], outputs[OTHERS], kind)


def test_an_edge_counts_once():
    layer, again = (
        layer_of_calls(),
        {name: x[:, [3, 1, 0, 2, 4, 1, 5]] for name, x in RIGHT.items()},
    )
    again["edges"][:, [0, 5]] = again["edges"][:, [0, 5], ::-1]
    expected = to_numpy(layer(TOKENS, mask_inputs=RIGHT))
    assert_close(to_numpy(layer(TOKENS, mask_inputs=again)), expected, 1e-6)


MATRIX = scipy.sparse.coo_array((np.ones(len(EDGES)), EDGES.T), shape=(16, 16))
FORMS = {
    "array": {"graph": EDGES, "num_nodes": 16},
    "both directions": {"graph": [*EDGES, *EDGES[:, ::-1]], "num_nodes": 16},
    "matrix": {"graph": scipy.sparse.csr_array(MATRIX + MATRIX.T)},
    "Graph": {"graph": Graph(EDGES, num_nodes=16)},
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_a_graph(name):
    def outputs(call, **options):
        options |= {"expander_degree": 4, "seed": 2}
        return to_numpy(made(**options)(tokens(), **call))

    expected = outputs({"mask_inputs": {"edges": np.stack([EDGES, EDGES])}})
    assert_close(outputs({}, **FORMS[name]), expected, 1e-6)


def test_other_numbers_of_nodes_than_the_graph():
    """They are an error where the number is known, and else NaN: only TensorFlow runs such code."""
    model = chain([made(graph=EDGES, num_nodes=16)], {}, (None, None, 6))
    if BACKEND == "tensorflow":
        assert np.isfinite(model.predict({"tokens": tokens()}, verbose=0)).all()
        assert np.isnan(model.predict({"tokens": tokens(9)}, verbose=0)).all()
        return
    with pytest.raises(ValueError, match="has 16 nodes, one for each token"):
        model.predict({"tokens": tokens(9)}, verbose=0)


def test_features_of_a_graph_are_its_own():
    order = np.random.default_rng(0).permutation(len(EDGES))
    graph = Graph(EDGES[order], edge_features=FEATURES[order], num_nodes=16)
    one = made(graph=graph)
    other = made(graph=EDGES, num_nodes=16, edge_features=FEATURES)
    assert_close(to_numpy(one(tokens())), to_numpy(other(tokens())), 1e-6)


def test_padding_does_not_change_the_expander():
    layer = made(expander_degree=4, num_virtual_nodes=1, seed=1)
    inside = EDGES[(EDGES < 11).all(axis=1)]
    inputs = {"edges": np.stack([inside, inside])}
    shorter = to_numpy(layer(tokens()[:, :11], mask_inputs=inputs))
    seen = np.repeat(np.arange(16)[None] < 11, 2, axis=0)
    longer = to_numpy(layer(tokens(), mask_inputs=inputs, query_mask=seen))
    assert_close(longer[:, :11], shorter, 1e-6)


@pytest.mark.parametrize("length", [2, 3, 100, 2000])
def test_random_cycles_are_an_expander(length):
    """Regular, and the second eigenvalue is near the least possible, 2 sqrt(d - 1)."""
    edges = ops.convert_to_numpy(random_cycles(cycles_of_seed(2, 7), length))[0]
    counts = scipy.sparse.coo_array((np.ones(len(edges)), edges.T), shape=(length, length))
    assert (counts.sum(axis=0) == 4).all()
    assert (counts != counts.T).nnz == 0
    assert not counts.diagonal().any()
    if length > 3:
        values = scipy.sparse.linalg.eigsh(counts, 2, which="LA", return_eigenvectors=False)
        assert min(values) < 2 * 3**0.5 * 1.05


def test_distant_nodes_reach_each_other():
    """Along a path of 40 nodes, the first token moves the last by an expander or virtual node."""
    path = [[node, node + 1] for node in range(39)]
    x = np.random.default_rng(0).standard_normal((1, 40, 6)).astype("float32")

    def moved(**options):
        layer = made(graph=path, seed=0, **options)
        _, gradients = differentiated(lambda x: layer(x)[:, -1])(x)
        return np.abs(gradients[0][0, 0]).max()

    assert moved() == moved(filter="chebyshev") == 0.0
    assert moved(num_virtual_nodes=1) > 0.0
    assert moved(expander_degree=4, filter="monomial", order=8) > 0.0


@pytest.mark.parametrize("size", [1.0, 1e15])
def test_weights_of_edges_are_factors_of_the_exponentials(size):
    generator, length = np.random.default_rng(0), 5
    query, key, x = generator.normal(size=(3, 2, length, 3, 4)).astype("float32")
    edges = np.stack([np.argwhere(generator.random((length, length)) < 0.6)[:9] for _ in range(2)])
    weights = size * generator.uniform(0.1, 2.0, edges.shape[:2]).astype("float32")
    padded = np.pad(edges, ((0, 0), (0, 1), (0, 0)), constant_values=-1)
    unread = np.pad(weights, ((0, 0), (0, 1)), constant_values=np.nan)

    def outputs(query, key, x, weights):
        operator = EdgeOperator(query, key, padded, edge_weights=weights)
        return operator.finished(operator(x))

    def naive(query, key, x, weights):
        matrix = torch.zeros((2, length, length), dtype=torch.float64)
        for example, edge in np.ndindex(2, edges.shape[1]):
            source, target = edges[example, edge]
            matrix[example, target, source] = weights[example, edge]
        scores = torch.einsum("btnh,bsnh->bnts", query, key) / 2.0
        matrix = matrix[:, None] * torch.exp(scores)
        matrix = matrix / torch.clip(matrix.sum(-1, keepdim=True), min=1e-30)
        return torch.einsum("bnts,bsnh->btnh", matrix, x)

    value, gradients = value_and_gradients(outputs, query, key, x, unread)
    expected, expected_gradients = reference_value_and_gradients(naive, query, key, x, weights)
    assert_close(value, expected, 1e-5)
    np.testing.assert_array_equal(gradients[3][:, -1], 0.0)
    gradients[3], expected_gradients[3] = gradients[3][:, :-1] * size, expected_gradients[3] * size
    assert_all_close(gradients, expected_gradients, 1e-5)


@pytest.mark.skipif(BACKEND == "tensorflow", reason="tensors are counted on jax and torch")
def test_no_tensor_is_larger_than_the_edges():
    length, heads, size = 300, 2, 4
    path = np.stack([np.arange(length - 1), np.arange(1, length)], axis=1)
    edges = ops.convert_to_tensor(np.concatenate([path, path[:, ::-1]])[None].astype("int32"))

    def function(query, key, x):
        operator = EdgeOperator(query, key, edges)
        return operator(operator(x))

    x = np.ones((1, length, heads, size), "float32")
    assert largest_tensor(function, [x, x, x]) <= edges.shape[1] * heads * size
