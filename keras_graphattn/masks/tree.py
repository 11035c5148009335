"""Masks over trees: factors that depend on the distance between two nodes of a forest."""

from functools import cached_property
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_graphattn.checks import one_of, optional, whole
from keras_graphattn.masks.inputs import Tensors, bounded_inputs, check_values
from keras_graphattn.masks.mask import widest_dtype
from keras_graphattn.masks.topology import (
    TopologyMask,
    finite,
    from_nodes,
    in_float32,
    to_nodes,
    whole_number,
)
from keras_graphattn.masks.tree_forest import forest_config, read_forest
from keras_graphattn.numerics.precision import pad, take
from keras_graphattn.ops.trees.choice import sweep_path, way_of_running
from keras_graphattn.ops.trees.distances import (
    depth_product_of_batch,
    distances_of_batch,
)
from keras_graphattn.ops.trees.doubling import doubling_plan_of_batch
from keras_graphattn.ops.trees.exponential import (
    PLANS,
    check_exponents,
    exponential_tree_product,
    swept_product,
)
from keras_graphattn.ops.trees.forests import (
    Forest,
    farthest_distance,
    forest_diameter,
    forest_distances,
)
from keras_graphattn.ops.trees.spines import is_caterpillar
from keras_graphattn.ops.trees.tables import own_path, table_tree_product

Tensor = Any

