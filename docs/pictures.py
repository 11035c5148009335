"""Pictures of the matrices of layers and masks, for their pages."""

from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_graphattn import layers, masks
from keras_graphattn.filters import FirstOrder
from keras_graphattn.graphs import Graph, precompute

LENGTH = 24
# Three groups of friends, and a friendship from each group to the next
GROUPS = [(0, 8), (8, 16), (16, 24)]
EDGES = [(a, b) for first, end in GROUPS for a in range(first, end) for b in range(first, a)]
EDGES += [(7, 8), (15, 16)]
PARENTS = [-1, *((node - 1) // 2 for node in range(1, 15)), -1, *(15 + n // 2 for n in range(8))]
DISTANCES = precompute([Graph(EDGES, num_nodes=LENGTH)], "distances", verbose=False)[0]
SEGMENTS = np.repeat([[0, 1, 2]], [10, 6, 8], axis=1)

# The settings of each mask, the inputs of its call, and what the picture shows
MASKS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "BlockToeplitz": (
        {"grid_shape": (4, 6), "form": "distance"},
        {},
        "tokens of a grid of 4 x 6, row by row, with factors exp(-distance / 2)",
    ),
    "Causal": ({}, {}, ""),
    "DistanceTable": (
        {},
        {"distances": DISTANCES[None]},
        "three groups of friends, joined by one friendship each, with factors exp(-distance / 2)",
    ),
    "Entries": (
        {},
        {
            "entries": np.random.default_rng(0).uniform(0, 1, (LENGTH, LENGTH)).astype("float32")
            ** 3
        },
        "the entries that the call is given",
    ),
    "Exponential": ({"num_decays": 2, "initial_rates": [0.05, 1.0]}, {}, "a slow and a fast decay"),
    "GatedDecay": (
        {},
        {"log_gates": np.log(np.where(np.arange(LENGTH) % 8, 0.9, 0.2))[None, :, None]},
        "gates of 0.9, and of 0.2 at every eighth token",
    ),
    "GraphDiffusion": (
        {"graph": EDGES, "num_nodes": LENGTH, "initial_time": 0.15},
        {},
        "three groups of friends, joined by one friendship each",
    ),
    "GraphRandomFeatures": (
        {"graph": EDGES, "num_nodes": LENGTH, "num_walks": 64, "seed": 0},
        {},
        "an estimate from 64 walks, on three groups of friends",
    ),
    "Hypercube": ({"initial_time": 0.7, "dimension": 4}, {}, "16 corners"),
    "ExponentialPositions": (
        {"length": LENGTH, "position_dim": 4, "num_features": 16, "seed": 1},
        {},
        "at its random start",
    ),
    "LowRank": ({"rank": 3, "length": LENGTH}, {}, "at its random start"),
    "Mask": ({}, {}, ""),
    "Product": (
        {"masks": [masks.Segments(), masks.Causal()]},
        {"segment_ids": SEGMENTS},
        "`Segments` times `Causal`: packed sequences of a decoder",
    ),
    "RandomWalk": (
        {"graph": EDGES, "num_nodes": LENGTH, "walk_length": 3, "exact": True},
        {},
        "the expectation over walks, on three groups of friends",
    ),
    "Segments": ({}, {"segment_ids": SEGMENTS}, "three segments"),
    "StochasticPositions": ({"num_frequencies": 3, "seed": 1}, {}, "at its random start"),
    "Toeplitz": ({"max_length": LENGTH, "initial_slopes": 0.25}, {}, "slopes of 0.25"),
    "Tree": ({"forest": PARENTS, "initial_rate": -0.4}, {}, "two binary trees"),
}

LAYERS = "on 24 tokens in three groups of eight that are alike, at the settings of the titles"


def mask_matrix(name: str) -> np.ndarray | None:
    """The matrix (T, T) of a mask with the settings above; `None` for the base class."""
    options, inputs, _ = MASKS[name]
    if name == "Mask":
        return None
    keras.utils.set_random_seed(0)
    mask = getattr(masks, name)(**options)
    length = getattr(mask, "num_nodes", None) or LENGTH
    mask.build((1, length, 1, 8))
    if name == "BlockToeplitz":
        factors = mask.log_factors
        factors.assign(-0.5 * np.arange(factors.shape[1])[None])
    if name == "DistanceTable":
        mask.log_table.assign(-0.5 * np.arange(mask.log_table.shape[0])[:, None])
    return keras.ops.convert_to_numpy(mask.dense(length, **inputs))[0, 0]


def _tokens() -> Any:
    """Tokens (1, T, 8) of three groups that are alike, with noise."""
    random = np.random.default_rng(2)
    centres = np.repeat(random.normal(size=(3, 8)), 8, axis=0)
    return (centres + 0.5 * random.normal(size=(LENGTH, 8))).astype("float32")[None]


def _applied(layer: Any, tokens: Any, **call: Any) -> np.ndarray:
    """The matrix (T, T) that a layer with one head multiplies values by: its output for value I."""
    identity = np.eye(LENGTH, dtype="float32")[None]
    if not layer.built:
        layer.build(tokens.shape, identity.shape, tokens.shape)
    _set_to_identity(layer.query_dense, layer.key_dense, size=8, scale=0.7)
    _set_to_identity(layer.value_dense, layer.output_dense, size=LENGTH)
    return keras.ops.convert_to_numpy(layer(tokens, identity, tokens, **call))[0]


def _set_to_identity(*projections: Any, size: int, scale: float = 1.0) -> None:
    """Makes the kernels of projections a multiple of I; their biases start at 0."""
    for projection in projections:
        kernel = projection.trainable_variables[0]
        kernel.assign(scale * np.eye(size).reshape(kernel.shape))


def layer_matrices(name: str) -> dict[str, np.ndarray]:
    """What a layer does to values of 24 tokens in three groups: titles and matrices."""
    keras.utils.set_random_seed(0)
    tokens, one = _tokens(), {"num_heads": 1, "key_dim": 8, "value_dim": LENGTH}
    one["output_shape"] = LENGTH
    plain = _applied(layers.GraphFilterAttention(**one), tokens)
    if name == "GraphFilterAttention":
        filtered = layers.GraphFilterAttention(**one, filter=FirstOrder(3, start="high_pass"))
        return {"A": plain, 'H, start="high_pass"': _applied(filtered, tokens)}
    if name == "DifferentialAttention":
        return _differential(tokens)
    if name == "PLaplacianAttention":
        return {"A (p = 2)": plain, **{f"p = {p}": _p_laplacian(tokens, p) for p in (1.5, 2.5)}}
    if name == "AttentiveGraphFilter":
        layer = layers.AttentiveGraphFilter(1, 8)
        _, scores = layer(tokens, return_attention_scores=True)
        return {"H = (U * g(S)) V^T": keras.ops.convert_to_numpy(scores)[0, 0]}
    if name == "GatedDeltaRule":
        layer = layers.GatedDeltaRule(1, 8)
        _, scores = layer(tokens, return_attention_scores=True)
        return {"o = A v": keras.ops.convert_to_numpy(scores)[0, 0]}
    if name == "MaskedKernelAttention":
        kernel, mask = layers.MaskedKernelAttention, masks.Exponential(initial_rates=0.2)
        unmasked = _applied(kernel(**one, feature_map="squared_relu"), tokens)
        masked = _applied(kernel(**one, feature_map="squared_relu", mask=mask), tokens)
        return {"no mask": unmasked, "under an exponential mask": masked}
    if name == "EdgeAttention":
        options = {**one, "graph": EDGES, "num_nodes": LENGTH, "seed": 1}
        edges = _applied(layers.EdgeAttention(**options), tokens)
        expander = _applied(layers.EdgeAttention(**options, expander_degree=4), tokens)
        return {"A, along a graph's edges": edges, "with an expander of degree 4": expander}
    if name == "GraphKernelAttention":
        mask = masks.RandomWalk(EDGES, num_nodes=LENGTH, exact=True)
        masked = _applied(layers.GraphKernelAttention(**one, mask=mask), tokens)
        return {"A, without the graph": plain, "under walks on a graph": masked}
    if name == "ScaledHighFrequencyAttention":
        layer = layers.ScaledHighFrequencyAttention(**one)
        layer.build(tokens.shape, (1, LENGTH, LENGTH), tokens.shape)
        layer.high_frequency_scale.assign([1.0])
        return {"A": plain, "A', scale l = 1": _applied(layer, tokens)}
    if name in ("ContraNorm", "ContraNormAttention"):
        products = (tokens @ tokens.transpose(0, 2, 1))[0]
        alike = np.exp(products - products.max(axis=1, keepdims=True))
        alike /= alike.sum(axis=1, keepdims=True)
        return {"(1 + s) I - s softmax(x x^T), s = 0.5": 1.5 * np.eye(LENGTH) - 0.5 * alike}
    if name.startswith("Graph") and name.endswith("Pooling"):
        return _pooling(name)
    raise ValueError(f"There is no picture for the layer {name}: write it in {__file__}.")


def _differential(tokens: Any) -> dict[str, np.ndarray]:
    """A_1, whose scores are products of tokens, A_2, whose scores are smaller, and A."""
    layer = layers.DifferentialAttention(1, 8, initial_lambda=0.5)
    layer.build(tokens.shape)
    for projection in (layer.query_dense, layer.key_dense):
        sets = [0.7 * np.eye(8), 0.4 * np.eye(8)]
        projection.kernel.assign(np.stack(sets, axis=1))
    titles, matrices = ("A_1", "A_2", "difference, lambda = 0.5"), []
    for start in (0.0, 0.5):
        layer._lambda.query.assign(np.zeros((2, 8)))
        layer._lambda.start = start
        _, scores = layer(tokens, return_attention_scores=True)
        matrices.append(keras.ops.convert_to_numpy(scores)[0, 0])
    first, difference = matrices
    shown = (first, (first - difference) / 0.5, difference)
    return dict(zip(titles, shown, strict=True))


def _p_laplacian(tokens: Any, p: float) -> np.ndarray:
    layer = layers.PLaplacianAttention(1, 8, p=p, epsilon=0.5, attention_path="dense")
    layer.build(tokens.shape)
    _set_to_identity(layer.query_dense, layer.key_dense, size=8, scale=0.7)
    _set_to_identity(layer.value_dense, size=8)
    _, weights = layer(tokens, tokens, return_attention_scores=True)
    return keras.ops.convert_to_numpy(weights)[0, 0]


def _pooling(name: str) -> dict[str, np.ndarray]:
    """The output for signals that are 1 at one node each; the last six nodes are padding."""
    identity = np.eye(LENGTH, dtype="float32")[None]
    present = np.arange(LENGTH)[None] < LENGTH - 6
    pooled = getattr(layers, name)()(identity, mask=present)
    return {"weight of each node; the last six are padding": keras.ops.convert_to_numpy(pooled)}


def draw(matrices: dict[str, np.ndarray], path: Path) -> None:
    """Writes a picture of matrices next to each other, rows down, columns across."""
    from matplotlib.figure import Figure

    rows = max(matrix.shape[0] for matrix in matrices.values())
    height = 3.2 if rows > 1 else 1.4
    figure = Figure(figsize=(3.6 * len(matrices), height), layout="constrained")
    for axis, (title, matrix) in zip(
        figure.subplots(1, len(matrices), squeeze=False)[0], matrices.items(), strict=True
    ):
        bound = np.abs(matrix).max()
        if matrix.min() < 0:
            image = axis.imshow(matrix, vmin=-bound, vmax=bound, cmap="RdBu_r")
        else:
            image = axis.imshow(matrix, vmin=0, vmax=bound, cmap="magma")
        axis.set_title(title, fontsize=10)
        axis.tick_params(labelsize=8)
        if rows > 1:
            axis.set(xlabel="key", ylabel="query")
            figure.colorbar(image, ax=axis, fraction=0.046, pad=0.04).ax.tick_params(labelsize=8)
        else:
            axis.set_yticks([])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
