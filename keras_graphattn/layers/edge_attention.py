"""Attention along the edges of a graph, of an expander graph and of virtual nodes."""

from typing import Any

import keras
from keras import ops

from keras_graphattn.checks import Sizes, flag, optional, seed_of, whole
from keras_graphattn.filters import Filter
from keras_graphattn.graphs import Graph
from keras_graphattn.layers.base import (
    AttentionLayer,
    Call,
    Shape,
    Tokens,
    Vectors,
    optional_filter,
)
from keras_graphattn.masks.graphs.edges import graph_edges, read_graph
from keras_graphattn.masks.graphs.expander import cycles_of_seed, random_cycles
from keras_graphattn.masks.inputs import (
    Flags,
    Tensors,
    bounded_inputs,
    check_values,
    harmless,
    known_arrays,
    tensors_of,
)
from keras_graphattn.numerics.precision import (
    constant,
    pad,
    positions_of,
    size_tensor,
    without_padding,
)
from keras_graphattn.operators.edges import EdgeOperator, VirtualNodes
from keras_graphattn.types import Bool, Float, Int, Num, Size, Tensor


@keras.saving.register_keras_serializable(package="keras_graphattn")
class EdgeAttention(AttentionLayer):
    """Softmax attention along edges only, in time and memory linear in their number (Exphormer).

    Per head, with the softmax over the edges s -> t that end at node t,

        A[t, s] = softmax(q_t . k_s / sqrt(H)),    out = A V

    The edges are those of a graph in both directions, an edge from each node to itself, and those
    of an expander graph: a few random cycles, through which a few steps lead from each node to any
    other. Virtual nodes see all nodes, and all nodes see them. An n x n matrix is never formed. The
    option `filter` adds a filter of A, as in `GraphFilterAttention`: a filter that applies A K
    times looks K edges far.

    Args:
        num_heads: Number of attention heads.
        key_dim: Size H of each head for query and key.
        value_dim: Size of each head for value; `key_dim` by default.
        dropout: Dropout probability of the weights of edges and of virtual nodes.
        graph: A `keras_graphattn.graphs.Graph`, an integer array of edges of shape (E, 2), a
            symmetric scipy.sparse matrix, or an object like a networkx graph. `None` if each
            example of a batch has its own graph: then the calls take `edges`, integers of shape
            (B, E, 2). Nodes are numbered within the example, and (-1, -1) is padding. An edge
            counts once, even if it is given several times or in both directions. Weights of edges
            are not used: give them as `edge_features`.
        num_nodes: Number of nodes of `graph`, if the edges do not name them all.
        edge_features: Numbers of shape (E, F), a row for each row of an array `graph`. Those of a
            `Graph` are its own.
        edge_dim: Number F of features of an edge, if the calls take `edge_features` of shape
            (B, E, F); with `graph=None` only.
        self_loops: Whether each node sees itself.
        expander_degree: Degree of the expander graph: twice the number of its random cycles, so an
            even number. 4 or 6 are usual; 0 means no expander. The cycles depend on the seed and on
            the nodes that are not padding. An edge that the graph has too counts twice.
        num_virtual_nodes: Number of virtual nodes.
        filter: `None`, or a filter of A, an object of `keras_graphattn.filters` or its name, as in
            `GraphFilterAttention`.
        order: Order K of a `filter` given by its name; the filter's own default if `None`.
        **kwargs: Further arguments of `keras.layers.MultiHeadAttention` (`use_bias`,
            `output_shape`, initializers, regularizers, constraints, `use_gate`, `seed`, `name`,
            `dtype`) except `attention_axes`, `sliding_window` and `flash_attention`. The expander
            is drawn with `seed`; by default the seed is drawn and kept in the configuration. And
            `coefficient_learning_rate_multiplier`, as for `GraphFilterAttention`.

    Call arguments:
        query: Tensor of shape (B, T, d), one row per node.
        value: Tensor of shape (B, T, d'); `query` by default.
        key: Tensor of shape (B, T, d''); `value` by default.
        query_mask, value_mask, key_mask: Boolean tensors of shape (B, T); `False` marks padding.
            By default the inputs' Keras masks.
        attention_mask: Boolean tensor of shape (B, 1, T), a mask of keys. Pairs of nodes see each
            other only along edges.
        return_attention_scores: Whether to return A as well. It is formed only for this.
        training: Whether to apply dropout.
        mask_inputs: With `graph=None`, the dictionary `{"edges": ...}`, with `edge_dim` also
            `"edge_features"`. A wrong entry is an error if its value is known. In compiled code it
            makes the outputs of its example NaN.
        mask: `query_mask` by the name that wrappers such as `keras.layers.TimeDistributed` use.

    Returns:
        A tensor of shape (B, T, d), or `output_shape` instead of d; with
        `return_attention_scores=True` also A, of shape (B, num_heads, T, T). A node that may see
        nothing contributes exactly 0 to the output projection.

    Weights:
        The projections `query`, `key`, `value` and `attention_output`; `edge` of the features of
        edges, and of one more number for edges from a node to itself and for those of the expander,
        which have none; `virtual/query` and `virtual/key` of shape (num_virtual_nodes, num_heads,
        key_dim); the filter's coefficients.

    Raises:
        ValueError: For graphs that cannot be read, for arguments outside the ranges above, for a
            number of nodes that is not that of `graph`, for masks of pairs and
            `use_causal_mask=True`.

    Example:

    >>> ring = [[0, 1], [1, 2], [2, 3], [3, 0]]
    >>> layer = EdgeAttention(2, 8, graph=ring, num_virtual_nodes=1, filter="first_order")
    >>> nodes = keras.random.normal((1, 4, 16))
    >>> tuple(layer(nodes).shape)
    (1, 4, 16)
    >>> layer = EdgeAttention(2, 8, expander_degree=4)
    >>> tuple(layer(nodes, mask_inputs={"edges": np.array([ring])}).shape)
    (1, 4, 16)

    Source: Shirzad et al., "Exphormer: Sparse Transformers for Graphs", arXiv 2303.06147 (ICML
    2023), Sections 3 and 4. With features f of an edge, the products of queries and keys are
    multiplied by a learned map of f, as in its code. Ours: filters of A; virtual nodes that pass on
    what they see within one application of A, as A stays n x n; and 1 is added to the map of f, so
    that features of 0 leave the usual score.
    """

    takes_mask_inputs = True

    filter: Filter | None
    seed: Any
    max_rank = 3
    refused = ("attention_axes", "sliding_window", "bias")
    instead = "Leave it out: nodes see each other along edges only, and edges may have features."
    across_sequences = "The nodes of a graph are both queries and keys."

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        *,
        graph: Any = None,
        num_nodes: int | None = None,
        edge_features: Any = None,
        edge_dim: int | None = None,
        self_loops: bool = True,
        expander_degree: int = 0,
        num_virtual_nodes: int = 0,
        filter: str | Filter | dict[str, Any] | None = None,
        order: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, key_dim, value_dim, dropout, **kwargs)
        self.filter = optional_filter(filter, num_heads, order)
        self.self_loops = flag("self_loops", self_loops)
        self.expander_degree = whole(0)("expander_degree", expander_degree, {})
        if self.expander_degree % 2:
            raise ValueError(
                "`expander_degree` must be even, because each cycle gives two edges to a node. "
                f"Received: expander_degree={expander_degree}"
            )
        if self.expander_degree:
            if self.seed is None:
                self.seed = seed_of(None)  # kept in the configuration
            self._cycles = cycles_of_seed(self.expander_degree // 2, self.seed)
        self.num_virtual_nodes = whole(0)("num_virtual_nodes", num_virtual_nodes, {})
        self.edge_dim = optional(whole())("edge_dim", edge_dim, {})
        self._graph = _graph_of(graph, num_nodes, edge_features)
        self.inputs_at_call: tuple[str, ...] = ()
        if self._graph is None:
            features = () if edge_dim is None else ("edge_features",)
            self.inputs_at_call = ("edges", *features)
        elif edge_dim is not None:
            raise ValueError(
                "`edge_dim` is for features that come with each call. Received: a `graph`, and "
                f"edge_dim={edge_dim}. Leave it out: the width of `edge_features` is known."
            )

    @property
    def num_edge_features(self) -> int:
        """The number of features of an edge, with one for each further kind of edges; or 0."""
        features = None if self._graph is None else self._graph.edge_features
        count = self.edge_dim or (0 if features is None else features.shape[1])
        return count and count + self.self_loops + bool(self.expander_degree)

    def add_sublayers(self, query_shape: Shape) -> None:
        if self.num_edge_features:
            shape = (None, None, self.num_edge_features)
            self._edge_dense = self._token_projection("edge", shape, self.key_dim)
        if self.num_virtual_nodes:
            size = (self.num_virtual_nodes, self.num_heads, self.key_dim)
            options = self._get_common_kwargs_for_sublayer()
            self._virtual = Vectors("virtual", size, **options)
            self._virtual.build()

    def operator(self, tokens: Tokens, call: Call) -> EdgeOperator:
        if call.visibility.causal:
            raise ValueError(
                "EdgeAttention goes along edges in both directions and is not causal. Received: "
                "use_causal_mask=True. Use GraphFilterAttention for sequences."
            )
        keys = call.visibility.keys
        if call.visibility.entries is not None:
            keys = self._visible_keys(tokens, call.visibility, "Leave out edges instead.")
        inputs, wrong = self._inputs(tokens, dict(call.mask_inputs or {}))
        batch, length = ops.shape(tokens.key)[:2]
        edges, features = self._edges(inputs, batch, length, keys)
        virtual = None
        if self.num_virtual_nodes:
            vectors = self._virtual.query, self._virtual.key
            virtual = VirtualNodes(*map(ops.convert_to_tensor, vectors))
        return EdgeOperator(
            tokens.query,
            tokens.key,
            edges,
            scale=self.score_scale,
            factors=None if features is None else 1.0 + self._edge_dense(features),
            virtual=virtual,
            queries=call.visibility.queries,
            keys=keys,
            dropout=self._dropout_in(call.training),
            wrong=wrong,
        )

    def _check_scores(self, attention_bias: object, bias_inputs: object) -> None:
        for name, given in (("attention_bias", attention_bias), ("bias_inputs", bias_inputs)):
            if given is not None:
                raise ValueError(
                    "EdgeAttention forms no matrix of scores to add a bias to. Received: "
                    f"`{name}`. Give edges features instead."
                )

    def _inputs(self, tokens: Tokens, inputs: Tensors) -> tuple[Tensors, Flags]:
        """The edges and their features, and which examples have a wrong entry."""
        names, length = self.inputs_at_call, tokens.key.shape[1]
        if set(inputs) != set(names):
            hint = ", ".join(f'"{name}": ...' for name in names)
            raise ValueError(
                f"This {type(self).__name__} needs the tensors {list(names)} at each call. "
                f"Received: {sorted(inputs)}. Call it with "
                f"{f'mask_inputs={{{hint}}}' if names else 'no `mask_inputs`'}."
            )
        if self._graph is not None:
            if isinstance(length, int) and length != self._graph.num_nodes:
                raise ValueError(
                    f"The `graph` of this {type(self).__name__} has {self._graph.num_nodes} nodes, "
                    f"one for each token. Received: length={length}. Give `num_nodes` for isolated "
                    "nodes, or leave out `graph` and give `edges` with each call."
                )
            edges, features = self._graph.edges[None].astype("int32"), self._graph.edge_features
            found, wrong = {"edges": constant(edges)}, None
            if not isinstance(length, int):  # known only at run time, where there are no errors
                batch, count = ops.shape(tokens.key)[:2]
                count = size_tensor(count, "int32")
                found["edges"] = ops.where(found["edges"] < count, found["edges"], -1)
                wrong = ops.not_equal(ops.broadcast_to(count, (batch,)), self._graph.num_nodes)
            if features is not None:
                found["edge_features"] = constant(features[None])
            return found, wrong
        sizes: Sizes = {}
        if isinstance(tokens.key.shape[0], int):
            sizes["B"] = (tokens.key.shape[0], "query")
        if self.edge_dim is not None:
            sizes["F"] = (self.edge_dim, "edge_dim")
        tensors, arrays = tensors_of(names, inputs, sizes), known_arrays(inputs)
        are_usable = check_values(arrays, length if isinstance(length, int) else None, None)
        if are_usable and len(arrays) == len(tensors):
            return tensors, None
        tensors, wrong = bounded_inputs(tensors, ops.shape(tokens.key)[1], None)
        return tensors if wrong is None else harmless(tensors, wrong), wrong

    def _edges(
        self, inputs: Tensors, batch: Size, length: Size, keys: Bool[Tensor, "B T"] | None
    ) -> tuple[Int[Tensor, "B E 2"], Float[Tensor, "B E F"] | None]:
        """All edges with their directions, and their features if there are any."""
        edges = ops.cast(inputs["edges"], "int32")
        kinds = [ops.concatenate([edges, ops.flip(edges, axis=-1)], axis=1)]
        if self.self_loops:
            nodes = positions_of(length)
            kinds.append(ops.stack([nodes, nodes], axis=-1)[None])
        if self.expander_degree:
            kinds.append(random_cycles(self._cycles, length, keys))
        width, features = self.num_edge_features, []
        if width:
            numbers = without_padding(inputs["edge_features"], ops.all(edges >= 0, axis=-1))
            further = len(kinds) - 1  # features, one for each kind of edges without any
            numbers = pad(ops.tile(numbers, (1, 2, 1)), ((0, 0), (0, 0), (0, further)))
            features.append(ops.cast(numbers, self.compute_dtype))
            for number, kind in enumerate(kinds[1:]):
                mark = ops.one_hot(width - further + number, width, dtype=self.compute_dtype)
                features.append(ops.zeros_like(kind[..., :1], self.compute_dtype) + mark)
        return _joined(kinds, batch), _joined(features, batch) if width else None

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        if self._graph is not None:
            features = self._graph.edge_features
            config["graph"] = self._graph.edges.tolist()
            config["num_nodes"] = self._graph.num_nodes
            config["edge_features"] = None if features is None else features.tolist()
        for name in ("edge_dim", "self_loops", "expander_degree", "num_virtual_nodes"):
            config[name] = getattr(self, name)
        config["filter"] = keras.saving.serialize_keras_object(self.filter)
        return config


def _joined(parts: list[Tensor], batch: Size) -> Num[Tensor, "B E _"]:
    """Parts (1 or B, E, size) side by side, for each example."""
    whole_batch = (ops.broadcast_to(part, (batch, *ops.shape(part)[1:])) for part in parts)
    return ops.concatenate([*whole_batch], axis=1)


def _graph_of(graph: Any, num_nodes: int | None, edge_features: Any) -> Graph | None:
    """The graph of the constructor, or `None`: each call has its own."""
    given = {"num_nodes": num_nodes, "edge_features": edge_features}
    if graph is None or isinstance(graph, Graph):
        for name, value in given.items():
            if value is not None:
                kind = "no `graph`" if graph is None else "a Graph, which has its own,"
                raise ValueError(
                    f"`{name}` is for a `graph` of edges. Received: {kind} and {name}={value!r}. "
                    f"Leave out `{name}`; the calls of a layer without `graph` take edges."
                )
        return graph
    if edge_features is not None:
        return Graph(graph, None, None, edge_features, None, num_nodes)
    adjacency = read_graph(graph, num_nodes)
    return Graph(graph_edges(adjacency)[0], num_nodes=adjacency.shape[0])
