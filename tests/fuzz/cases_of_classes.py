"""Every public layer, mask and bias: right options, a right call of the layer, and its inputs."""

import numpy as np

from keras_graphattn import biases, layers, masks

B, T, N, D, WIDTH = 2, 4, 2, 3, 6
SIGNAL = np.random.default_rng(0).normal(size=(B, T, N, D)).astype("float32")
GRAPH = [[0, 1], [1, 2], [2, 3]]
COMMON = {
    "num_heads": N,
    "key_dim": D,
    "value_dim": 2,
    "dropout": 0.1,
    "use_bias": True,
    "output_shape": 5,
    "kernel_initializer": "glorot_uniform",
    "use_gate": True,
    "seed": 1,
    "coefficient_learning_rate_multiplier": 10.0,
}
FILTER = {"filter": "jacobi", "order": 2}
# The layers that take `inputs` and a `mask`. None of them has weights.
POOLING = ("GraphMaxPooling", "GraphMeanPooling", "GraphSumPooling")
TOKEN_LAYERS = ("ContraNorm", *POOLING)

LAYERS = {
    "AttentiveGraphFilter": {
        **COMMON,
        **FILTER,
        "learned_constant": True,
        "causal": True,
        "vector_activation": "softmax",
        "orthogonality_weight": 0.1,
        "orthogonality_scaling": "mean",
    },
    "ContraNorm": {"scale": 0.5},
    "ContraNormAttention": {**COMMON, "scale": 0.5},
    "DifferentialAttention": {
        **COMMON,
        **FILTER,
        "version": 1,
        "layer_index": 2,
        "attention_path": "dense",
        "block_size": 2,
        "num_key_value_heads": 1,
    },
    "EdgeAttention": {
        **COMMON,
        **FILTER,
        "graph": np.array(GRAPH),
        "num_nodes": 4,
        "edge_features": np.ones((3, 2), "float32"),
        "edge_dim": None,
        "self_loops": True,
        "expander_degree": 2,
        "num_virtual_nodes": 1,
    },
    "GatedDeltaRule": {**COMMON, **FILTER, "convolution": 2},
    "GraphFilterAttention": {
        **COMMON,
        **FILTER,
        "dropout_on": "attention",
        "attention_path": "dense",
        "block_size": 2,
        "num_key_value_heads": 1,
        "bias": "alibi",
    },
    "GraphKernelAttention": {
        **COMMON,
        "mask": masks.RandomWalk(GRAPH),
        "score": "additive",
        "feature_map": None,
        "feature_chunk": None,
        "dynamic_walks": True,
    },
    **{name: {} for name in POOLING},
    "MaskedKernelAttention": {
        **COMMON,
        **FILTER,
        "mask": masks.Causal(),
        "feature_map": "favor",
        "path": "chunked",
        "feature_chunk": 2,
    },
    "PLaplacianAttention": {
        **COMMON,
        "p": [1.5, 2.5],
        "epsilon": 0.1,
        "diagonal": "drop",
        "attention_path": "dense",
        "block_size": 2,
    },
    "ScaledHighFrequencyAttention": COMMON,
}

