"""A right call of every public function of `keras_graphattn.ops`, to be made wrong."""

import numpy as np

from keras_graphattn import ops
from keras_graphattn.graphs import Graph
from keras_graphattn.masks.trees.forest import forest_distances
from keras_graphattn.operators.singular_causal import RunningSum, empty_running_sum

B, T, S, N, H, D, C = 2, 4, 3, 2, 4, 3, 2
STEPS = ops.recurrence("monomial", 2)
FOREST = ops.forest_from_parents([-1, 0, 0, 1])
GRAPH = Graph([[0, 1], [1, 2], [2, 3]]).adjacency()


def normal(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


def boolean(*shape):
    return np.random.default_rng(1).random(shape) > 0.3


def queries(t=T, s=T, b=B):
    return {"query": normal(b, t, N, H), "key": normal(b, s, N, H)}


def mask_of_all():
    return ops.Visibility(boolean(B, N, T, T), boolean(B, T), boolean(B, T), True, 3)


def halved(x):
    return 0.5 * x


TREE = {"x": normal(4, N, C)}
DECAY = {"rates": np.abs(normal(N, 2)), "weights": normal(N, 2)}
CHUNKED = {
    "key": normal(B, T, N, C),
    "x": normal(B, T, N, D),
    "decay": ops.Decay(**DECAY),
    "segment_ids": np.array([[0, 0, 1, 1], [1, 1, 1, -1]]),
}
KERNEL = {"left": normal(B, T, N, H), "logits": normal(B, T, N, H), "values": normal(B, T, N, D)}

# What makes the call that a test changes, where that is not the function itself
CALLS = {
    "Visibility": lambda **kw: ops.p_laplacian_attention(
        **queries(), values=normal(B, T, N, D), p=[1.5, 2.5], mask=ops.Visibility(**kw)
    ),
    "Decay": lambda **kw: ops.chunked_attention(
        **{**CHUNKED, "decay": ops.Decay(**kw)}, query=normal(B, T, N, C), causal=True
    ),
    "Forest": lambda **kw: forest_distances(ops.Forest(**kw)),
    "causal_singular_value_attention, state": lambda **kw: ops.causal_singular_value_attention(
        **KERNEL, state=RunningSum(**kw)
    ),
    "graph_random_features": lambda **kw: ops.graph_random_features(**kw)[0].steps[0],
}
# Right arguments by name
ARGUMENTS = {
    "Visibility": mask_of_all()._asdict(),
    "Decay": DECAY,
    "Forest": {"parents": np.array([-1, 0, 1]), "edge_weights": np.ones(3)},
    "causal_singular_value_attention, state": {
        "maximum": normal(B, N, H),
        "normaliser": np.abs(normal(B, N, H)),
        "context": normal(B, N, H, D),
    },
    "additive_scores": {
        **queries(T, S),
        "query_vector": normal(N, H),
        "key_vector": normal(N, H),
        "negative_slope": 0.1,
    },
    "kernel_of_steps": {
        "steps": np.abs(normal(B, N, T, T)),
        "decay": np.ones(N, "float32"),
        "length": 3,
        "normalization": 1.0,
    },
    "attention_matrix": {**queries(T, S), "mask": boolean(B, N, T, S), "scale": 0.5},
    "causal_singular_value_attention": {
        **KERNEL,
        "mask": boolean(B, T),
        "state": empty_running_sum(B, N, H, D),
        "chunk_size": 2,
    },
    "chunked_attention": {**CHUNKED, "query": normal(B, T, N, C), "causal": True, "chunk_size": 2},
    "exponential_tree_product": {
        **TREE,
        "rate": normal(N),
        "offset": normal(N),
        "forest": FOREST,
        "path": "scan",
    },
    "first_order_filter": {
        "apply": halved,
        "values": normal(B, T, N, D),
        **{name: normal(N, 1) for name in ("identity", "linear", "power")},
        "order": 3,
    },
    "forest_from_graph": {
        "graph": np.array([[0, 1], [1, 2]]),
        "num_nodes": 4,
        "edge_weights": [1.0, 2.0],
    },
    "forest_from_parents": {"parents": np.array([-1, 0, 1]), "edge_weights": np.ones(3)},
    "graph_random_features": {
        "adjacency": GRAPH,
        "walks": 2,
        "length": 2,
        "seed": 0,
        "halt_probability": 0.5,
        "operator": "adjacency",
    },
    "hypercube_product": {"x": normal(B, 4, N, D), "time": normal(N)},
    "orthogonality_penalty": {
        "vectors": normal(B, T, N, H),
        "mask": boolean(B, T),
        "scaling": "mean",
    },
    "p_laplacian_attention": {
        **queries(),
        "values": normal(B, T, N, D),
        "p": [1.5, 2.5],
        "mask": mask_of_all(),
        "epsilon": 0.1,
        "drop_diagonal": True,
        "scale": 0.5,
        "block_size": 2,
    },
    "polynomial_filter": {
        "apply": halved,
        "values": normal(B, T, N, D),
        "coefficients": normal(3, N, 1),
        "steps": STEPS,
    },
    "random_walks": {
        "adjacency": GRAPH,
        "walks": 2,
        "length": 2,
        "seed": 0,
        "halt_probability": 0.5,
    },
    "recurrence": {"basis": "jacobi", "order": 2, "alpha": 0.5, "beta": 0.5},
    "singular_value_attention": {
        "left": normal(B, T, N, H),
        "right": normal(B, S, N, H),
        "values": normal(B, S, N, D),
    },
    "table_tree_product": {**TREE, "table": normal(4, N), "forest": FOREST, "path": "centroids"},
    "toeplitz_product": {"table": normal(N, 3, 3), "x": normal(B, 4, N, D), "grid_shape": [2, 2]},
    "unmasked_attention": {
        "query": normal(B, T, N, C),
        "key": normal(B, S, N, C),
        "x": normal(B, S, N, D),
    },
}
CASES = {name: (CALLS.get(name) or getattr(ops, name), right) for name, right in ARGUMENTS.items()}
