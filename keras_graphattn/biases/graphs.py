"""Biases for pairs of nodes of a graph: distances, edges on paths, and random walks.

Their inputs come with each call. `keras_graphattn.graphs.precompute` makes them once for a data
set. In `distances`, -1 is a pair without a path, and -2 a pair with a virtual node that is joined
to all nodes, as Graphormer has one.
"""

from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_graphattn.biases.bias import NEAR_ZERO, Bias
from keras_graphattn.checks import number, whole
from keras_graphattn.masks.graphs.distances import at_distances
from keras_graphattn.masks.inputs import Length, Tensors
from keras_graphattn.masks.mask import Rows, Shape, finite
from keras_graphattn.numerics.precision import larger, positions_of, smaller


@keras.saving.register_keras_serializable(package="keras_graphattn")
class ShortestPath(Bias):
    """b[i, j] is a learned number for the distance of two nodes, for each head (Graphormer).

    Each call takes `distances`, integers of shape (B, T, T): numbers of edges of shortest paths,
    as `graphs.precompute(graphs, "distances")` has them; -1 without a path, and -2 for a pair with
    a virtual node. Both have a number of their own.

    Args:
        max_distance: Distances above it count as it.
        **kwargs: Those of every `Bias`.

    Weights:
        `of_distance` of shape (max_distance + 3, num_heads); the last two rows are for -1 and -2.

    Raises:
        ValueError: For a `max_distance` below 1, and for wrong distances.

    Example:

    >>> bias = ShortestPath(max_distance=5)
    >>> bias.build((None, None, 4, None))
    >>> tuple(bias(distances=np.array([[[0, 1], [1, 0]]])).shape)
    (1, 4, 2, 2)

    Source: Ying et al., "Do Transformers Really Perform Bad for Graph Representation?",
    arXiv 2106.05234 (NeurIPS 2021), Eq. 6.
    """

    inputs_at_call = ("distances",)
    _settings = ("max_distance",)

    def __init__(self, max_distance: int = 20, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_distance = whole()("max_distance", max_distance, {})

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        shape = (self.max_distance + 3, self.num_heads)
        self.of_distance = self._add_parameter("of_distance", NEAR_ZERO.clone(), shape=shape)

    def _matrix(self, length: Length, parameters: Tensors, inputs: Tensors) -> Rows:
        return at_distances(parameters["of_distance"], inputs["distances"], self.max_distance)


@keras.saving.register_keras_serializable(package="keras_graphattn")
class EdgePath(Bias):
    """b[i, j] is the mean of learned numbers for the edges on a shortest path (Graphormer).

    The number depends on the edge's type, its place on the path, and the head. Each call takes
    `paths`, integers of shape (B, T, T, L) with L at most `hops`: the types of the edges on a path
    from i to j, from 0, and -1 after its end. A pair without edges has 0.

    Args:
        edge_types: Number of types of edges.
        hops: Number of edges of a path that count, the first ones.
        **kwargs: Those of every `Bias`.

    Weights:
        `of_edge` of shape (hops, edge_types, num_heads).

    Raises:
        ValueError: For sizes below 1, for paths of more edges than `hops`, and for types of edges
            from `edge_types` on.

    Example:

    >>> bias = EdgePath(edge_types=3)
    >>> bias.build((None, None, 4, None))
    >>> tuple(bias(paths=np.full((1, 2, 2, 5), -1)).shape)
    (1, 4, 2, 2)

    Source: Ying et al., arXiv 2106.05234, Eq. 7, with types as one-hot vectors.
    """

    inputs_at_call = ("paths",)
    _settings = ("edge_types", "hops")

    def __init__(self, edge_types: int, hops: int = 5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.edge_types = self._limit = whole()("edge_types", edge_types, {})
        self.hops = whole()("hops", hops, {})

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        shape = (self.hops, self.edge_types, self.num_heads)
        self.of_edge = self._add_parameter("of_edge", NEAR_ZERO.clone(), shape=shape)

    def _matrix(self, length: Length, parameters: Tensors, inputs: Tensors) -> Rows:
        paths, of_edge = ops.cast(inputs["paths"], "int32"), parameters["of_edge"]
        hops = paths.shape[-1]
        if hops is not None and hops > self.hops:
            raise ValueError(
                f"This EdgePath has numbers for {self.hops} edges of a path. Received: "
                f"paths.shape={tuple(paths.shape)}. Use hops={hops}, or cut the paths."
            )
        types = positions_of(self.edge_types)
        is_of = ops.cast(ops.equal(paths[..., None], types), of_edge.dtype)
        sums = ops.einsum("btshk,hkn->bnts", is_of, of_edge[:hops])
        count = ops.sum(ops.cast(paths >= 0, of_edge.dtype), axis=-1)[:, None]
        return sums / larger(count, 1.0)


@keras.saving.register_keras_serializable(package="keras_graphattn")
class WalkProbabilities(Bias):
    """b[i, j] is a learned linear map of the probabilities of random walks from i to j (GRIT).

    Each call takes `walk_probabilities`, numbers of shape (B, T, T, num_steps): entry k is the
    probability that a random walk from i is at j after k steps, [I, M, M^2, ...], as
    `graphs.precompute(graphs, "walk_probabilities")` has them.

    Args:
        num_steps: The number of the powers of M, I included.
        **kwargs: Those of every `Bias`.

    Weights:
        `of_step` of shape (num_steps, num_heads).

    Raises:
        ValueError: For another number of steps, and for numbers that are not finite.

    Example:

    >>> bias = WalkProbabilities(num_steps=3)
    >>> bias.build((None, None, 4, None))
    >>> tuple(bias(walk_probabilities=np.zeros((1, 2, 2, 3))).shape)
    (1, 4, 2, 2)

    Source: Ma et al., "Graph Inductive Biases in Transformers without Message Passing",
    arXiv 2305.17589 (ICML 2023), Section 3.1. Ours: as a bias of the scores of softmax attention.
    """

    inputs_at_call = ("walk_probabilities",)
    _settings = ("num_steps",)

    def __init__(self, num_steps: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_steps = whole()("num_steps", num_steps, {})

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        shape = (self.num_steps, self.num_heads)
        self.of_step = self._add_parameter("of_step", NEAR_ZERO.clone(), shape=shape)

    def _matrix(self, length: Length, parameters: Tensors, inputs: Tensors) -> Rows:
        walks, of_step = inputs["walk_probabilities"], parameters["of_step"]
        if walks.shape[-1] != self.num_steps:
            raise ValueError(
                f"This WalkProbabilities has numbers for {self.num_steps} steps. Received: "
                f"walk_probabilities.shape={tuple(walks.shape)}. Use num_steps={walks.shape[-1]}."
            )
        return ops.einsum("btsk,kn->bnts", ops.cast(walks, of_step.dtype), of_step)


@keras.saving.register_keras_serializable(package="keras_graphattn")
class HopDecay(Bias):
    """b[i, j] = -r max(d(i, j) - free, 0): weights decay with the distance of nodes (Gradformer).

    d is the number of edges of a shortest path and r a learned rate for each head. So the weights
    of attention are multiplied by exp(-r) for each edge above `free_hops`. Nodes without a path do
    not see each other. Each call takes `distances`, as `ShortestPath` does; a pair with a virtual
    node has the distance 0.

    Args:
        free_hops: Number of edges without decay, at least 0.
        initial_rates: Start of the rates: a positive number, or one for each head. By default
            log 2: half of the weight for each edge.
        **kwargs: Those of every `Bias`.

    Weights:
        `log_rates` of shape (num_heads,).

    Raises:
        ValueError: For invalid numbers, and for wrong distances.

    Example:

    >>> bias = HopDecay(initial_rates=1.0)
    >>> bias.build((None, None, 1, None))
    >>> distances = np.array([[[0, 1, -1], [1, 0, -1], [-1, -1, 0]]])
    >>> keras.ops.convert_to_numpy(bias(distances=distances))[0, 0].tolist()
    [[0.0, -1.0, -inf], [-1.0, 0.0, -inf], [-inf, -inf, 0.0]]

    Source: Liu et al., "Gradformer: Graph Transformer with Exponential Decay",
    arXiv 2404.15729 (IJCAI 2024). There the decay multiplies the scores; here it multiplies the
    weights, which it always makes smaller.
    """

    inputs_at_call = ("distances",)
    hides_keys = True
    _settings = ("free_hops", "initial_rates")

    def __init__(
        self, free_hops: float = 0.0, initial_rates: ArrayLike | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.free_hops = number(least=0.0)("free_hops", free_hops, {})
        if initial_rates is not None:
            initial_rates = finite("initial_rates", initial_rates, positive=True)
        self.initial_rates = initial_rates

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        rates = np.log(2.0) if self.initial_rates is None else self.initial_rates
        start = np.log(self._of_heads("initial_rates", rates))
        self.log_rates = self._add_parameter("log_rates", start)

    def _matrix(self, length: Length, parameters: Tensors, inputs: Tensors) -> Rows:
        rates = ops.exp(parameters["log_rates"])[:, None, None]
        distances = ops.cast(inputs["distances"], "int32")[:, None]  # (B, 1, T, T)
        above = smaller(self.free_hops - ops.cast(distances, rates.dtype), 0.0)
        hidden = ops.cast(-float("inf"), rates.dtype)
        return ops.where(ops.equal(distances, -1), hidden, rates * above)
