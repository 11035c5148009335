"""Checks of what a graph-filter layer is told about its coefficients: start values, training."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_graphattn.layers.named_starts import (
    check_start,
    first_order_coefficients,
    polynomial_coefficients,
)
from keras_graphattn.layers.options import is_one_of
from keras_graphattn.ops.arguments import is_list, numpy_of
from keras_graphattn.ops.polynomials import BASES, Step, check_order, recurrence

FILTERS = ("first_order", *BASES)
FIRST_ORDER = ("identity", "linear", "power")


def filter_steps(
    filter_name: str, order: int, alpha: float | None, beta: float | None
) -> list[Step] | None:
    """The recurrence of an exact filter, or `None` for the first-order filter.

    Raises:
        ValueError: For an unknown filter, order or Jacobi parameters that cannot be used.
    """
    check_order(order)
    if not is_one_of(filter_name, FILTERS):
        raise ValueError(
            f"`filter` must be one of {list(FILTERS)}. Received: filter={filter_name!r}"
        )
    if filter_name != "first_order":
        return recurrence(filter_name, order, alpha, beta)
    if alpha is not None or beta is not None:
        raise ValueError(
            '`alpha` and `beta` belong to filter="jacobi". Received: '
            f"filter={filter_name!r}, alpha={alpha!r}, beta={beta!r}"
        )
    return None


def trained_coefficients(trainable: Any, steps: list[Step] | None) -> tuple[str, ...]:
    """Names of the coefficients that are trained, out of those the filter has.

    Args:
        trainable: `True` for all, `False` for none; for the first-order filter also a sequence
            of the names `"identity"`, `"linear"`, `"power"`.
        steps: What `filter_steps` returned.

    Raises:
        ValueError: For anything else.
    """
    names = FIRST_ORDER if steps is None else ("filter",)
    if isinstance(trainable, bool):
        return names if trainable else ()
    is_sequence = is_list(trainable) and all(isinstance(name, str) for name in trainable)
    if steps is None and is_sequence and set(trainable) <= set(names):
        return tuple(name for name in names if name in trainable)
    expected = f" or a list of names out of {list(names)}" if steps is None else ""
    raise ValueError(
        f"`trainable_coefficients` must be True, False{expected}. Received: "
        f"trainable_coefficients={trainable!r}"
    )


def plain_numbers(given: Any) -> Any:
    """Start values as lists and numbers that go into a config as they are."""
    if isinstance(given, Mapping):
        return {name: plain_numbers(value) for name, value in given.items()}
    if is_list(given):
        return [plain_numbers(value) for value in given]
    return given.tolist() if isinstance(given, (np.ndarray, np.generic)) else given


def start_values(
    start: Any, given: Any, steps: list[Step] | None, order: int, num_heads: int
) -> dict[str, np.ndarray]:
    """Start values of a filter's coefficients by name: those given, or those of a named start.

    Args:
        start: A name of `STARTS`.
        given: `initial_coefficients`, as `first_order_start` and `polynomial_start` take them.
        steps: What `filter_steps` returned.
        order: The filter's order.
        num_heads: Number of heads.

    Raises:
        ValueError: For a start or values that cannot be used.
    """
    start = check_start(start, given, order)
    if steps is None:
        return first_order_start(given, num_heads, first_order_coefficients(start, order))
    if given is None:
        given = polynomial_coefficients(start, steps)
    return {"filter": polynomial_start(given, steps, num_heads)}


def first_order_start(
    given: Any, num_heads: int, others: Mapping[str, float]
) -> dict[str, np.ndarray]:
    """Start values of the first-order filter's coefficients, each of shape (num_heads,).

    Args:
        given: `None`, or a dictionary from some of the names `"identity"`,
            `"linear"`, `"power"` to a number, or to one number for each head.
        num_heads: Number of heads.
        others: What starts where `given` does not say.

    Raises:
        ValueError: For anything else.
    """
    given = {} if given is None else given
    if not isinstance(given, Mapping) or not set(given) <= set(FIRST_ORDER):
        raise ValueError(
            "`initial_coefficients` of the first-order filter must be a dictionary with keys out "
            f"of {list(FIRST_ORDER)}. Received: initial_coefficients={given!r}"
        )
    return {
        name: _numbers(given.get(name, others[name]), (num_heads,), given) for name in FIRST_ORDER
    }


def polynomial_start(given: Any, steps: list[Step], num_heads: int) -> np.ndarray:
    """Start values of an exact filter's coefficients, of shape (order + 1, num_heads).

    Args:
        given: A sequence of order + 1 entries, each a number or one number for each head.
        steps: The basis.
        num_heads: Number of heads.

    Raises:
        ValueError: For anything else.
    """
    entries = given if is_list(given) else ()
    if len(entries) != len(steps) + 1:
        raise ValueError(
            f"`initial_coefficients` of an exact filter of order {len(steps)} must be a list of "
            f"{len(steps) + 1} entries. Received: initial_coefficients={given!r}"
        )
    return np.stack([_numbers(entry, (num_heads,), given) for entry in entries])


def _numbers(value: Any, shape: tuple[int, ...], given: Any) -> np.ndarray:
    numbers = numpy_of(value)
    numbers = numbers.astype("float64") if numbers.dtype.kind in "biuf" else np.asarray(np.nan)
    if numbers.shape not in ((), shape) or not np.all(np.isfinite(numbers)):
        raise ValueError(
            "Each of `initial_coefficients` must be a finite number, or one for each of the "
            f"{shape[0]} heads. Received: initial_coefficients={given!r}"
        )
    return np.broadcast_to(numbers, shape)
