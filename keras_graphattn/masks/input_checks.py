"""Checks of the values that come with a call: wrong entries are refused, or kept in bounds.

There are two halves with the same rules. `check_values` works on NumPy arrays and raises an error
that names the example and the entry. `bounded_inputs` works in compiled code, on tensors whose
values are not known yet: it keeps each index within its own example and returns which examples
are wrong. Both find the rules of an input by its name.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_graphattn.checks import integers, known_value
from keras_graphattn.ops.graphs.edge_lists import disagreeing, repeated_edges
from keras_graphattn.ops.graphs.example_topology import (
    any_of_example,
    bounded_ids,
    edges_once,
    example_flags,
    trees_without_root,
)

Tensor = Any
Tensors = dict[str, Tensor]
Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]

HARMLESS = {"parents": -1, "edges": -1, "walks": -1, "segment_ids": -1, "edge_weights": 1}
INT32 = (-(2**31), 2**31 - 1)


def check_values(inputs: Arrays, length: int | None, max_depth: int | None = None) -> bool:
    """Raises a `ValueError` that names the first wrong example and entry.

    Args:
        inputs: Arrays by the names of `Mask.inputs_at_call`; other names are ignored.
        length: Number of tokens T, if it is known.
        max_depth: The most ancestors that a node of a tree may have, if there is a limit.

    Returns:
        `True` if the arrays can be used as they are. `False` if an edge is given twice.
    """
    weights = inputs.get("edge_weights")
    weights = None if weights is None else weights.astype("float64")
    if "segment_ids" in inputs:
        _check_segments(inputs["segment_ids"])
    if "walks" in inputs:
        _check_walks(inputs["walks"])
    if "parents" in inputs:
        _check_parents(inputs["parents"], weights, max_depth)
    if "entries" in inputs:
        _check_entries(inputs["entries"])
    return _check_edges(inputs["edges"], weights, length) if "edges" in inputs else True


def _first(wrong: Array) -> tuple[int, ...] | None:
    """The index of the first `True` entry, or `None`."""
    return tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.any() else None


def _outside(ids: Array, low: int, high: int) -> Array:
    """Which ids are below `low` or above `high`, for any integer type."""
    # Unsigned ids are never negative.
    found: Array = ids > high if ids.dtype.kind == "u" else (ids < low) | (ids > high)
    return found


def _check_segments(ids: Array) -> None:
    place = _first(_outside(ids, *INT32))
    if place:
        raise ValueError(
            f"`segment_ids` of example {place[0]}: token {place[1]} has the id {ids[place]}, but "
            "ids must be in the range of int32. Number the segments within the example."
        )


def _check_walks(walks: Array) -> None:
    count = walks.shape[1]
    place = _first(_outside(walks, -1, count - 1))
    if place:
        example, node, walk, step = place
        raise ValueError(
            f"`walks` of example {example}: step {step} of walk {walk} from node {node} is at node "
            f"{walks[place]}, but there are {count} nodes. Nodes are numbered within the example, "
            "from 0; -1 fills the steps after the end of a walk."
        )


def _check_parents(parents: Array, lengths: Array | None, max_depth: int | None) -> None:
    count = parents.shape[1]
    place = _first(_outside(parents, -1, count - 1))
    if place:
        raise ValueError(
            f"`parents` of example {place[0]}: node {place[1]} has parent {parents[place]}, but "
            f"there are {count} nodes. Parents are numbered within the example, from 0; -1 marks a "
            "root."
        )
    has_parent = parents >= 0
    if lengths is not None:
        with np.errstate(invalid="ignore"):
            place = _first(has_parent & ~((lengths >= 0.0) & np.isfinite(lengths)))
        if place:
            raise ValueError(
                f"`edge_weights` of example {place[0]}: the edge from node {place[1]} to its "
                f"parent has the length {lengths[place]:g}. Lengths must be finite and at least 0."
            )
    ancestors = ancestors_of(parents)
    place = _first(ancestors < 0)
    if place:
        circle = _circle_from(parents[place[0]], place[1])
        names = ", ".join(str(node) for node in circle[:8]) + (", ..." if len(circle) > 8 else "")
        way = (
            f"nodes {names} form a cycle" if len(circle) > 1 else f"node {names} is its own parent"
        )
        raise ValueError(
            f"`parents` of example {place[0]}: node {place[1]} never reaches a root, because "
            f"{way}. The root of each tree has parent -1."
        )
    place = None if max_depth is None else _first(ancestors > max_depth)
    if place:
        raise ValueError(
            f"`parents` of example {place[0]}: node {place[1]} has {ancestors[place]} ancestors, "
            f"but the mask has max_depth={max_depth}. Use a larger `max_depth`."
        )


def ancestors_of(parents: Array) -> Array:
    """The number of ancestors of each node, (B, T); -1 where a cycle makes them endless."""
    batch, count = parents.shape
    nodes = np.arange(batch * count).reshape((batch, count))
    has_parent = parents >= 0
    jump = np.where(has_parent, parents + nodes[:, :1], nodes).ravel()
    found = has_parent.ravel().astype("int64")  # (B T,)
    # Pointer doubling: after step k, `jump` is the ancestor 2^k edges up.
    for _ in range(max(count - 1, 1).bit_length()):
        if not found[jump].any():
            break
        found = found + found[jump]
        jump = jump[jump]
    found[found[jump] > 0] = -1  # only a node on or below a cycle still has ancestors there
    return found.reshape((batch, count))


def _circle_from(parents: Array, node: int) -> list[int]:
    """The nodes of the cycle that the ancestors of a node lead to."""
    for _ in range(len(parents)):  # after so many steps, the node is on the cycle
        node = int(parents[node])
    circle = [node]
    while int(parents[circle[-1]]) != node:
        circle.append(int(parents[circle[-1]]))
    return circle


def _check_entries(entries: Array) -> None:
    if entries.dtype.kind not in "iuf":
        return
    with np.errstate(invalid="ignore"):
        place = _first(~((entries >= 0) & (entries < np.inf)))
    if place:
        of = f" of example {place[0]}" if len(place) > 2 else ""
        raise ValueError(
            f"`entries`{of}: the entry at {place[max(len(place) - 3, 0) :]} is {entries[place]}. "
            "Factors of a mask must be finite and not negative."
        )


def _check_edges(edges: Array, weights: Array | None, length: int | None) -> bool:
    _check_ends(edges, length)
    known = edges[..., 0] >= 0
    if weights is not None:
        with np.errstate(invalid="ignore"):
            place = _first(known & ~((weights > 0.0) & (weights < np.inf)))
        if place:
            raise ValueError(
                f"`edge_weights` of example {place[0]}: edge {place[1]} has the weight "
                f"{weights[place]:g}. Weights must be finite and positive. To leave out an edge, "
                "give it the nodes (-1, -1)."
            )
    later, earlier = repeated_edges(edges)
    if weights is not None and len(later):
        apart = disagreeing(weights.ravel(), later, earlier)
        if len(apart):
            pair = int(earlier[apart[0]]), int(later[apart[0]])
            (example, one), (_, other) = (divmod(place, edges.shape[1]) for place in pair)
            u, v = sorted(edges[example, one].tolist())
            raise ValueError(
                f"`edge_weights` of example {example}: edges {one} and {other} both join nodes "
                f"{u} and {v}, with the weights {weights[example, one]:g} and "
                f"{weights[example, other]:g}. Give an edge once, or with equal weights."
            )
    return not len(later)


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


def checked_positions(given: Any, length: Any) -> tuple[Tensor, Tensor | None]:
    """Refuses known positions that are not in 0 ... `length` - 1, and keeps others in bounds.

    Args:
        given: Positions as the caller passed them, integers of shape (R,).
        length: Number of tokens T, a number or an integer tensor.

    Returns:
        int32 positions (R,), and booleans (R,) for those that are right, or `None` if all are.
    """
    positions, values = integers("R")("positions", given, {}), known_value(given)
    if values is None or not isinstance(length, int):
        positions, right = bounded_ids(positions, 0, length)
        return ops.maximum(positions, 0), right
    place = _first(_outside(values, 0, length - 1))
    if place:
        raise ValueError(
            f"`positions` must be numbers from 0 to {length - 1}. Received: {values[place]} at "
            f"positions[{place[0]}]. Negative numbers do not count from the end: add {length} to "
            "them."
        )
    return ops.cast(positions, "int32"), None


def bounded_inputs(
    inputs: Tensors, length: Any, max_depth: int | None = None
) -> tuple[Tensors, Tensor | None]:
    """Keeps every index within its own example, and finds the examples with a wrong entry.

    Args:
        inputs: Tensors by the names of `Mask.inputs_at_call`; others are not changed.
        length: Number of tokens T, a number or an integer tensor.
        max_depth: The most ancestors that a node of a tree may have, if there is a limit.

    Returns:
        The inputs, and booleans of shape (B,), or `None` if no entry can be wrong.
    """
    found, wrong = dict(inputs), []
    weights = inputs.get("edge_weights")
    for name in ("parents", "walks"):
        if name in inputs:
            found[name], right = bounded_ids(inputs[name], -1, length)
            wrong.append(ops.logical_not(right))
    if "segment_ids" in inputs:
        ids = inputs["segment_ids"]
        if keras.backend.standardize_dtype(ids.dtype) in ("int64", "uint32", "uint64"):
            ids, right = bounded_ids(ids, INT32[0], INT32[1] + 1)
            wrong.append(ops.logical_not(right))
        found["segment_ids"] = ops.cast(ids, "int32")
    if "entries" in inputs and keras.backend.standardize_dtype(inputs["entries"].dtype) != "bool":
        entries = inputs["entries"]
        right = ops.logical_and(entries >= 0, entries < float("inf"))
        found["entries"] = ops.where(right, entries, ops.zeros_like(entries))
        right = right[None] if len(entries.shape) == 2 else right  # one matrix for all examples
        wrong.append(ops.logical_not(right))
    if "parents" in inputs:
        parents = found["parents"]
        depth = length - 1 if isinstance(length, int) else None
        if max_depth is not None:
            depth = max_depth if depth is None else min(depth, max_depth)
        wrong.append(trees_without_root(parents, depth, max_depth))
        if weights is not None:
            right = ops.logical_and(weights >= 0.0, ops.isfinite(weights))
            wrong.append(ops.logical_and(parents >= 0, ops.logical_not(right)))
    if "edges" in inputs:
        given, right = bounded_ids(inputs["edges"], -1, length)  # (B, E, 2)
        loop = ops.equal(given[..., 0], given[..., 1])
        loop = ops.logical_and(loop, given[..., 0] >= 0)
        # an edge with only one node of -1 is not padding
        half = ops.not_equal(given[..., 0] >= 0, given[..., 1] >= 0)
        wrong += [ops.logical_not(right), ops.logical_or(loop, half)]
        if weights is not None:
            known = ops.all(given >= 0, axis=-1)
            right = ops.logical_and(weights > 0.0, ops.isfinite(weights))
            wrong.append(ops.logical_and(known, ops.logical_not(right)))
        found["edges"], weights, conflict = edges_once(given, weights, length)
        wrong.append(conflict)
        if weights is not None:
            found["edge_weights"] = weights
    flags = None  # (B,)
    for entries in wrong:  # (B, ...)
        flags = either(flags, any_of_example(entries) if len(entries.shape) > 1 else entries)
    return found, flags


def either(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Joins the flags (B,) of two tests; `None` is a test that no example can fail."""
    if first is None or second is None:
        return first if second is None else second
    return ops.logical_or(first, second)


def harmless(inputs: Tensors, wrong: Tensor) -> Tensors:
    """Replaces the inputs of wrong examples: they get no edges, only roots, or padding."""
    found = dict(inputs)
    for name, number in HARMLESS.items():
        if name in inputs:
            given = inputs[name]
            instead = ops.cast(number, given.dtype)
            found[name] = ops.where(example_flags(wrong, given), instead, given)
    return found


def marked(result: Tensor, wrong: Tensor | None) -> Tensor:
    """Puts NaN into the results (B, ...) of wrong examples, which then pass no gradient."""
    if wrong is None:
        return result
    nan = ops.cast(float("nan"), result.dtype)
    return ops.where(example_flags(wrong, result), nan, result)
