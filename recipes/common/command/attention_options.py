"""The options of attentions: what they take, and which of them an attention asked for has.

Imports no Keras, except to check or to show a name that is one of the package's.
"""

import argparse
import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipes.common.attentions import (
    ATTENTIONS,
    MULTIPLIER,
    OF_FILTER,
    RATE,
    filter_name,
    given_options,
)
from recipes.common.command.parsing import (
    UsageError,
    at_least,
    choose_backend,
    names_among,
    number_in,
)


class NamesIn:
    """The names in a dictionary of the package, read when they are needed: that imports Keras."""

    def __init__(self, module: str, dictionary: str) -> None:
        self.module, self.dictionary = module, dictionary

    def __iter__(self) -> Iterator[str]:
        choose_backend(None)
        return iter(getattr(importlib.import_module(self.module), self.dictionary))


def exponents(text: str) -> list[float]:
    """An argument type: exponents p, comma-separated."""
    check = number_in(1.0, math.inf)
    return [check(one) for one in text.split(",")]


# What `add_argument` takes for each option; without a value the default is None.
OPTIONS: dict[str, dict[str, Any]] = {
    "filter": {
        "choices": NamesIn("keras_graphattn.filters", "FILTERS"),
        "help": "a function of the attention matrix: %(choices)s [gfsa: first_order; agf: jacobi]",
    },
    "order": {"type": at_least(1), "help": "degree K of the filter [3; agf: as published]"},
    "start": {
        "choices": NamesIn("keras_graphattn.filters.starts", "STARTS"),
        "help": "what the filters start as: %(choices)s [plain]",
    },
    "alpha": {"type": float, "help": "a of the filter jacobi [as published, else 0]"},
    "beta": {"type": float, "help": "b of the filter jacobi [as published, else 0]"},
    "orthogonality_weight": {
        "type": number_in(0.0, math.inf),
        "help": "agf's gamma, shared out over the layers [as published]",
    },
    "learned_constant": {
        "action": argparse.BooleanOptionalAction,
        "help": "learn agf's theta_0 too, from an output of 0 on",
    },
    "constant": {"type": float, "help": "w_0 of the filter first_order at the start [0]"},
    "trained_coefficients": {
        "type": names_among(("identity", "linear", "power")),
        "help": "which of the filter first_order are learned: identity,linear,power [all]",
    },
    "exponents": {"type": exponents, "help": "p, one or as many as heads [1.5 and 2.5]"},
    "mask": {"choices": ("exponential", "none"), "help": "masked_kernel's [exponential]"},
    "feature_map": {
        "choices": NamesIn("keras_graphattn.feature_maps", "FEATURE_MAPS"),
        "help": "of kernel attention: %(choices)s [relu]",
    },
    RATE: {
        "type": number_in(0.0, math.inf, open_low=True),
        "help": "the learning rate of coefficients of filters and of weights of masks, over that "
        f"of all other weights [{MULTIPLIER:g}]",
    },
}


def add_attention_options(
    parser: argparse._ActionsContainer,
    attentions: Sequence[str],
    told: Mapping[str, str] | None = None,
    without: Sequence[str] = (),
) -> None:
    """Adds to a parser the options that any of the recipe's attentions has.

    Args:
        parser: The parser or group.
        attentions: The recipe's attentions.
        told: By the name of an option, the default as its help shall tell it.
        without: Options that the recipe has no use for.
    """
    wanted = {option for name in attentions for option in ATTENTIONS[name].options}
    for name, given in OPTIONS.items():
        if name not in wanted or name in without:
            continue
        given = dict(given)
        if told and name in told:
            given["help"] = f"{given['help'].partition(' [')[0]} [{told[name]}]"
        if isinstance(given.get("choices"), NamesIn):
            given["metavar"] = name.upper()
        flags = ["--p"] if name == "exponents" else []
        parser.add_argument(*flags, f"--{name.replace('_', '-')}", dest=name, default=None, **given)


def refuse_unused(
    options: argparse.Namespace, attentions: Sequence[str], published: Mapping[str, Any]
) -> None:
    """Refuses an option that no attention asked for has, and two options for one number.

    Args:
        options: The command line's options.
        attentions: The recipe's attentions.
        published: Published settings, which may be of attentions that are not asked for.

    Raises:
        UsageError: Naming the option.
    """
    for name, value in given_options(options).items():
        if name in published and value == published[name]:
            continue
        users = [one for one in attentions if name in ATTENTIONS[one].options]
        asked = [one for one in options.attention if one in users]
        if not asked:
            raise UsageError(
                f"{_flag(name)} is an option of {' and '.join(sorted(users))} attention; "
                f"--attention is {','.join(options.attention)}"
            )
        wanted = OF_FILTER.get(name)
        found = {one: filter_name(one, options) for one in asked}
        if wanted is not None and wanted not in found.values():
            others = ", ".join(f"{one} has {filter}" for one, filter in found.items())
            raise UsageError(f"{_flag(name)} is an option of the filter {wanted}; {others}")
    given = {"start": "plain", "constant": 0.0, **given_options(options)}
    if given["start"] != "plain" and given["constant"]:
        raise UsageError(
            f"--start {given['start']} sets w_0, and so does --constant {given['constant']:g}: "
            "give one of the two"
        )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
