"""The tensors that come with a call of a mask or bias: their names, shapes and values.

`INPUTS` has one row for each tensor whose values are checked. A row has two forms of the same
rules. `check` reads NumPy arrays and raises an error that names the example and the entry.
`bounded` works in compiled code, which knows no values and raises no errors. It keeps each index
within its own example, and finds the examples with a wrong entry. Their results become NaN, those
of other examples do not change.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_graphattn.checks import Sizes, check_shape, dtype_name, integers, known_value, tensor
from keras_graphattn.masks.graphs.edges import disagreeing, edges_once, repeated_edges
from keras_graphattn.masks.trees.forest import trees_without_root
from keras_graphattn.numerics.precision import any_of, size_tensor
from keras_graphattn.types import Bool, Float, Int, Tensor

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]
Tensors = dict[str, Tensor]
Length = int | Int[Tensor, ""]  # a number of tokens, known or not
Flags = Bool[Tensor, " B?"] | None  # of examples; None is a test that no example can fail
Bounded = tuple[Tensors, list[Bool[Tensor, "B ..."]]]

INT32 = (-(2**31), 2**31 - 1)
NARROW = ("int8", "int16", "uint8", "uint16")


class Prepared(NamedTuple):
    """The checked inputs of a call, which examples hold a wrong entry, and the number of tokens."""

    tensors: Tensors
    wrong: Flags
    length: Length


class CallInput:
    """A tensor of numbers of any shape and any values; the base of those with a check."""

    def __init__(self, *shapes: str, is_integer: bool = False, harmless: int | None = None) -> None:
        self.shapes, self.is_integer = shapes, is_integer
        self.harmless = harmless  # replaces the entries of a wrong example

    def check(self, inputs: Arrays, length: int | None, limit: int | None) -> bool:
        """Raises a `ValueError` for a wrong entry; else says if the array can be used as it is."""
        return True

    def bounded(self, inputs: Tensors, length: Length, limit: int | None) -> Bounded:
        """The tensors with bounded entries, and flags of the wrong entries."""
        return {}, []


class SegmentIds(CallInput):
    """Numbers of segments; negative in padding."""

    def check(self, inputs: Arrays, length: int | None, limit: int | None) -> bool:
        ids = inputs["segment_ids"]
        place = _first(_outside(ids, *INT32))
        if place:
            raise ValueError(
                f"`segment_ids` of example {place[0]}: token {place[1]} has the id {ids[place]}, "
                "but ids must be in the range of int32. Number the segments within the example."
            )
        return True

    def bounded(self, inputs: Tensors, length: Length, limit: int | None) -> Bounded:
        ids = inputs["segment_ids"]
        if dtype_name(ids.dtype) not in ("int64", "uint32", "uint64"):
            return {"segment_ids": ops.cast(ids, "int32")}, []
        ids, right = bounded_ids(ids, INT32[0], INT32[1] + 1)
        return {"segment_ids": ids}, [ops.logical_not(right)]


class Parents(CallInput):
    """The parent of each node of a forest, -1 at roots; with or without lengths of the edges."""

    def check(self, inputs: Arrays, length: int | None, limit: int | None) -> bool:
        parents, lengths = inputs["parents"], _weights(inputs)
        count = parents.shape[1]
        place = _first(_outside(parents, -1, count - 1))
        if place:
            raise ValueError(
                f"`parents` of example {place[0]}: node {place[1]} has parent {parents[place]}, "
                f"but there are {count} nodes. Parents are numbered within the example, from 0; -1 "
                "marks a root."
            )
        if lengths is not None:
            place = _first((parents >= 0) & ~((lengths >= 0.0) & np.isfinite(lengths)))
            if place:
                raise ValueError(
                    f"`edge_weights` of example {place[0]}: the edge from node {place[1]} to its "
                    f"parent has the length {lengths[place]:g}. Lengths must be finite and at "
                    "least 0."
                )
        ancestors = _ancestors(parents)
        place = _first(ancestors < 0)
        if place:
            circle = _circle_from(parents[place[0]], place[1])
            names = ", ".join(map(str, circle[:8])) + (", ..." if len(circle) > 8 else "")
            cycle = f"nodes {names} form a cycle"
            reason = cycle if len(circle) > 1 else f"node {names} is its own parent"
            raise ValueError(
                f"`parents` of example {place[0]}: node {place[1]} never reaches a root, because "
                f"{reason}. The root of each tree has parent -1."
            )
        place = None if limit is None else _first(ancestors > limit)
        if place:
            raise ValueError(
                f"`parents` of example {place[0]}: node {place[1]} has {ancestors[place]} "
                f"ancestors, but the mask has max_depth={limit}. Use a larger `max_depth`."
            )
        return True

    def bounded(self, inputs: Tensors, length: Length, limit: int | None) -> Bounded:
        parents, right = bounded_ids(inputs["parents"], -1, length)
        depth = limit
        if isinstance(length, int):
            depth = length - 1 if limit is None else min(length - 1, limit)
        wrong = [ops.logical_not(right), trees_without_root(parents, depth, limit)]
        if "edge_weights" in inputs:
            lengths = inputs["edge_weights"]
            right = ops.logical_and(lengths >= 0.0, ops.isfinite(lengths))
            wrong.append(ops.logical_and(parents >= 0, ops.logical_not(right)))
        return {"parents": parents}, wrong


class Edges(CallInput):
    """The two nodes of each edge of a graph, -1 in padding; with weights, features or neither."""

    def check(self, inputs: Arrays, length: int | None, limit: int | None) -> bool:
        edges, weights, features = inputs["edges"], _weights(inputs), inputs.get("edge_features")
        _check_ends(edges, length)
        if weights is not None:
            place = _first((edges[..., 0] >= 0) & ~((weights > 0.0) & (weights < np.inf)))
            if place:
                raise ValueError(
                    f"`edge_weights` of example {place[0]}: edge {place[1]} has the weight "
                    f"{weights[place]:g}. Weights must be finite and positive. To leave out an "
                    "edge, give it the nodes (-1, -1)."
                )
        if features is not None:
            place = _first((edges[..., :1] >= 0) & ~np.isfinite(features))
            if place:
                raise ValueError(
                    f"`edge_features` of example {place[0]}: feature {place[2]} of edge {place[1]} "
                    f"is {features[place]:g}. Features must be finite. To leave out an edge, give "
                    "it the nodes (-1, -1)."
                )
        later, earlier = repeated_edges(edges)
        for name, numbers in (("weights", weights), ("features", features)):
            if numbers is None or not len(later):
                continue
            apart = disagreeing(numbers.reshape((edges[..., 0].size, -1)), later, earlier)
            if len(apart):
                pair = int(earlier[apart[0]]), int(later[apart[0]])
                (example, one), (_, other) = (divmod(place, edges.shape[1]) for place in pair)
                u, v = sorted(edges[example, one].tolist())
                raise ValueError(
                    f"`edge_{name}` of example {example}: edges {one} and {other} both join nodes "
                    f"{u} and {v}, with the {name} {numbers[example, one]} and "
                    f"{numbers[example, other]}. Give an edge once, or with equal {name}."
                )
        return not len(later)  # an edge that is given twice must be merged

    def bounded(self, inputs: Tensors, length: Length, limit: int | None) -> Bounded:
        edges, right = bounded_ids(inputs["edges"], -1, length)
        loop = ops.logical_and(ops.equal(edges[..., 0], edges[..., 1]), edges[..., 0] >= 0)
        # an edge with only one node of -1 is not padding
        half = ops.not_equal(edges[..., 0] >= 0, edges[..., 1] >= 0)
        wrong = [ops.logical_not(right), ops.logical_or(loop, half)]
        weights, numbers = inputs.get("edge_weights"), inputs.get("edge_features")
        if weights is not None:
            numbers = weights[..., None]
        if numbers is not None:
            known = ops.all(edges >= 0, axis=-1, keepdims=True)
            right = ops.isfinite(numbers)
            if weights is not None:
                right = ops.logical_and(numbers > 0.0, right)
            wrong.append(ops.logical_and(known, ops.logical_not(right)))
        edges, numbers, conflict = edges_once(edges, numbers, length)
        bounded = {"edges": edges}
        if numbers is not None and weights is not None:
            bounded["edge_weights"] = numbers[..., 0]
        elif numbers is not None:
            bounded["edge_features"] = numbers
        return bounded, [*wrong, conflict]


class Ids(CallInput):
    """Integers from `least` on, and below a number that `below` makes of a length and a limit."""

    def __init__(
        self,
        name: str,
        least: int,
        below: Callable[[Any, int | None], Any],
        message: str,
        *shapes: str,
        harmless: int | None = None,
    ) -> None:
        super().__init__(*shapes, is_integer=True, harmless=harmless)
        self.name, self.least, self.below, self.message = name, least, below, message

    def check(self, inputs: Arrays, length: int | None, limit: int | None) -> bool:
        ids = inputs[self.name]
        below = self.below(ids.shape[1], limit)
        place = _first(_outside(ids, self.least, below - 1))
        if place:
            example, *entry = place
            words = {"at": tuple(entry), "id": ids[place], "below": below, "most": below - 1}
            message = self.message.format(*entry, **words)
            raise ValueError(f"`{self.name}` of example {example}: {message}")
        return True

    def bounded(self, inputs: Tensors, length: Length, limit: int | None) -> Bounded:
        ids, right = bounded_ids(inputs[self.name], self.least, self.below(length, limit))
        return {self.name: ids}, [ops.logical_not(right)]


class Numbers(CallInput):
    """Numbers that are right or wrong by themselves: `is_right` takes arrays and tensors."""

    def __init__(
        self, name: str, is_right: Callable[[Any], Any], message: str, *shapes: str
    ) -> None:
        super().__init__(*shapes)
        self.name, self.is_right, self.message = name, is_right, message

    def check(self, inputs: Arrays, length: int | None, limit: int | None) -> bool:
        numbers = inputs[self.name]
        place = _first(~self.is_right(numbers))
        if place:
            of_all = len(place) == 2  # one matrix for all examples
            entry = place if of_all else place[1:]
            message = self.message.format(*entry, at=entry, number=numbers[place])
            raise ValueError(
                f"`{self.name}`{'' if of_all else f' of example {place[0]}'}: {message}"
            )
        return True

    def bounded(self, inputs: Tensors, length: Length, limit: int | None) -> Bounded:
        numbers = inputs[self.name]
        right = self.is_right(numbers)
        numbers = ops.where(right, numbers, ops.zeros_like(numbers))
        right = right[None] if len(numbers.shape) == 2 else right
        return {self.name: numbers}, [ops.logical_not(right)]


INPUTS: dict[str, CallInput] = {
    "segment_ids": SegmentIds("B T", is_integer=True, harmless=-1),
    "walks": Ids(
        *("walks", -1, lambda length, limit: length),
        "step {2} of walk {1} from node {0} is at node {id}, but there are {below} nodes. Nodes "
        "are numbered within the example, from 0; -1 fills the steps after the end of a walk.",
        "B T _ _",
        harmless=-1,
    ),
    "parents": Parents("B T", is_integer=True, harmless=-1),
    "entries": Numbers(
        *("entries", lambda x: (x >= 0) & (x < np.inf)),
        "the entry at {at} is {number}. Factors of a mask must be finite and not negative.",
        *("T T", "B? T T", "B? N? T T"),
    ),
    "log_gates": Numbers(
        *("log_gates", lambda x: (x >= -np.inf) & (x <= 0.0)),
        "token {0} has {number:g} in head {1}, but logarithms of gates must be at most 0. Use "
        "ops.log_sigmoid.",
        "B T N",
    ),
    "edges": Edges("B E 2", is_integer=True, harmless=-1),
    "distances": Ids(
        *("distances", -2, lambda length, limit: INT32[1]),
        "the entry at {at} is {id}. Distances are numbers of edges; -1 marks a pair without a "
        "path, -2 a pair with a virtual node.",
        "B T T",
    ),
    "paths": Ids(
        *("paths", -1, lambda length, limit: limit or INT32[1]),
        "the entry at {at} is {id}, but types of edges are numbers from 0 to {most}; -1 fills the "
        "places after the end of a path.",
        "B T T _",
    ),
    "walk_probabilities": Numbers(
        *("walk_probabilities", lambda x: (x > -np.inf) & (x < np.inf)),
        "the entry at {at} is {number}. The numbers must be finite.",
        "B T T _",
    ),
    "edge_weights": CallInput("B E", harmless=1),  # `edges` and `parents` check them
    "edge_features": CallInput("B E F", harmless=0),  # `edges` check them
}


def tensors_of(names: tuple[str, ...], inputs: Tensors, sizes: Sizes) -> Tensors:
    """The inputs of a call as tensors of the right shapes."""
    tensors = {}
    for name in names:
        rule = (integers if _rule(name).is_integer else tensor)(*_shapes(name, names))
        tensors[name] = ops.convert_to_tensor(rule(name, inputs[name], sizes))
    return tensors


def arrays_of(names: tuple[str, ...], inputs: dict[str, Any], sizes: Sizes) -> Arrays:
    """The inputs of `Mask.check_inputs` as NumPy arrays of the right shapes."""
    arrays = {}
    for name in names:
        array, is_integer = known_value(inputs[name]), _rule(name).is_integer
        if array is None or array.dtype.kind not in ("iu" if is_integer else "biuf"):
            raise ValueError(
                f"`{name}` must be an array of {'integers' if is_integer else 'numbers'}, or a "
                f"tensor whose values are known. Received: {inputs[name]!r}. Compiled code knows "
                "no values: check them before it."
            )
        check_shape(name, array, _shapes(name, names), sizes)
        arrays[name] = array
    return arrays


def number_of_tokens(inputs: Tensors) -> Length | None:
    """The size of the axis of tokens of the first input that has one."""
    for name, x in inputs.items():
        letters = " ".join(_shapes(name, tuple(inputs))[:1]).split()
        if "T" in letters:
            return ops.shape(x)[letters.index("T") - len(letters)]
    return None


def known_arrays(inputs: Tensors) -> Arrays:
    """The inputs whose values are known, as NumPy arrays."""
    arrays = {name: known_value(tensor) for name, tensor in inputs.items()}
    return {name: array for name, array in arrays.items() if array is not None}


def check_values(inputs: Arrays, length: int | None, limit: int | None) -> bool:
    """Raises a `ValueError` that names the first wrong example and entry.

    Returns `True` if the arrays can be used as they are, `False` if an edge is given twice.
    `limit` is that of a mask or bias: the most ancestors of a tree node, or the types of edges.
    """
    rules = [rule for name, rule in INPUTS.items() if name in inputs]
    if not rules:  # also in a graph that torch compiles, which cannot have the next line
        return True
    with np.errstate(invalid="ignore"):
        return all(rule.check(inputs, length, limit) for rule in rules)


def bounded_inputs(inputs: Tensors, length: Length, limit: int | None) -> tuple[Tensors, Flags]:
    """Keeps every index within its own example, and finds the examples with a wrong entry.

    Their flags have shape (B,), or are `None` if no entry can be wrong.
    """
    bounded, wrong = dict(inputs), None
    for name, rule in INPUTS.items():
        if name in inputs:
            tensors, places = rule.bounded(inputs, length, limit)
            bounded |= tensors
            for place in places:
                axes = tuple(range(1, len(place.shape)))
                wrong = either(wrong, any_of(place, axes))
    return bounded, wrong


def harmless(inputs: Tensors, wrong: Bool[Tensor, " B?"]) -> Tensors:
    """Replaces the inputs of wrong examples: they get no edges, only roots, or padding."""
    replaced = dict(inputs)
    for name, x in inputs.items():
        number = _rule(name).harmless
        if number is not None:
            replaced[name] = ops.where(example_flags(wrong, x), ops.cast(number, x.dtype), x)
    return replaced


def either(first: Flags, second: Flags) -> Flags:
    """Joins the flags of two tests."""
    if first is None or second is None:
        return first if second is None else second
    return ops.logical_or(first, second)


def marked(result: Float[Tensor, "B ..."], wrong: Flags) -> Float[Tensor, "B ..."]:
    """Puts NaN into the results of wrong examples, which then pass no gradient."""
    if wrong is None:
        return result
    return ops.where(example_flags(wrong, result), ops.cast(float("nan"), result.dtype), result)


def checked_positions(
    positions: Any, length: Length
) -> tuple[Int[Tensor, " R"], Bool[Tensor, " R"] | None]:
    """int32 positions, and which of them are right, or `None` if all are.

    Known positions that are not in 0 ... `length` - 1 are refused, others kept in bounds.
    """
    tensors, values = integers("R")("positions", positions, {}), known_value(positions)
    if values is None or not isinstance(length, int):
        bounded, right = bounded_ids(tensors, 0, length)
        return ops.maximum(bounded, 0), right
    place = _first(_outside(values, 0, length - 1))
    if place:
        raise ValueError(
            f"`positions` must be numbers from 0 to {length - 1}. Received: {values[place]} at "
            f"positions[{place[0]}]. Negative numbers do not count from the end: add {length} to "
            "them."
        )
    return ops.cast(tensors, "int32"), None


def _rule(name: str) -> CallInput:
    return INPUTS.get(name, CallInput())


def _shapes(name: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """The shapes of an input; with parents, there is one length for each node."""
    is_of_nodes = name == "edge_weights" and "parents" in names
    return ("B T",) if is_of_nodes else _rule(name).shapes


def _weights(inputs: Arrays) -> Array | None:
    weights = inputs.get("edge_weights")
    return None if weights is None else weights.astype("float64")


def _first(wrong: Array) -> tuple[int, ...] | None:
    """The index of the first `True` entry, or `None`."""
    return tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.any() else None


def _outside(ids: Array, low: int, high: int) -> Array:
    """Which ids are below `low` or above `high`, for any integer type."""
    # Unsigned ids are never negative.
    outside: Array = ids > high if ids.dtype.kind == "u" else (ids < low) | (ids > high)
    return outside


def _ancestors(parents: Array) -> Array:
    """The number of ancestors of each node, (B, T); -1 for a node that leads to a cycle."""
    (batch, count), parents = parents.shape, parents.astype("int64")
    nodes = np.arange(batch * count).reshape((batch, count))
    has_parent = parents >= 0
    jump = np.where(has_parent, parents + nodes[:, :1], nodes).ravel()
    ancestors = has_parent.ravel().astype("int64")  # (B T,)
    # Pointer doubling: after step k, `jump` is the ancestor 2^k edges up.
    for _ in range(max(count - 1, 1).bit_length()):
        if not ancestors[jump].any():
            break
        ancestors = ancestors + ancestors[jump]
        jump = jump[jump]
    ancestors[ancestors[jump] > 0] = -1  # only a node on or below a cycle still has ancestors there
    return ancestors.reshape((batch, count))


def _circle_from(parents: Array, node: int) -> list[int]:
    """The nodes of the cycle that the ancestors of a node lead to."""
    for _ in range(len(parents)):  # after so many steps, the node is on the cycle
        node = int(parents[node])
    circle = [node]
    while int(parents[circle[-1]]) != node:
        circle.append(int(parents[circle[-1]]))
    return circle


def _check_ends(edges: Array, length: int | None) -> None:
    high = INT32[1] if length is None else length - 1
    is_padding = (edges == -1).all(axis=2)
    place = _first(_outside(edges, 0, high).any(axis=2) & ~is_padding)
    if place:
        count = "" if length is None else f", but there are {length} nodes"
        raise ValueError(
            f"`edges` of example {place[0]}: edge {place[1]} is {tuple(edges[place].tolist())}"
            f"{count}. Nodes are numbered within the example, from 0; (-1, -1) marks padding."
        )
    place = _first((edges[..., 0] == edges[..., 1]) & ~is_padding)
    if place:
        raise ValueError(
            f"`edges` of example {place[0]}: edge {place[1]} joins node {edges[place][0]} to "
            "itself. An edge must join two different nodes. To leave out an edge, give it the "
            "nodes (-1, -1)."
        )


def bounded_ids(
    ids: Int[Tensor, "..."], low: int, high: Length
) -> tuple[Int[Tensor, "..."], Bool[Tensor, "..."]]:
    """Ids in int32, and which of them satisfy low <= id < high. The others become -1.

    The ids are compared before the cast, because a cast can move a wide integer into the range.
    """
    dtype = dtype_name(ids.dtype)
    if dtype in NARROW:
        ids, dtype = ops.cast(ids, "int32"), "int32"
    right = ids < size_tensor(high, dtype)
    if not dtype.startswith("uint"):
        right = ops.logical_and(right, ids >= ops.cast(low, dtype))
    bounded = ops.cast(ops.where(right, ids, ops.zeros_like(ids)), "int32")
    return ops.where(right, bounded, ops.cast(-1, "int32")), right


def example_flags(flags: Bool[Tensor, " B"], like: Tensor) -> Bool[Tensor, "B ..."]:
    """Flags of examples with more axes of size 1, to broadcast with `like`, (B, ...)."""
    return ops.reshape(flags, (-1, *[1] * (len(like.shape) - 1)))
