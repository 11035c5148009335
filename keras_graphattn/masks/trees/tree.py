"""Masks over trees: factors that depend on the distance between two nodes of a forest."""

from typing import Any, Unpack

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_graphattn.checks import numpy_of, one_of, optional, traced_by_torch, whole
from keras_graphattn.masks.inputs import Length, Tensors
from keras_graphattn.masks.mask import (
    MaskOptions,
    Rows,
    Shape,
    Signal,
    TopologyMask,
    finite,
    from_nodes,
    reads_topology,
    to_nodes,
)
from keras_graphattn.masks.trees.forest import (
    Forest,
    distances_of_batch,
    finite_distances,
    forest_from_graph,
)
from keras_graphattn.masks.trees.sweeps import SWEEPS, exponential_product_of_batch, sweep_path
from keras_graphattn.masks.trees.tables import TABLES, table_path, table_product_of_batch
from keras_graphattn.numerics.custom_gradient import kept_with
from keras_graphattn.numerics.precision import pad, take
from keras_graphattn.types import Bool, Float, Int, Tensor

FUNCTIONS = ("exponential", "table")


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Tree(TopologyMask):
    """M[i, j] = f(dist(i, j)) for two nodes of one tree, 0 across trees; O(n) for exponentials.

    The tokens are the nodes of a forest. With `function="exponential"`, f(z) = exp(a z + b) of the
    weighted distance z, with a and b learned per head. The product takes two sweeps over the
    forest. With `function="table"`, f is any function of the number of edges: one learned positive
    value per distance and head.

    "auto" takes the path that is fastest by measurements (benchmarks/tree_and_graph_masks.py). For
    few nodes it is "dense". For exponentials it is `levels` for bushy trees; for deep ones it is
    `scan` on jax and under XLA, else `doubling`. For a table it is `depths`, a pass over the nodes
    for each distance, for diameters up to about half of log2(n), else `centroids`. For a single
    path, `Toeplitz` is the faster mask.

    For a table, the error of a row is about 1e-7 of the largest factor times the largest sum of
    tokens of its tree, except on the path "dense", where it is 1e-7 of the row. A node beyond the
    last distance never changes a row, not even by rounding.

    Args:
        forest: Integers of shape (n,): each node's parent, -1 at roots. Or a graph without
            cycles: an integer array of edges of shape (E, 2), a `keras_graphattn.graphs.Graph`, a
            scipy.sparse matrix of edge weights, or an object like a networkx graph. `None` if each
            example of a batch has its own forest: then the calls take `parents`, integers of shape
            (B, T), numbered within the example, -1 at roots and padding. A parent out of range and
            a cycle are errors; in compiled code they put NaN into the outputs of their example (see
            `Mask`).
        edge_weights: Lengths of the edges; 1 by default. With parents they are one per node, and
            may be 0. With edges they are one per edge, and positive, as in every graph. With
            `forest=None`, `True` makes the calls take `edge_weights` of shape (B, T) together with
            `parents`; they get gradients.
        num_nodes: Number of nodes, if the edges do not name them all.
        function: `"exponential"` or `"table"`.
        initial_rate: Start value of a, a number or one per head. Negative values favour near nodes.
        initial_offset: Start value of b, a number or one per head.
        initial_table: Start values of f(0), f(1), ...: positive, of shape (distances,) or
            (distances, num_heads); ones by default. M is 0 beyond the last distance.
        max_distance: Last distance of the table; by default the diameter. It is needed for a table
            with `forest=None`.
        max_depth: With `forest=None`, the most ancestors that a node may have; T - 1 by default. A
            smaller number saves steps of pointer doubling. A node with more ancestors is an error,
            as above.
        **kwargs: Those of every `Mask`.

    Weights:
        `rate` and `offset` of shape (num_heads,), or `log_table` of shape (distances, num_heads).

    Raises:
        ValueError: For cycles, parents out of range, invalid weights or start values, start values
            that overflow (a z + b above 80; 640 in float64), and for edge weights with a table.

    Example:

    >>> mask = Tree([-1, 0, 0], initial_rate=np.log(0.5))
    >>> mask.build((None, 3, 1, 8))
    >>> keras.ops.convert_to_numpy(mask.dense())[0, 0].astype(float).round(4).tolist()
    [[1.0, 0.5, 0.5], [0.5, 1.0, 0.25], [0.5, 0.25, 1.0]]

    Source: Choromanski et al., arXiv 2107.07999, Lemmas 3.5, 6.1 and 6.2. Our additions: forests,
    the sweeps by pointer doubling and over levels, their gradients, and one topology per example.
    """

    _topology = ("forest", "parents")
    _settings = (
        *("function", "initial_rate", "initial_offset", "initial_table"),
        *("max_distance", "max_depth"),
    )
    _finite_distances: tuple[np.ndarray, np.ndarray] | None = None  # kept by the first call

    def __init__(
        self,
        forest: Any = None,
        edge_weights: Any = None,
        num_nodes: int | None = None,
        *,
        function: str = "exponential",
        initial_rate: ArrayLike = -1.0,
        initial_offset: ArrayLike = 0.0,
        initial_table: ArrayLike | None = None,
        max_distance: int | None = None,
        max_depth: int | None = None,
        **kwargs: Unpack[MaskOptions],
    ) -> None:
        super().__init__(**kwargs)
        one_of(*FUNCTIONS)("function", function, {})
        num_nodes = optional(whole(0))("num_nodes", num_nodes, {})
        if edge_weights is False:
            edge_weights = None
        if edge_weights is not None and function == "table":
            raise ValueError(
                "A table is a function of the number of edges. Received: `edge_weights` as well. "
                'Leave them out, or use function="exponential" for weighted trees.'
            )
        self.function = function
        self.initial_rate = finite("initial_rate", initial_rate)
        self.initial_offset = finite("initial_offset", initial_offset)
        if function == "table" and (np.any(self.initial_rate != -1.0) or np.any(initial_offset)):
            raise ValueError(
                '`initial_rate` and `initial_offset` belong to function="exponential" and '
                f"functions like it. Received: function='table', initial_rate={initial_rate!r}, "
                f"initial_offset={initial_offset!r}. Use `initial_table`."
            )
        self.max_depth: int | None = optional(whole(0))("max_depth", max_depth, {})
        self._limit = self.max_depth
        self._forest: Forest | None = None
        if forest is not None:
            self._forest = self._read(forest, edge_weights, num_nodes)
            self.num_nodes = self._forest.size
            self.paths = ("dense", *(TABLES if function == "table" else SWEEPS))
            self.hides_keys = int(self._forest.starts[1]) > 1 or function == "table"
        else:
            if num_nodes is not None:
                raise ValueError(
                    f"`num_nodes` belongs to `forest`. Received: forest=None, num_nodes={num_nodes}"
                    ". Leave it out: the trees of a call have as many nodes as it has tokens."
                )
            self.inputs_at_call = self._read_edge_weights(edge_weights)
            self.paths = ("dense", "depths" if function == "table" else "doubling")
        self._read_table(initial_table, optional(whole(0))("max_distance", max_distance, {}))

    def _read(self, forest: Any, edge_weights: Any, num_nodes: int | None) -> Forest:
        """Reads a flat list as the parents of nodes, and anything else as a graph."""
        if self.max_depth is not None:
            raise ValueError(
                "`max_depth` is only for forests that come with each call. Received: `forest` and "
                "`max_depth`. Leave `max_depth` out."
            )
        has_parents = isinstance(forest, (list, tuple, np.ndarray)) and numpy_of(forest).ndim == 1
        if has_parents and num_nodes not in (None, len(forest)):
            raise ValueError(
                f"`forest` must have one parent for each node. Received: {len(forest)} parents and "
                f"num_nodes={num_nodes}. Leave `num_nodes` out."
            )
        try:
            if has_parents:
                return Forest(forest, edge_weights)
            return forest_from_graph(forest, num_nodes, edge_weights)
        except (TypeError, ValueError) as error:
            kind = "each node's parent" if has_parents else "a graph"
            refusal = TypeError if isinstance(error, TypeError) else ValueError
            raise refusal(f"`forest` was read as {kind}: {error}") from error

    def _read_table(self, initial_table: ArrayLike | None, max_distance: int | None) -> None:
        self.initial_table, self.max_distance = None, max_distance
        if self.function != "table":
            if max_distance is not None or initial_table is not None:
                raise ValueError(
                    '`max_distance` and `initial_table` belong to function="table". Received: '
                    f'function={self.function!r}. Leave them out, or use function="table".'
                )
        elif initial_table is not None:
            self.initial_table = finite("initial_table", initial_table, positive=True)
            if np.ndim(self.initial_table) not in (1, 2):
                raise ValueError(
                    "`initial_table` must be of shape (distances,) or (distances, num_heads). "
                    f"Received: initial_table={initial_table!r}"
                )
            self.max_distance = len(self.initial_table) - 1
            if max_distance not in (None, self.max_distance):
                raise ValueError(
                    f"`initial_table` ends at distance {self.max_distance}. Received: "
                    f"max_distance={max_distance}. Leave `max_distance` out."
                )
        elif max_distance is None:
            if self._forest is None:
                raise ValueError(
                    "A table for trees that come with each call needs a last distance. Received: "
                    "max_distance=None. Give `max_distance` or `initial_table`."
                )
            self.max_distance = self._forest.diameter

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        if self.function == "exponential":
            rate = self._of_heads("initial_rate", self.initial_rate)
            offset = self._of_heads("initial_offset", self.initial_offset)
            self._check_exponents(rate, offset)
            self.rate = self._add_parameter("rate", rate)
            self.offset = self._add_parameter("offset", offset)
            return
        table = np.ones(1) if self.initial_table is None else np.asarray(self.initial_table)
        table = table[:, None] if table.ndim == 1 else table
        shape = ((self.max_distance or 0) + 1, self.num_heads)
        table = self._of_heads("initial_table", table, *shape)
        self.log_table = self._add_parameter("log_table", np.log(table))

    def _check_exponents(self, rate: np.ndarray, offset: np.ndarray) -> None:
        """Raises a `ValueError` if exp(a z + b) is too large for the dtype at some distance z."""
        farthest = 0.0 if self._forest is None else self._forest.farthest_distance()
        largest = np.maximum(rate, 0.0) * farthest
        limit = 640.0 if self.variable_dtype == "float64" else 80.0
        if (np.maximum(largest, largest + offset) > limit).any():
            raise ValueError(
                f"exp(a z + b) overflows: a z, b and their sum must stay below {limit:g} for all "
                f"distances z, here up to {farthest:g}. Received: initial_rate={rate.tolist()}, "
                f"initial_offset={offset.tolist()}. Use smaller start values or shorter edges."
            )

    def parameters(self) -> Tensors:
        if self.function == "exponential":
            return self._weights("rate", "offset")
        return {"table": ops.exp(self._weights("log_table")["log_table"])}

    def _own_path(self) -> str:
        if self._forest is None:
            return self.paths[-1]
        if self.function == "exponential":
            return sweep_path(self._forest)
        return table_path(self._forest, self.max_distance or 0)

    @reads_topology
    def _signal(self, x: Signal, path: str, parameters: Tensors, inputs: Tensors) -> Signal:
        if self._forest is None:
            return self._signal_of_batch(x, parameters, inputs)
        nodes = to_nodes(x)  # (T, N, B D)
        if self.function == "table":
            product = kept_with(self._forest, TABLES[path])(nodes, parameters["table"])
        else:
            sweeps = kept_with(self._forest, SWEEPS[path])
            product = sweeps(nodes, parameters["rate"], parameters["offset"])
        return from_nodes(product, x)

    def _signal_of_batch(self, x: Signal, parameters: Tensors, inputs: Tensors) -> Signal:
        shape, parents = ops.shape(x), inputs["parents"]
        nodes = ops.reshape(x, (-1, *shape[2:]))  # (B T, N, D): one forest of all examples
        if self.function == "table":
            product = table_product_of_batch(nodes, parameters["table"], parents)
        else:
            rate, offset = parameters["rate"], parameters["offset"]
            lengths, depth = inputs.get("edge_weights"), self._depth(parents)
            product = exponential_product_of_batch(nodes, rate, offset, parents, lengths, depth)
        return ops.reshape(product, shape)

    @reads_topology
    def _matrix(self, length: Length, parameters: Tensors, inputs: Tensors) -> Rows:
        distances, same_tree = self._distances(parameters, inputs)
        if self.function == "exponential":
            distances = ops.cast(distances, parameters["rate"].dtype)
            rate, offset = (parameters[name][None, :, None, None] for name in ("rate", "offset"))
            factors = ops.exp(rate * distances[:, None] + offset)
            return ops.where(same_tree[:, None], factors, 0.0)
        table = pad(parameters["table"], ((0, 1), (0, 0)))  # one more distance, of factor 0
        beyond = (self.max_distance or 0) + 1
        places = ops.cast(ops.round(ops.minimum(distances, float(beyond))), "int32")
        places = ops.where(same_tree, places, beyond)  # (1 or B, T, T)
        return ops.transpose(take(table, places, axis=0), (0, 3, 1, 2))

    def _distances(
        self, parameters: Tensors, inputs: Tensors
    ) -> tuple[Float[Tensor, "B? T T"], Bool[Tensor, "B? T T"]]:
        """All distances, 0 across trees, and which nodes share a tree."""
        if self._forest is None:
            parents = inputs["parents"]
            return distances_of_batch(parents, inputs.get("edge_weights"), self._depth(parents))
        kept = self._finite_distances
        if kept is None:
            kept = finite_distances(self._forest)
            if not traced_by_torch():
                self._finite_distances = kept
        distances, same_tree = kept
        dtype = keras.backend.standardize_dtype(next(iter(parameters.values())).dtype)
        # cast by NumPy: LiteRT has no cast of a constant
        return ops.convert_to_tensor(distances.astype(dtype)), ops.convert_to_tensor(same_tree)

    def _depth(self, parents: Int[Tensor, "B T"]) -> int:
        """The largest possible number of ancestors of a node."""
        length = parents.shape[1]
        if isinstance(length, int):
            return length - 1 if self.max_depth is None else min(self.max_depth, length - 1)
        if self.max_depth is None:
            raise ValueError(
                "Pointer doubling needs a largest depth if the length is not known. Received: "
                "parents of unknown length. Give `max_depth`."
            )
        return self.max_depth

    def get_config(self) -> dict[str, object]:
        config: dict[str, object] = super().get_config()
        forest = self._forest
        if forest is not None:
            parents = np.where(forest.depth > 0, forest.order[forest.parents], -1)
            config["forest"] = parents[forest.position].tolist()
            if (forest.weights[forest.depth > 0] != 1.0).any():
                config["edge_weights"] = forest.weights[forest.position].tolist()
        return config
