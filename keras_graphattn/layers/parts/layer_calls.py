"""Checks of a call of multi-head attention, and of weights that are read before there are any."""

import inspect
from collections.abc import Callable
from typing import Any, cast

from keras_graphattn.checks import Sizes, as_tensor, cached, check_shape, switch

MASK_SHAPES = {
    "mask": ("B T",),
    "query_mask": ("B T",),
    "value_mask": ("B S",),
    "key_mask": ("B S",),
    "attention_mask": ("T? S?", "B? T? S?", "B? N? T? S?"),
}


def check_call(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call as tensors, checked one by one and against each other.

    Raises:
        ValueError: For sizes that do not fit each other, and for invalid masks and flags.
        TypeError: For an argument that must be a tensor but is not.
    """
    found, sizes = dict(given), cast("Sizes", {})  # sizes of the letters B, T, S and N
    for name in ("query", "value", "key"):
        if name == "query" or found.get(name) is not None:
            found[name] = as_tensor(name, found.get(name))
            own = "B T" if name == "query" or given.get("value") is None else "B S"
            # query, value and key may differ in length and features, not in rank
            rest = "_ " * (len(found["query"].shape) - 2) if name != "query" else "..."
            try:
                check_shape(name, found[name], (f"{own} {rest}",), sizes)
            except ValueError as error:
                same = "All dimensions of `value` and `key`, except the last one, must be equal. "
                raise ValueError(f"{same if name == 'key' else ''}{error}") from None
    if found.get("value") is None and "T" in sizes:
        sizes["S"] = sizes["T"]
    # with a cache, there are more keys than in the call
    is_sequence = len(found["query"].shape) == 3 and found.get("cache") is None
    if found.get("mask") is not None and found.get("query_mask") is not None:
        raise ValueError(
            "`mask` and `query_mask` are two names of one mask. Received: both. Leave one of them "
            "out."
        )
    for name in MASK_SHAPES:
        if found.get(name) is not None:
            found[name] = as_tensor(name, found[name], "boolean")
            if is_sequence:
                check_shape(name, found[name], MASK_SHAPES[name], sizes)
    for name in ("return_attention_scores", "return_filter_matrix", "use_causal_mask"):
        if name in found:
            found[name] = switch(name, found[name])
    return found


def check_one_axis(layer: Any, query_shape: Any, value_shape: Any) -> None:
    """Refuses inputs with more dimensions than (batch, length, features).

    Raises:
        ValueError: If the query or the value has more than three dimensions.
    """
    if len(query_shape) > 3 or len(value_shape) > 3:
        raise ValueError(
            f"{type(layer).__name__} attends over one axis: inputs must have shape (batch, "
            f"length, features). Received: query.shape={tuple(query_shape)}, "
            f"value.shape={tuple(value_shape)}"
        )


@cached
def names_of_call(call: Callable[..., Any]) -> list[str]:
    """The names of a method's parameters, without `self`."""
    return list(inspect.signature(call).parameters)[1:]
