"""The attention layers that the recipes compare, and their filters' options. Imports no Keras."""

import argparse
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from recipes.common.command import UsageError, at_least, number_in

ATTENTIONS = ("softmax", "linear", "gfsa", "agf")
GFSA_ORDER = 3
FILTER_OPTIONS = ("order", "basis", "alpha", "beta", "orthogonality_weight", "learned_constant")


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


def filter_settings(
    options: argparse.Namespace, published: PublishedFilter
) -> dict[str, dict[str, Any]]:
    """The filter's arguments for each attention: those given, else the published ones."""
    basis = options.basis or "jacobi"
    jacobi = basis == "jacobi"
    weight = _first(options.orthogonality_weight, published.orthogonality_weight)
    return {
        "softmax": {},
        "linear": {},
        "gfsa": {"order": _first(options.order, GFSA_ORDER)},
        "agf": {
            "order": _first(options.order, published.order),
            "basis": basis,
            "alpha": _first(options.alpha, published.alpha if jacobi else None),
            "beta": _first(options.beta, published.beta if jacobi else None),
            "learned_constant": _first(options.learned_constant, published.learned_constant),
            "orthogonality_weight": weight / options.layers,
        },
    }


def refuse_unused_filter_options(options: argparse.Namespace) -> None:
    """Refuses an option of a filter where no attention that is asked for has it."""
    for name in FILTER_OPTIONS:
        users = {"gfsa", "agf"} if name == "order" else {"agf"}
        if getattr(options, name) is not None and not users & set(options.attention):
            raise UsageError(
                f"--{name.replace('_', '-')} is an option of {' and '.join(sorted(users))} "
                f"attention; --attention is {','.join(options.attention)}"
            )


def _first(given: Any, default: Any) -> Any:
    return default if given is None else given
