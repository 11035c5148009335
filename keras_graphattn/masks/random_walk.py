"""The random-walk graph-nodes kernel as a mask."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_graphattn.checks import flag, number, numpy_of, optional, seed_of, whole
from keras_graphattn.masks.inputs import Tensors, marked
from keras_graphattn.masks.topology import (
    TopologyMask,
    finite,
    from_nodes,
    in_float32,
    to_nodes,
    whole_number,
)
from keras_graphattn.ops.graphs.dynamic_walks import edges_of_walks
from keras_graphattn.ops.graphs.example_walks import walk_product_of_batch
from keras_graphattn.ops.graphs.graphs import graph_edges, read_graph
from keras_graphattn.ops.graphs.walks import (
    WalkFeatures,
    collapsed,
    expected_features,
    features_of_walks,
    random_walks,
    walk_features_of_batch,
    walk_matrix,
    walk_product,
)

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class RandomWalk(TopologyMask):
    """M[v, w] = f_v . f_w / (|f_v|^a |f_w|^a), where f_v describes the walks from v (RWGNK).

    f_v is the mean over walks of sum_l decay^l e_(node at step l). M has low rank, and the product
    is F (F^T x) with a sparse F. With `exact=True`, F is the expectation over all walks.

    Args:
        graph: An integer array of edges of shape (E, 2), a symmetric scipy.sparse matrix of edge
            weights, or an object like a networkx graph.
        edge_weights: Positive weights, one per edge of an array. The probability of a step is
            proportional to the weight of its edge.
        num_nodes: Number of nodes, if the edges do not name them all.
        walks: Walks to use instead of a graph: integers of shape (n, walks, length). They hold the
            nodes of each walk from its start, and -1 after its end. With neither `graph` nor
            `walks`, each example of a batch has its own walks: the calls take `walks`, integers of
            shape (B, T, walks, length), with nodes numbered within the example and -1 after the
            end. Then the path "features" goes through them walk by walk and never forms a matrix.
        num_walks: Number of walks drawn from each node; the paper uses 50 to 100.
        walk_length: Number of nodes of a walk, including its start; the paper uses 3 to 10.
        exact: Whether to use the expectation over all walks. It is for small graphs and short
            walks: F gets more entries as walks get longer.
        decay: Decay of each step, a positive number or one per head; the paper uses 1.
        learn_decay: Whether the decay is learned.
        normalization: The exponent a: 1 makes M a cosine, 0 keeps the inner products.
        seed: Seed of the walks, which are the same on every backend. By default it is drawn. The
            draw follows `keras.utils.set_random_seed` and is kept in the configuration. Walks are
            not weights: give a seed to load weights into a model that is made by code again.
        **kwargs: `name`, `trainable` and `dtype` of a Keras layer, and
            `coefficient_learning_rate_multiplier`, the property, 30 by default.

    Weights:
        With `learn_decay=True`, `log_decay` of shape (num_heads,).

    Raises:
        ValueError: For graphs or walks that cannot be read, for a graph together with walks, and
            for numbers out of range.

    Example:

    >>> mask = RandomWalk([[0, 1], [1, 2]], walk_length=2, exact=True)
    >>> mask.build((None, 3, 1, 8))
    >>> keras.ops.convert_to_numpy(mask.dense())[0, 0].astype(float).round(4).tolist()
    [[1.0, 0.866, 0.5], [0.866, 1.0, 0.866], [0.5, 0.866, 1.0]]

    Source: Choromanski et al., arXiv 2107.07999, Eq. 5 and Section 4.2.
    """

    paths = ("dense", "features")

    _topology = ("graph", "walks")

    def __init__(
        self,
        graph: Any = None,
        edge_weights: Any = None,
        num_nodes: int | None = None,
        *,
        walks: Any = None,
        num_walks: int = 50,
        walk_length: int = 4,
        exact: bool = False,
        decay: Any = 1.0,
        learn_decay: bool = False,
        normalization: float = 1.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_walks = whole_number("num_walks", num_walks, 1)
        self.walk_length = whole_number("walk_length", walk_length, 1)
        optional(whole(0))("seed", seed, {})
        self.exact, self.learn_decay = flag("exact", exact), flag("learn_decay", learn_decay)
        self.decay = finite("decay", decay, positive=True)
        self.normalization = number()("normalization", normalization, {})
        self._adjacency, self._given_walks = None, None
        self._features: WalkFeatures | None = None
        if graph is not None and walks is not None:
            raise ValueError("`walks` replace `graph`. Received: both. Leave one of them out.")
        if exact and graph is None:
            raise ValueError(
                "`exact=True` needs a graph. Received: graph=None. Give `graph` or exact=False."
            )
        if graph is not None:
            self._adjacency = read_graph(graph, num_nodes, edge_weights)
            if exact:
                self._features = expected_features(self._adjacency, self.walk_length)
            else:
                self.seed = seed_of(seed)
                drawn = random_walks(self._adjacency, num_walks, self.walk_length, self.seed)
                self._features = features_of_walks(drawn)
        elif walks is not None:
            self._given_walks = numpy_of(walks)
            self._features = features_of_walks(self._given_walks)
            self._topology = ("walks", "walks")
        else:
            self.inputs_at_call = ("walks",)
        if self._features is not None:
            self.num_nodes = self._features.steps.shape[0]
            if self._has_one_decay:
                self._features = collapsed(self._features, float(self.decay))

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        self._start = self._of_heads("decay", self.decay)
        self._check_range()
        if self.learn_decay:
            self.log_decay = self._add_parameter("log_decay", np.log(self._start))

    def _check_range(self) -> None:
        """Raises a `ValueError` if powers of the decay or of |f_v| overflow."""
        steps = self.walk_length if self._features is None else self._features.length
        exponents = [(steps - 1) * np.log(self._start)]
        if self._features is not None:
            orders = np.arange(self._features.squares.shape[1])
            with np.errstate(over="ignore"):
                squares = self._features.squares @ self._start ** orders[:, None]
            logarithms = np.log(squares[squares > 0.0])
            exponents += [logarithms, logarithms * self.normalization / 2.0]
        limit = 320.0 if self.variable_dtype == "float64" else 40.0
        if any((np.abs(exponent) > limit).any() for exponent in exponents):
            raise ValueError(
                f"Powers of `decay` and of |f_v| must be between e^-{limit:g} and e^{limit:g}. "
                f"Received: decay={self.decay!r}, normalization={self.normalization!r}, for walks "
                f"of {steps} nodes. Use a decay nearer to 1, or shorter walks."
            )

    @property
    def _has_one_decay(self) -> bool:
        """Whether all heads have the same decay, which is not learned."""
        return not self.learn_decay and isinstance(self.decay, float)

    def _different_decays(self, parameters: Tensors) -> Tensor:
        """The decays of the heads, (N,); (1,) where all heads have the same."""
        return parameters["decay"][:1] if self._has_one_decay else parameters["decay"]

    def parameters(self) -> Tensors:
        if self.learn_decay:
            return {"decay": ops.exp(in_float32({"decay": self.log_decay})["decay"])}
        return {"decay": self._constant(self._start)}

    def _signal(self, x: Tensor, path: str, parameters: Tensors, inputs: Tensors) -> Tensor:
        if self._features is None:
            walks = ops.cast(inputs["walks"], "int32")
            return walk_product_of_batch(x, parameters["decay"], walks, self.normalization)
        nodes = to_nodes(x)  # (T, N, B D)
        found = walk_product(nodes, parameters["decay"], self._features, self.normalization)
        return from_nodes(found, x)

    def _features_of_batch(self, parameters: Tensors, inputs: Tensors) -> Tensor:
        """Features of each walk of the batch, (B, N, T, T); N = 1 where all heads have the same."""
        decay = self._different_decays(parameters)
        return walk_features_of_batch(inputs["walks"], decay, self.normalization)

    def _matrix(self, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        if self._features is None:
            features = self._features_of_batch(parameters, inputs)
            return ops.einsum("bnvi,bnwi->bnvw", features, features)
        decay = self._different_decays(parameters)
        return walk_matrix(decay, self._features, self.normalization)[None]

    def edge_matrix(self, length: int | None = None, **inputs: Tensor) -> Tensor:
        """Returns the weights of the edges that walks take, as a matrix; 0 where there is no edge.

        The edges are those of the graph. If walks are given instead, two nodes have an edge of
        weight 1 if one of the walks steps from one to the other.

        Args:
            length: Number of tokens T. It is optional if the mask or its inputs know it.
            **inputs: The tensors of `inputs_at_call`.

        Returns:
            A tensor of shape (1 or B, 1, T, T); NaN for an example with a wrong entry.
        """
        _, prepared = self._prepared_matrix(length, inputs)
        if self._adjacency is not None:
            weights = ops.convert_to_tensor(self._adjacency.toarray(), dtype=self.variable_dtype)
            return weights[None, None]
        given = self._given_walks
        walks = prepared.tensors["walks"] if given is None else ops.convert_to_tensor(given[None])
        edges = edges_of_walks(ops.cast(walks, "int32"))
        return marked(edges[:, None], prepared.wrong)

    def length_of_walks(self, inputs: Tensors) -> int:
        """The number of nodes of a walk, its start included, of the mask or of a call's walks."""
        if self._adjacency is not None:
            return self.walk_length
        walks = self._given_walks if self._given_walks is not None else inputs["walks"]
        return int(walks.shape[-1])

    def _known_length(self, inputs: Tensors) -> Any:
        return ops.shape(inputs["walks"])[1] if inputs else super()._known_length(inputs)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        if self._adjacency is not None:
            edges, weights = graph_edges(self._adjacency)
            config |= {"graph": edges.tolist(), "num_nodes": self.num_nodes}
            if (weights != 1.0).any():
                config["edge_weights"] = weights.tolist()
        if self._given_walks is not None:
            config["walks"] = self._given_walks.tolist()
        return config | {
            "num_walks": self.num_walks,
            "walk_length": self.walk_length,
            "exact": self.exact,
            "decay": self.decay,
            "learn_decay": self.learn_decay,
            "normalization": self.normalization,
            "seed": self.seed,
        }
