"""General graph random features as a mask: any power series of the adjacency matrix, by walks."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_graphattn.checks import flag, number, one_of, seed_of
from keras_graphattn.masks.inputs import Tensors
from keras_graphattn.masks.modulations import read_modulation
from keras_graphattn.masks.topology import (
    TopologyMask,
    from_nodes,
    in_float32,
    to_nodes,
    whole_number,
)
from keras_graphattn.ops.graphs.graphs import graph_edges, read_graph
from keras_graphattn.ops.graphs.random_features import (
    RANDOM_FEATURE_OPERATORS,
    GraphFeatures,
    graph_random_features,
    graph_random_product,
    modulated,
)

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class GraphRandomFeatures(TopologyMask):
    """M estimates a power series sum_k alpha_k W^k of a graph, by random walks from each node.

    W is the adjacency matrix or, by default, D^-1/2 A D^-1/2. M = F G^T with sparse F and G from
    two independent sets of walks. The modulation f weights the steps of the walks, and can be
    learned. The expectation of M over the seeds is exactly

        (f_0 I + f_1 W + ... + f_{L-1} W^{L-1})^2,      L = walk_length

    Below order L, its coefficients are alpha = f * f, where * is the convolution. Memory and time
    grow linearly with the number of nodes: F and G have at most num_walks walk_length numbers for
    each node.

    The variance of an entry is v / num_walks + O(1 / num_walks^2). Here v grows with the
    modulation of late steps. On the operator `"adjacency"` it also grows with the degrees.

    No entry of M is negative, so a modulation with a negative value is an error. An entry is 0 if
    no two walks from the two nodes meet. A node always meets itself. `MaskedKernelAttention` gives
    such a pair the weight 0, as the estimate says. For `GraphKernelAttention`, it is an unseen
    pair. Two nodes of different components never meet.

    Args:
        graph: An integer array of edges of shape (E, 2), a symmetric scipy.sparse matrix of edge
            weights, or an object like a networkx graph. Directed graphs, weights that are not
            positive, and edges from a node to itself are errors.
        edge_weights: Positive weights, one per edge of an array. The probability of a step is
            proportional to the weight of its edge.
        num_nodes: Number of nodes, if the edges do not name them all.
        series: The series at the start. `"diffusion"`: exp(-s (I - W)).
            `"regularized_laplacian"`: (I + s (I - W))^-1. `"random_walk"`:
            ((1 - s) I + s W)^(2 L - 2), exactly. Or the coefficients alpha_0, alpha_1, ... of
            another series, of shape (K,) or (K, num_heads).
        strength: s, a positive number or one per head; by default 1, for `"random_walk"` 0.5,
            where it must be below 1.
        operator: W: `"normalized_adjacency"` or `"adjacency"`.
        num_walks: Number of walks from each node, in each of the two sets.
        walk_length: Largest number L of nodes of a walk, including its start; 8 by default, or the
            number K of given coefficients.
        halt_probability: Probability that a walk ends before each of its steps. Shorter walks save
            memory and time, and have a larger variance.
        learn_modulation: Whether f is learned. `False` keeps the start and joins the steps of the
            walks, which is faster.
        seed: Seed of the walks, which are the same on every backend. By default it is drawn. The
            draw follows `keras.utils.set_random_seed` and is kept in the configuration. Walks are
            not weights: give a seed to load weights into a model that is made by code again.
        **kwargs: `name`, `trainable` and `dtype` of a Keras layer, and
            `coefficient_learning_rate_multiplier`, the property, 30 by default.

    Weights:
        With `learn_modulation=True`, `log_modulation` of shape (L, num_heads), the logarithm of f.
        A step that starts with f_k = 0 keeps it.

    Raises:
        ValueError: For graphs that cannot be read, series with a negative
            modulation, and numbers out of range.

    Example:

    >>> mask = GraphRandomFeatures([[0, 1], [1, 2]], num_walks=5000, halt_probability=0.2)
    >>> mask.build((None, 3, 1, 8))
    >>> keras.ops.convert_to_numpy(mask.dense())[0, 0, 0].astype(float).round(1).tolist()
    [0.5, 0.3, 0.1]

    Source: Reid et al., "General Graph Random Features", arXiv 2310.04859, Algorithm 1, and
    "Linear Transformer Topological Masking with Graph Random Features", arXiv 2410.03462. Ours:
    steps in proportion to the weights of edges, and the modulation as a positive weight per head.
    """

    paths = ("dense", "features")

    def __init__(
        self,
        graph: Any,
        edge_weights: Any = None,
        num_nodes: int | None = None,
        *,
        series: Any = "diffusion",
        strength: Any = None,
        operator: str = "normalized_adjacency",
        num_walks: int = 16,
        walk_length: int | None = None,
        halt_probability: float = 0.1,
        learn_modulation: bool = True,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if graph is None:
            raise ValueError(
                "`GraphRandomFeatures` draws its walks once, from one graph. Received: graph=None. "
                "Give `graph`. If each example has its own graph, use `GraphDiffusion` or "
                "`RandomWalk`."
            )
        self.operator = one_of(*RANDOM_FEATURE_OPERATORS)("operator", operator, {})
        self.num_walks = whole_number("num_walks", num_walks, 1)
        self.halt_probability = number(least=0.0, below=1.0)(
            "halt_probability", halt_probability, {}
        )
        self.learn_modulation = flag("learn_modulation", learn_modulation)
        self.seed = seed_of(seed)
        self.series, self.strength, self._start = read_modulation(series, strength, walk_length)
        self.walk_length = len(self._start)
        self._adjacency = read_graph(graph, num_nodes, edge_weights)
        self.num_nodes = self._adjacency.shape[0]
        self._left, self._right = graph_random_features(
            self._adjacency,
            self.num_walks,
            self.walk_length,
            self.seed,
            self.halt_probability,
            self.operator,
        )
        self._check_range()
        if not self.learn_modulation and self._start.shape[1] == 1:
            self._left = modulated(self._left, self._start[:, 0])
            self._right = modulated(self._right, self._start[:, 0])
            self._start = np.ones((1, 1))

    def _check_range(self) -> None:
        """Raises a `ValueError` if sums of rows of M, or its diagonal, may leave float32."""
        largest = 1.0
        for features in (self._left, self._right):
            sums = [np.asarray(step.matrix.sum(axis=1)).ravel() for step in features.steps]
            largest *= float((np.stack(sums, axis=1) @ self._start).max())  # (n, heads)
        limit = 320.0 if self.variable_dtype == "float64" else 40.0
        smallest = float(self._start[0].min()) ** 2
        if not np.exp(-limit) < min(smallest, largest) <= max(smallest, largest) < np.exp(limit):
            raise ValueError(
                f"Entries of the mask must be between e^-{limit:g} and e^{limit:g}. Received: "
                f"strength={self.strength!r}, series={self.series!r}, operator={self.operator!r}, "
                f"with entries up to {largest:.1e} and a diagonal of at least {smallest:.1e}. Use "
                'a smaller `strength`, or operator="normalized_adjacency".'
            )

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        length, heads = self._start.shape
        if heads not in (1, self.num_heads):
            raise ValueError(
                f"`strength` and `series` must be for one head or for all {self.num_heads} heads. "
                f"Received: strength={self.strength!r}, series={self.series!r}, for {heads} heads."
            )
        self._walked = self._start > 0.0  # (L, 1 or heads)
        if self.learn_modulation:
            start = np.log(np.where(self._walked, self._start, 1.0))
            start = np.broadcast_to(start, (length, self.num_heads))
            self.log_modulation = self._add_parameter("log_modulation", start)

    def parameters(self) -> Tensors:
        if not self.learn_modulation:
            start = np.broadcast_to(self._start, (len(self._start), self.num_heads))
            return {"modulation": self._constant(start)}
        logarithm = in_float32({"modulation": self.log_modulation})["modulation"]
        return {"modulation": ops.where(self._walked, ops.exp(logarithm), 0.0)}

    def _signal(self, x: Tensor, path: str, parameters: Tensors, inputs: Tensors) -> Tensor:
        nodes = to_nodes(x)  # (T, N, B D)
        found = graph_random_product(nodes, parameters["modulation"], self._left, self._right)
        return from_nodes(found, x)

    def _matrix(self, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        modulation = parameters["modulation"]
        left, right = (_formed(f, modulation) for f in (self._left, self._right))  # (N, T, T)
        return ops.einsum("nvi,nwi->nvw", left, right)[None]

    def _transposed_columns(
        self, columns: Tensor, length: Any, parameters: Tensors, inputs: Tensors
    ) -> Tensor:
        modulation = parameters["modulation"]
        columns = ops.repeat(columns[:, None], self.num_heads, axis=1)  # (T, N, R)
        return graph_random_product(columns, modulation, self._right, self._left)[None]

    def get_config(self) -> dict[str, Any]:
        edges, weights = graph_edges(self._adjacency)
        config: dict[str, Any] = {**super().get_config(), "graph": edges.tolist()}
        if (weights != 1.0).any():
            config["edge_weights"] = weights.tolist()
        return config | {
            "num_nodes": self.num_nodes,
            "series": self.series,
            "strength": self.strength,
            "operator": self.operator,
            "num_walks": self.num_walks,
            "walk_length": self.walk_length,
            "halt_probability": self.halt_probability,
            "learn_modulation": self.learn_modulation,
            "seed": self.seed,
        }


def _formed(features: GraphFeatures, modulation: Tensor) -> Tensor:
    """The sum over k of f_k F_k as a matrix for each head: (N, T, T)."""
    total = 0.0
    for k, step in enumerate(features.steps):
        matrix = ops.convert_to_tensor(step.matrix.toarray(), dtype=modulation.dtype)
        total = total + modulation[k, :, None, None] * matrix
    return total
