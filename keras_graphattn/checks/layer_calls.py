"""The arguments of a call of multi-head attention, checked before anything is computed."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

from keras_graphattn.checks.arguments import Sizes, as_tensor, check_shape, switch

MASK_SHAPES = {
    "query_mask": ("B T",),
    "value_mask": ("B S",),
    "key_mask": ("B S",),
    "attention_mask": ("T? S?", "B? T? S?", "B? N? T? S?"),
}


def check_call(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call as tensors, each checked by itself and against the others.

    Raises:
        ValueError: For sizes that do not go together, and for invalid masks and flags.
        TypeError: For an argument that must be a tensor and is not.
    """
    found, sizes = dict(given), cast("Sizes", {})
    for name in ("query", "value", "key"):
        if name == "query" or found.get(name) is not None:
            found[name] = as_tensor(name, found.get(name))
            own = "B T" if name == "query" or given.get("value") is None else "B S"
            rest = "_ " * (len(found["query"].shape) - 2) if name != "query" else "..."
            check_shape(name, found[name], (f"{own} {rest}",), sizes)
    if found.get("value") is None and "T" in sizes:
        sizes["S"] = sizes["T"]
    # beside a cache, keys are more than those of the call
    is_sequence = len(found["query"].shape) == 3 and found.get("cache") is None
    for name in ("query_mask", "value_mask", "key_mask", "attention_mask"):
        if found.get(name) is not None:
            found[name] = as_tensor(name, found[name], "boolean")
            if is_sequence:
                check_shape(name, found[name], MASK_SHAPES[name], sizes)
    for name in ("return_attention_scores", "return_filter_matrix", "use_causal_mask"):
        if name in found:
            found[name] = switch(name, found[name])
    return found


@functools.cache
def names_of_call(call: Callable[..., Any]) -> list[str]:
    """The names of a method's parameters, without `self`."""
    return list(inspect.signature(call).parameters)[1:]
