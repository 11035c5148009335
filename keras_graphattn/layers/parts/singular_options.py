"""The options of `AttentiveGraphFilter`: its forms of g(S) and the masks that it accepts."""

from typing import Any

import numpy as np
from keras import ops

from keras_graphattn import filters
from keras_graphattn.checks import did_you_mean, flag
from keras_graphattn.filters import Filter, Polynomial

Tensor = Any

ABLATIONS = ("singular_values", "ones")
STARTS = {"plain": 0.0, "high_pass": -0.5}  # tanh(theta_1), for an increasing P_1
ORDER = 4


def singular_filter(filter: Any, order: int | None, learned_constant: bool) -> Filter | str:
    """The filter g of the singular values, or the name of an ablation.

    Args:
        filter: A filter, its name or its configuration, or a name from `ABLATIONS`.
        order: The order of a filter given by its name. `None` means 4 for a polynomial, and the
            filter's own default otherwise.
        learned_constant: Whether the weight of P_0 is learned.

    Raises:
        ValueError: For a filter or an order that g cannot have.
    """
    flag("learned_constant", learned_constant)
    if isinstance(filter, str) and filter in ABLATIONS:
        if order is not None or learned_constant:
            raise ValueError(
                f"filter={filter!r} has no polynomial. Received: order={order!r}, "
                f"learned_constant={learned_constant}. Leave them out, or use another filter."
            )
        return filter
    if isinstance(filter, str) and filter not in filters.FILTERS:
        names = [*filters.FILTERS, *ABLATIONS]
        raise ValueError(
            f"`filter` must be one of {names}, or a filter of keras_graphattn.filters. Received: "
            f"filter={filter!r}.{did_you_mean(filter, names)}"
        )
    is_polynomial = isinstance(filter, str) and issubclass(filters.FILTERS[filter], Polynomial)
    found = filters.get(filter, ORDER if order is None and is_polynomial else order)
    if isinstance(found, Polynomial):
        _check_polynomial(found, learned_constant)
    elif learned_constant:
        raise ValueError(
            "`learned_constant` learns the weight of P_0 of a polynomial. Received: "
            f"learned_constant=True, filter={found!r}. Leave it out."
        )
    return found


def _check_polynomial(filter: Polynomial, learned_constant: bool) -> None:
    if filter.initial_coefficients is not None:
        raise ValueError(
            "AttentiveGraphFilter learns its own weights theta for a polynomial, which start at "
            f"0. Received: initial_coefficients={filter.initial_coefficients!r}. Leave them out."
        )
    if filter.start not in STARTS:
        raise ValueError(
            f"`start` of a filter of singular values must be one of {list(STARTS)}. Received: "
            f"start={filter.start!r}"
        )
    if filter.start != "plain" and learned_constant:
        raise ValueError(
            "A named start needs a polynomial whose weight of P_0 is 1. Received: "
            f"start={filter.start!r}, learned_constant=True. Leave out one of the two."
        )


def start_of_theta(filter: Polynomial) -> np.ndarray:
    """Raw theta_1 ... theta_K of g(S) = P_0 + sum_k tanh(theta_k) P_k(S) at the filter's start."""
    theta = np.zeros(filter.order)
    # a decreasing P_1 needs the opposite sign for the same effect on large singular values
    falls = filter.recurrence()[0].slope < 0.0
    theta[0] = np.arctanh(STARTS[filter.start]) * (-1.0 if falls else 1.0)
    return theta


def token_mask(attention_mask: Tensor | None) -> Tensor | None:
    """An attention mask (B, 1, S) or (B, 1, 1, S) as a mask of tokens (B, S).

    Raises:
        ValueError: For a mask that depends on the query position.
    """
    if attention_mask is None:
        return None
    shape = tuple(attention_mask.shape)
    if len(shape) == 4 and shape[1] == 1:  # (B, 1, 1, S)
        attention_mask = ops.squeeze(attention_mask, 1)
    if len(attention_mask.shape) != 3 or attention_mask.shape[1] != 1:
        raise ValueError(
            "AttentiveGraphFilter has no attention matrix to mask entry by entry: "
            "`attention_mask` must have shape (B, 1, S), one mask of key positions for all "
            f"queries. Received: attention_mask.shape={shape}. Pass padding as `query_mask` "
            "and `value_mask`, or use GraphFilterAttention."
        )
    return ops.squeeze(attention_mask, 1)  # (B, S)