FUNCTIONS = ("exponential", "table")


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Tree(TopologyMask):
    """M[i, j] = f(dist(i, j)) for two nodes of one tree, 0 across trees; O(n) for exponentials.

    The tokens are the nodes of a forest. With `function="exponential"`, f(z) = exp(a z + b) of the
    weighted distance z, with a and b learned per head. The product takes two sweeps over the
    forest. With `function="table"`, f is any function of the number of edges: one learned positive
    value per distance and head.

    The path that "auto" takes follows measurements (benchmarks/tree_and_graph_masks.py; the numbers
    are in `keras_graphattn.ops.trees.choice`). For few nodes it is the matrix. For exponentials:

    - `levels`, unrolled, for bushy trees. It works on each node once, and one step per level is
      cheap for up to some hundred levels.
    - `scan` for deep trees on jax and under XLA, whose compiled loops cost less than a microsecond
      per level.
    - `doubling` for deep trees on torch, and on TensorFlow without XLA, whose loops cost tens to
      hundreds of microseconds per level.

    For a table:

    - `spines` if every tree is a path once its leaves are removed. It takes one to three Toeplitz
      products.
    - `depths` for diameters up to about half of log2(n). It takes a pass over the nodes for each
      distance.
    - `centroids` for larger diameters.

    For a table, the error of a row is about 1e-7 of the largest factor times the largest sum of
    tokens of its tree, except on the path "dense", where it is 1e-7 of the row. A node beyond the
    last distance never changes a row, not even by rounding.

    Args:
        forest: Integers of shape (n,): each node's parent, -1 at roots. Or a graph without
            cycles: an integer array of edges of shape (E, 2), a scipy.sparse matrix of edge
            weights, or an object like a networkx graph. `None` if each example of a batch has its
            own forest: then the calls take `parents`, integers of shape (B, T), numbered within
            the example, -1 at roots and padding. A parent out of range and a cycle are errors; in
            compiled code they put NaN into the outputs of their example (see `Mask`).
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
        **kwargs: `name`, `trainable` and `dtype` of a Keras layer, and
            `coefficient_learning_rate_multiplier`, the property, 30 by default.

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

    def __init__(
        self,
        forest: Any = None,
        edge_weights: Any = None,
        num_nodes: int | None = None,
        *,
        function: str = "exponential",
        initial_rate: Any = -1.0,
        initial_offset: Any = 0.0,
        initial_table: Any = None,
        max_distance: int | None = None,
        max_depth: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        one_of(*FUNCTIONS)("function", function, {})
        num_nodes = optional(whole(0))("num_nodes", num_nodes, {})
        max_distance = optional(whole(0))("max_distance", max_distance, {})
        has_weights = edge_weights is not None and edge_weights is not False
        if has_weights and function == "table":
            raise ValueError(
                "A table is a function of the number of edges. Received: `edge_weights` as well. "
                'Leave them out, or use function="exponential" for weighted trees.'
            )
        self.function = function
        self.initial_rate = finite("initial_rate", initial_rate)
        self.initial_offset = finite("initial_offset", initial_offset)
        self.initial_table = None
        if initial_table is not None:
            self.initial_table = finite("initial_table", initial_table, positive=True)
            if np.ndim(self.initial_table) not in (1, 2):
                raise ValueError(
                    "`initial_table` must be of shape (distances,) or (distances, num_heads). "
                    f"Received: initial_table={initial_table!r}"
                )
        self.max_depth = None if max_depth is None else whole_number("max_depth", max_depth, 0)
        self._read(forest, edge_weights if has_weights else None, num_nodes)
        self.max_distance = self._last_distance(max_distance)

    def _read(self, forest: Any, edge_weights: Any, num_nodes: int | None) -> None:
        exponential = self.function == "exponential"
        if forest is None:
            if edge_weights is not None and edge_weights is not True:
                raise ValueError(
                    "Without a forest, `edge_weights` must be True if the calls take edge weights, "
                    f"else None. Received: edge_weights={edge_weights!r}. Use True or None."
                )
            self._forest = None
            self.inputs_at_call = ("parents", "edge_weights") if edge_weights else ("parents",)
            self.paths = ("dense", "doubling" if exponential else "depths")
            return
        if self.max_depth is not None:
            raise ValueError(
                "`max_depth` is only for forests that come with each call. Received: `forest` and "
                "`max_depth`. Leave `max_depth` out."
            )
        found = read_forest(forest, edge_weights, num_nodes)
        self._forest, self.num_nodes = found, found.size
        self.paths = ("dense", *(PLANS if exponential else ("depths", "centroids")))
        if not exponential and is_caterpillar(found):
            self.paths += ("spines",)

    def _last_distance(self, given: int | None) -> int | None:
        if self.function != "table":
            if given is not None or self.initial_table is not None:
                raise ValueError(
                    '`max_distance` and `initial_table` belong to function="table". Received: '
                    f'function={self.function!r}. Leave them out, or use function="table".'
                )
            return None
        if self.initial_table is not None:
            last = len(self.initial_table) - 1
            if given not in (None, last):
                raise ValueError(
                    f"`initial_table` ends at distance {last}. Received: max_distance={given}. "
                    "Leave `max_distance` out."
                )
            return last
        if given is not None:
            return whole_number("max_distance", given, 0)
        if self._forest is None:
            raise ValueError(
                "A table for trees that come with each call needs a last distance. Received: "
                "max_distance=None. Give `max_distance` or `initial_table`."
            )
        return forest_diameter(self._forest)

    @property
    def hides_keys(self) -> bool:
        return self._forest is None or int(self._forest.starts[1]) > 1 or self.function == "table"

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        if self.function == "exponential":
            rate = self._of_heads("initial_rate", self.initial_rate)
            self.rate = self._add_parameter("rate", rate)
            offset = self._of_heads("initial_offset", self.initial_offset)
            farthest = 0.0 if self._forest is None else farthest_distance(self._forest)
            check_exponents(rate, offset, farthest, self.variable_dtype)
            self.offset = self._add_parameter("offset", offset)
            return
        table = np.ones(1) if self.initial_table is None else np.asarray(self.initial_table)
        table = table[:, None] if table.ndim == 1 else table
        table = self._of_heads("initial_table", table, (self.max_distance or 0) + 1)
        self.log_table = self._add_parameter("log_table", np.log(table))

    def parameters(self) -> Tensors:
        if self.function == "exponential":
            return in_float32({"rate": self.rate, "offset": self.offset})
        return {"table": ops.exp(in_float32({"table": self.log_table})["table"])}

    @property
    def _given(self) -> Forest:
        assert self._forest is not None
        return self._forest

    @cached_property
    def _distances(self) -> np.ndarray:
        return forest_distances(self._given)[None]

    def _own_path(self, columns: int = 64) -> str:
        if self._forest is None:
            return self.paths[-1]
        if self.function == "exponential":
            return sweep_path(self._given, way_of_running(), columns)
        return own_path(self._given, self.max_distance or 0)

    def _signal(self, x: Tensor, path: str, parameters: Tensors, inputs: Tensors) -> Tensor:
        if self._forest is None:
            return self._signal_of_batch(x, parameters, inputs)
        nodes = to_nodes(x)  # (T, N, B D)
        if self.function == "table":
            found = table_tree_product(nodes, parameters["table"], self._given, path)
        else:
            rate, offset = parameters["rate"], parameters["offset"]
            found = exponential_tree_product(nodes, rate, offset, self._given, path)
        return from_nodes(found, x)

    def _signal_of_batch(self, x: Tensor, parameters: Tensors, inputs: Tensors) -> Tensor:
        shape, parents = ops.shape(x), inputs["parents"]
        nodes = ops.reshape(x, (-1, *shape[2:]))  # (B T, N, D): one forest of all examples
        if self.function == "table":
            found = depth_product_of_batch(nodes, parameters["table"], parents)
        else:
            weights = inputs.get("edge_weights")
            plan = doubling_plan_of_batch(parents, weights, self._depth(parents))
            found = swept_product(nodes, parameters["rate"], parameters["offset"], plan)
        return ops.reshape(found, shape)

    def _matrix(self, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        if self._forest is None:
            parents = inputs["parents"]
            weights = inputs.get("edge_weights")
            # (B, T, T) each
            distances, same = distances_of_batch(parents, weights, self._depth(parents))
        else:
            known = np.isfinite(self._distances)
            dtype = widest_dtype(parameters.values())
            distances = ops.convert_to_tensor(np.where(known, self._distances, 0.0), dtype=dtype)
            same = ops.convert_to_tensor(known)  # (1, T, T)
        if self.function == "exponential":
            distances = ops.cast(distances, parameters["rate"].dtype)
            rate, offset = (parameters[name][None, :, None, None] for name in ("rate", "offset"))
            factors = ops.exp(rate * distances[:, None] + offset)  # (1 or B, N, T, T)
            return ops.where(same[:, None], factors, 0.0)
        table = pad(parameters["table"], ((0, 1), (0, 0)))  # one more distance, of factor 0
        beyond = (self.max_distance or 0) + 1
        places = ops.cast(ops.round(ops.minimum(distances, float(beyond))), "int32")
        places = ops.where(same, places, beyond)  # (1 or B, T, T)
        return ops.transpose(take(table, places, axis=0), (0, 3, 1, 2))

    def _depth(self, parents: Tensor) -> int:
        longest = parents.shape[1] if isinstance(parents.shape[1], int) else None
        if self.max_depth is not None:
            return self.max_depth if longest is None else min(self.max_depth, longest - 1)
        if longest is None:
            raise ValueError(
                "Pointer doubling needs a largest depth if the length is not known. Received: "
                "parents of unknown length. Give `max_depth`."
            )
        return int(longest) - 1

    def _check_values(self, inputs: dict[str, Any], length: int | None) -> bool:
        return check_values(inputs, length, self.max_depth)

    def _bounded(self, inputs: Tensors, length: Any) -> tuple[Tensors, Tensor | None]:
        return bounded_inputs(inputs, length, self.max_depth)

    def _known_length(self, inputs: Tensors) -> Any:
        return ops.shape(inputs["parents"])[1] if inputs else super()._known_length(inputs)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        if self._forest is None:
            config |= {"forest": None, "edge_weights": "edge_weights" in self.inputs_at_call}
        else:
            config |= forest_config(self._forest)
        return config | {
            "function": self.function,
            "initial_rate": self.initial_rate,
            "initial_offset": self.initial_offset,
            "initial_table": self.initial_table,
            "max_distance": self.max_distance,
            "max_depth": self.max_depth,
        }
