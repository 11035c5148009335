"""The attention layers that the recipes compare, and their filters' options. Imports no Keras."""

import argparse
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from recipes.common.command import UsageError, at_least, number_in

ATTENTIONS = ("softmax", "linear", "gfsa", "agf")
GFSA_ORDER = 3
FILTER_OPTIONS = (
    *("order", "basis", "alpha", "beta", "orthogonality_weight", "learned_constant"),
    *("start", "coefficient_learning_rate_multiplier"),
)
OF_BOTH = ("order", "start", "coefficient_learning_rate_multiplier")  # of gfsa and of agf
MULTIPLIER = 50.0  # at 1e-3, Adam moves a coefficient by about 5e-2 in a step


class PublishedFilter(NamedTuple):
    """AGF's settings for one task: K, gamma, Jacobi's a and b, whether theta_0 is learned."""

    order: int
    orthogonality_weight: float
    alpha: float
    beta: float
    learned_constant: bool = False


def add_filter_options(add: Callable[..., Any]) -> None:
    """Adds the options of the filters to a parser (its `add_argument`)."""
    add("--order", type=at_least(1), help="degree K of gfsa and agf [3; agf: as published]")
    add(
        "--basis",
        choices=("jacobi", "legendre", "chebyshev", "monomial"),
        help="agf's polynomials [jacobi]",
    )
    add("--alpha", type=float, help="agf's Jacobi parameter a [as published]")
    add("--beta", type=float, help="agf's Jacobi parameter b [as published]")
    add(
        "--orthogonality-weight",
        type=number_in(0.0, math.inf),
        help="agf's gamma, shared out over the layers [as published]",
    )
    add(
        "--learned-constant",
        action=argparse.BooleanOptionalAction,
        help="learn agf's theta_0 too, from an output of 0 on",
    )
    add(
        "--start",
        choices=("plain", "high_pass", "high_boost", "band_pass"),
        help="what the filters of gfsa and agf (plain, high_pass) start as [plain]",
    )
    add(
        "--coefficient-learning-rate-multiplier",
        type=number_in(0.0, math.inf, open_low=True),
        help="the learning rate of the filters' coefficients, over that of all other weights "
        f"[{MULTIPLIER:g}; 1 with published settings]",
    )


def filter_settings(
    options: argparse.Namespace, published: PublishedFilter, as_published: bool
) -> dict[str, dict[str, Any]]:
    """The filter's arguments for each attention: those given, else the published ones.

    Args:
        options: The command line's options.
        published: The published settings of the filter.
        as_published: Whether the training is the published one: one rate for all weights.
    """
    multiplier = options.coefficient_learning_rate_multiplier
    if multiplier is None and not as_published:
        multiplier = MULTIPLIER
    both = {"start": options.start, "coefficient_learning_rate_multiplier": multiplier}
    both = {name: value for name, value in both.items() if value is not None}
    basis = options.basis or "jacobi"
    jacobi = basis == "jacobi"
    weight = _first(options.orthogonality_weight, published.orthogonality_weight)
    return {
        "softmax": {},
        "linear": {},
        "gfsa": {"order": _first(options.order, GFSA_ORDER), **both},
        "agf": {
            "order": _first(options.order, published.order),
            "basis": basis,
            "alpha": _first(options.alpha, published.alpha if jacobi else None),
            "beta": _first(options.beta, published.beta if jacobi else None),
            "learned_constant": _first(options.learned_constant, published.learned_constant),
            "orthogonality_weight": weight / options.layers,
            **both,
        },
    }


def refuse_unused_filter_options(options: argparse.Namespace) -> None:
    """Refuses an option of a filter where no attention that is asked for has it."""
    for name in FILTER_OPTIONS:
        users = {"gfsa", "agf"} if name in OF_BOTH else {"agf"}
        if getattr(options, name) is not None and not users & set(options.attention):
            raise UsageError(
                f"--{name.replace('_', '-')} is an option of {' and '.join(sorted(users))} "
                f"attention; --attention is {','.join(options.attention)}"
            )


def _first(given: Any, default: Any) -> Any:
    return default if given is None else given
