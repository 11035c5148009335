"""What the wide fuzz tests, and lists of odd values for every option, once found."""

import keras
import numpy as np
import pytest
import scipy.sparse

from keras_graphattn import feature_maps, filters, graphs, layers, masks, ops
from tests.fuzz.attacks import REFUSALS, names_argument
from tests.fuzz.cases_of_classes import GRAPH, SIGNAL, WIDTH, B, T

HUGE, TOO_LARGE_FOR_A_FLOAT = 10**30, 10**400
PAIR, ODD_PAIR, RAGGED = np.array([1, 2]), np.array([None, 1.0]), [[1.0], [1.0, 2.0]]
TOKENS = np.ones((B, T, WIDTH), "float32")
RIGHT = {"num_heads": 2, "key_dim": 3}
LOOPS = scipy.sparse.eye_array(4)
OPTIONS = [
    ("GraphFilterAttention", "attention_axes", PAIR, {}),
    ("GraphFilterAttention", "attention_axes", HUGE, {}),
    ("GraphFilterAttention", "attention_axes", [None], {}),
    ("GraphFilterAttention", "attention_axes", [], {}),
    ("GraphFilterAttention", "attention_axes", 2, {}),
    ("GraphFilterAttention", "attention_axes", [1, 1], {}),
    ("GraphFilterAttention", "attention_axes", 7, {}),
    ("GraphFilterAttention", "sliding_window", HUGE, {}),
    ("GraphFilterAttention", "block_size", HUGE, {}),
    ("Jacobi", "alpha", PAIR, {}),
    ("Jacobi", "beta", TOO_LARGE_FOR_A_FLOAT, {}),
    ("FirstOrder", "initial_coefficients", {"linear": TOO_LARGE_FOR_A_FLOAT}, {}),
    ("Monomial", "initial_coefficients", b"wron", {}),
    ("Monomial", "initial_coefficients", list("1234"), {}),
    ("PageRank", "restart", 1.0, {}),
    ("ScaledHighFrequencyAttention", "attention_axes", -1, {}),
    ("ScaledHighFrequencyAttention", "dropout", TOO_LARGE_FOR_A_FLOAT, {}),
    ("MaskedKernelAttention", "flash_attention", PAIR, {}),
    ("Favor", "num_features", HUGE, {}),
    ("MaskedKernelAttention", "feature_chunk", HUGE, {}),
    ("PLaplacianAttention", "p", b"ab", {}),
    ("PLaplacianAttention", "p", TOO_LARGE_FOR_A_FLOAT, {}),
    ("PLaplacianAttention", "epsilon", TOO_LARGE_FOR_A_FLOAT, {}),
    ("AttentiveGraphFilter", "orthogonality_weight", TOO_LARGE_FOR_A_FLOAT, {}),
    ("AttentiveGraphFilter", "orthogonality_weight", float("inf"), {}),
    ("BlockToeplitz", "form", ODD_PAIR, {"grid_shape": (2, 2)}),
    ("BlockToeplitz", "grid_shape", b"wrong", {}),
    ("BlockToeplitz", "num_prefix_tokens", 2, {"grid_shape": (2, 2)}),
    ("Hypercube", "dimension", 0, {}),
    ("Tree", "forest", RAGGED, {}),
    ("Tree", "forest", ["a", None], {}),
    ("Tree", "forest", [-1, 0], {}),
    ("Tree", "initial_table", 2.0, {"forest": [-1, 0, 0, 1], "function": "table"}),
    ("Tree", "edge_weights", [1.0] * 4, {"forest": [-1, 0, 0, 1], "function": "table"}),
    ("RandomWalk", "walks", RAGGED, {}),
    ("RandomWalk", "walks", [[[0]]], {}),
    ("RandomWalk", "graph", [[0, 1]], {}),
    ("GraphDiffusion", "graph", LOOPS, {}),
    ("GraphDiffusion", "graph", LOOPS * 1j, {}),
    ("GraphDiffusion", "graph", scipy.sparse.coo_array(np.ones(4)), {}),
    ("GraphDiffusion", "num_nodes", PAIR, {"graph": graphs.Graph(GRAPH).adjacency()}),
]


@pytest.mark.parametrize(("name", "option", "wrong", "others"), OPTIONS)
def test_the_option_is_named(name, option, wrong, others):
    def make_and_run():
        if name in layers.__all__:
            getattr(layers, name)(**RIGHT, **others, **{option: wrong})(TOKENS, TOKENS)
        elif name in (*filters.__all__, *feature_maps.__all__):
            getattr(filters if name in filters.__all__ else feature_maps, name)(**{option: wrong})
        else:
            getattr(masks, name)(**others, **{option: wrong}).apply(SIGNAL)

    with pytest.raises(REFUSALS) as refusal:
        make_and_run()
    assert names_argument(refusal.value, option)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="torch refuses to convert it")
def test_a_tensor_that_takes_gradients():
    import torch

    with pytest.raises(REFUSALS, match="`forest`"):
        masks.Tree(torch.nn.Parameter(torch.ones(4)))


def test_a_topology_of_another_length_says_what_to_change():
    with pytest.raises(ValueError, match=r"`forest` of this Tree has 3 nodes.*`parents`"):
        masks.Tree([-1, 0, 0]).apply(SIGNAL)
    with pytest.raises(ValueError, match="`dimension`, or leave it out"):
        masks.Hypercube(dimension=3).apply(SIGNAL)


TREE = ops.forest_from_parents([-1, 0, 0, 1])
NODES, TABLE = np.ones((4, 2, 3), "float32"), np.ones((4, 2), "float32")


@pytest.mark.parametrize("path", ["centroids", "depths"])
def test_a_table_in_double_precision(path):
    expected = keras.ops.convert_to_numpy(ops.table_tree_product(NODES, TABLE, TREE, path))
    table = TABLE.astype("float64")
    product = keras.ops.convert_to_numpy(ops.table_tree_product(NODES, table, TREE, path))
    np.testing.assert_array_equal(product, expected)


def test_times_in_double_precision():
    product = ops.hypercube_product(SIGNAL, np.ones(2))
    expected = ops.hypercube_product(SIGNAL, np.ones(2, "float32"))
    np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (product, expected)))


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("scale", lambda: ops.attention_matrix(SIGNAL, SIGNAL, scale=1e300)),
        ("alpha", lambda: ops.recurrence("jacobi", 2, alpha=1e300)),
        ("beta", lambda: ops.recurrence("jacobi", 2, beta=-1e300)),
        ("epsilon", lambda: layers.PLaplacianAttention(2, 3, epsilon=1e300)),
        ("index", lambda: decoded(np.int64(2**62))),
        ("index", lambda: decoded(4)),
    ],
)
def test_the_argument_is_named(argument, call):
    with pytest.raises(REFUSALS) as refusal:
        call()
    assert names_argument(refusal.value, argument)


def decoded(index):
    layer = layers.GraphFilterAttention(2, 3)
    return layer.decode(np.ones((B, 1, 4), "float32"), layer.get_initial_cache(B, T), index)
