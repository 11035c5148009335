"""All attentions that the recipes compare: the one place for their names, looks and options.

What a recipe's `--attention` takes, what its models are made of, and what its tables and plots
show is read here. A new attention is one entry of `ATTENTIONS`, named in the recipes that have it.
Imports no Keras by itself: it must come after the choice of the backend.
"""

import argparse
import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from recipes.common.command import UsageError, at_least, choose_backend, names_among, number_in


class Attention(NamedTuple):
    """One attention."""

    label: str  # in tables and plots
    colour: str  # in plots
    layer: str  # what makes it in a model of a recipe's own, as "module:name"
    convert: str | None = None  # what `keras_graphattn.convert` calls it; None: it is the model's
    options: tuple[str, ...] = ()  # those of `OPTIONS` that it has
    filter: str | None = None  # the name of its filter, where `--filter` gives none


JACOBI = ("alpha", "beta")  # options of one filter only
FILTER = ("filter", "order", "start", *JACOBI)
RATE = "coefficient_learning_rate_multiplier"

ATTENTIONS = {
    "softmax": Attention("softmax", "#999999", "recipes.common.attention:softmax"),
    "linear": Attention("linear", "#009e73", "recipes.common.attention:linear"),
    "gfsa": Attention(
        "GFSA",
        "#0072b2",
        "keras_graphattn.layers:GraphFilterAttention",
        "graph_filter",
        (*FILTER, "constant", "trained_coefficients", RATE),
        "first_order",
    ),
    "agf": Attention(
        "AGF",
        "#d55e00",
        "keras_graphattn.layers:AttentiveGraphFilter",
        "attentive_graph_filter",
        (*FILTER, "orthogonality_weight", "learned_constant", RATE),
        "jacobi",
    ),
    "p_laplacian": Attention(
        "p-LaT",
        "#cc79a7",
        "keras_graphattn.layers:PLaplacianAttention",
        "p_laplacian",
        ("exponents",),
    ),
    "masked_kernel": Attention(
        "masked kernel",
        "#e69f00",
        "keras_graphattn.layers:MaskedKernelAttention",
        "masked_kernel",
        ("mask", "feature_map", RATE),
    ),
}


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
        "help": "masked_kernel's: %(choices)s [relu]",
    },
    RATE: {
        "type": number_in(0.0, math.inf, open_low=True),
        "help": "the learning rate of coefficients, over that of all other weights",
    },
}

MULTIPLIER = 50.0  # at 1e-3, Adam moves a coefficient by about 5e-2 in a step


class PublishedFilter(NamedTuple):
    """AGF's settings for one task: K, gamma, Jacobi's a and b, whether theta_0 is learned."""

    order: int
    orthogonality_weight: float
    alpha: float
    beta: float
    learned_constant: bool = False

    def defaults(self, *, one_rate: bool) -> dict[str, dict[str, Any]]:
        """What the options of GFSA and AGF are where they are not given.

        Args:
            one_rate: Whether coefficients learn as fast as all other weights, as in the papers.
        """
        rate = None if one_rate else MULTIPLIER
        return {"gfsa": {"order": 3, RATE: rate}, "agf": {**self._asdict(), RATE: rate}}


# Options of one filter only, with its name.
_OF_FILTER = {
    **dict.fromkeys(JACOBI, "jacobi"),
    **dict.fromkeys(("constant", "trained_coefficients"), "first_order"),
}


def add_attention_options(
    add: Callable[..., Any],
    attentions: Sequence[str],
    told: Mapping[str, str] | None = None,
    without: Sequence[str] = (),
) -> None:
    """Adds to a parser the options that any of the recipe's attentions has.

    Args:
        add: The parser's `add_argument`.
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
        add(*flags, f"--{name.replace('_', '-')}", dest=name, default=None, **given)


def given_options(options: argparse.Namespace) -> dict[str, Any]:
    """The options of attentions that have a value."""
    found = {name: getattr(options, name, None) for name in OPTIONS}
    return {name: value for name, value in found.items() if value is not None}


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
        wanted = _OF_FILTER.get(name)
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


def filter_name(attention: str, options: argparse.Namespace) -> str | None:
    """The name of an attention's filter, if it has one."""
    default = ATTENTIONS[attention].filter
    return default and (getattr(options, "filter", None) or default)


def settings_of(
    attention: str, options: argparse.Namespace, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings of an attention, as numbers and names that go into a file.

    Args:
        attention: A name out of `ATTENTIONS`.
        options: The command line's options.
        defaults: What an option is where it is not given, published values for example.
    """
    own, given = ATTENTIONS[attention], given_options(options)
    filter = filter_name(attention, options)
    defaults = {name: value for name, value in defaults.items() if value is not None}
    if filter != own.filter and not _is_polynomial(filter):
        apart = ("order", "learned_constant")  # filters of other kinds have their own orders
        defaults = {name: value for name, value in defaults.items() if name not in apart}
    values = {**defaults, **{name: given[name] for name in own.options if name in given}}
    found = {} if filter is None else {"filter": _filter_settings(str(filter), values)}
    if "exponents" in values:
        p = values["exponents"]
        found["p"] = p if len(p) > 1 else p[0]
    if "orthogonality_weight" in values:
        found["orthogonality_weight"] = values["orthogonality_weight"] / options.layers
    apart = {*FILTER, *_OF_FILTER, *found, "exponents"}
    return {**found, **{name: value for name, value in values.items() if name not in apart}}


def layer_arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a layer, or of `convert`, that settings stand for: objects for names.

    Raises:
        ValueError: For what the filter cannot be.
    """
    from keras_graphattn import filters, masks

    found = dict(settings)
    if "filter" in found:
        given = dict(found["filter"])
        found["filter"] = filters.FILTERS[given.pop("name")](**given)
    if "mask" in found:
        exponential = found["mask"] == "exponential"
        found["mask"] = masks.Exponential(causal=True) if exponential else None
    return found


def label(attention: str) -> str:
    """How tables and plots call an attention."""
    return ATTENTIONS[attention].label


def _filter_settings(filter: str, values: Mapping[str, Any]) -> dict[str, Any]:
    names = [
        name
        for name in ("order", "start", *_OF_FILTER)
        if name in values and _OF_FILTER.get(name, filter) == filter
    ]
    found = {"name": filter, **{name: values[name] for name in names}}
    constant = found.pop("constant", None)
    if constant:
        found["initial_coefficients"] = {"identity": constant}
    if "trained_coefficients" in found:
        found["trainable_coefficients"] = found.pop("trained_coefficients")
    return found


def _is_polynomial(filter: str | None) -> bool:
    from keras_graphattn.filters import FILTERS, Polynomial

    return filter is not None and issubclass(FILTERS[filter], Polynomial)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