MASKS = {
    "BlockToeplitz": {"grid_shape": (2, 2), "num_prefix_tokens": 0, "form": "distance"},
    "Causal": {},
    "DistanceTable": {"max_distance": 4},
    "Entries": {},
    "Exponential": {"num_decays": 2, "causal": True, "initial_rates": 0.5},
    "GatedDecay": {"initial_memory": 5.0},
    "GraphDiffusion": {
        "graph": np.array(GRAPH),
        "edge_weights": np.ones(3),
        "num_nodes": 4,
        "operator": "laplacian",
        "function": "heat",
        "initial_time": 0.5,
        "max_time": 2.0,
        "learn_time": True,
        "tolerance": 1e-3,
    },
    "GraphRandomFeatures": {
        "graph": np.array(GRAPH),
        "edge_weights": np.ones(3),
        "num_nodes": 4,
        "series": "diffusion",
        "strength": 0.5,
        "operator": "adjacency",
        "num_walks": 2,
        "walk_length": 3,
        "halt_probability": 0.2,
        "learn_modulation": True,
        "seed": 1,
    },
    "Hypercube": {"initial_time": 0.5, "dimension": 2},
    "ExponentialPositions": {"length": 6, "position_dim": 2, "num_features": 3, "seed": 1},
    "LowRank": {"rank": 2, "length": 6},
    "Product": {"masks": [masks.Causal(), masks.Exponential()]},
    "RandomWalk": {
        "graph": np.array(GRAPH),
        "edge_weights": np.ones(3),
        "num_nodes": 4,
        "num_walks": 2,
        "walk_length": 2,
        "halt_probability": 0.2,
        "decay": 0.5,
        "learn_decay": True,
        "normalization": 1.0,
        "seed": 1,
    },
    "Segments": {},
    "StochasticPositions": {"num_frequencies": 2, "trainable_frequencies": True, "seed": 1},
    "Toeplitz": {"max_length": 6, "causal": True, "initial_slopes": 0.5},
    "Tree": {
        "forest": [-1, 0, 0, 1],
        "edge_weights": np.ones(4),
        "num_nodes": 4,
        "function": "exponential",
        "initial_rate": -1.0,
        "initial_offset": 0.5,
    },
}

BIASES = {
    "Alibi": {"slopes": 0.5, "trainable_slopes": True},
    "EdgePath": {"edge_types": 3, "hops": 2},
    "HopDecay": {"free_hops": 1.0, "initial_rates": 0.5},
    "LogMask": {"mask": masks.Causal()},
    "RelativePositions": {"num_buckets": 8, "max_distance": 20, "bidirectional": True},
    "ShortestPath": {"max_distance": 4},
    "Sum": {"biases": [biases.Alibi(), biases.ShortestPath()]},
    "WalkProbabilities": {"num_steps": 3},
}

# What the masks and biases without a topology of their own take with each call
AT_CALL = {
    "ShortestPath": {"distances": np.ones((B, T, T), "int32")},
    "EdgePath": {"paths": np.ones((B, T, T, 2), "int32")},
    "WalkProbabilities": {"walk_probabilities": np.ones((B, T, T, 3), "float32")},
    "HopDecay": {"distances": np.ones((B, T, T), "int32")},
    "Sum": {"distances": np.ones((B, T, T), "int32")},
    "DistanceTable": {"distances": np.ones((B, T, T), "int32")},
    "Entries": {"entries": np.ones((B, T, T), "float32")},
    "GatedDecay": {"log_gates": np.full((B, T, N), -0.5, "float32")},
    "Segments": {"segment_ids": np.zeros((B, T), "int32")},
}


def call_of(name):
    """Right arguments of a layer's call."""
    random = np.random.default_rng(0)
    if name in TOKEN_LAYERS:
        tokens = random.normal(size=(B, T, WIDTH)).astype("float32")
        return {"inputs": tokens, "mask": np.ones((B, T), bool)}
    query, value, key = random.normal(size=(3, B, T, WIDTH)).astype("float32")
    keys = {} if name == "AttentiveGraphFilter" else {"attention_mask": np.ones((B, 1, T), bool)}
    return {
        "query": query,
        "value": value,
        "key": key,
        "query_mask": np.ones((B, T), bool),
        "value_mask": np.ones((B, T), bool),
        "key_mask": np.ones((B, T), bool),
        "return_attention_scores": False,
        "use_causal_mask": name != "EdgeAttention",
        **keys,
    }


def layer(name):
    return getattr(layers, name)(**LAYERS[name])


def bias(name):
    return getattr(biases, name)(**BIASES[name])


def mask(name):
    return getattr(masks, name)(**MASKS[name])
