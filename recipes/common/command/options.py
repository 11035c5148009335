"""The options that recipes share, and which of them are not a paper's.

This file has the name and the type of each option; the recipe has its default. Does not import
Keras, except to check or to show names of the package.
"""

import argparse
import importlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
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
    BACKENDS,
    UsageError,
    at_least,
    choose_backend,
    finite,
    flags,
    listed,
    names_among,
    number_in,
    numbers,
    seeds,
)
from recipes.common.command.processes import place

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "keras_graphattn"
REMEDIES = ("scaled_high_frequency", "contra_norm")  # against tokens that become alike
GRAPH_ATTENTIONS = (
    *("softmax", "gfsa", *REMEDIES),
    *("gcn", "sgc", "gat", "gin", "edges"),
    *("graph_kernel", "factored_graph_kernel", "graph_masked_kernel"),
)
OF_WALKS = ("graph_kernel", "factored_graph_kernel", "dynamic_graph_kernel", "graph_masked_kernel")
ON_PAIRS = ("softmax", "gfsa")  # whose scores have a bias in graph regression
WITHOUT_STRUCTURE = ("deep_multisets", "molecular_fingerprint")  # no node sees another
# Defaults of the options of all recipes on graphs, and of those that classify graphs.
WALKS = {"walks": 20, "walk_length": 4, "data_seed": 0, "cache_dir": CACHE}
CLASSIFIER = {"choose_by": "accuracy", "graph_size": False, "buckets": 4, "decay": False}
CLASSIFIER |= {"last_heads": 1, "linear_head": False}


class NamesIn:
    """The names in a dictionary of the package, read only when needed: this imports Keras."""

    def __init__(self, module: str, dictionary: str) -> None:
        self.module, self.dictionary = module, dictionary

    def __iter__(self) -> Iterator[str]:
        choose_backend(None)
        return iter(getattr(importlib.import_module(self.module), self.dictionary))


def add_published(add: Callable[..., Any], what: str) -> None:
    """Adds the option `--published` of a recipe; `what` says what it selects."""
    others = "options given here are put in its place, and named beside the table"
    add("--published", action="store_true", help=f"{what}; {others}")


def _even(text: str) -> int:
    """An argument type: an even number of at least 0."""
    number = at_least(0)(text)
    if number % 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not an even number")
    return number


def exponents(text: str) -> list[float]:
    """An argument type: exponents p, comma-separated."""
    check = number_in(1.0, math.inf)
    return [check(one) for one in text.split(",")]


_ABOVE_0 = number_in(0.0, math.inf, open_low=True)
_SHARE = number_in(0.0, 1.0)
_YES_OR_NO = argparse.BooleanOptionalAction

# The arguments of `add_argument`, except the default.
OPTIONS: dict[str, dict[str, Any]] = {
    # of training
    "epochs": {"type": at_least(1), "help": "at most"},
    "patience": {"type": at_least(1), "help": "epochs without gain on validation data"},
    "batch_size": {"type": at_least(1), "help": "examples of a batch"},
    "learning_rate": {"type": _ABOVE_0, "help": "the peak, where it changes"},
    "warm_up": {"type": at_least(0), "help": "steps until the peak of the learning rate"},
    "weight_decay": {"type": number_in(0.0, math.inf), "help": "AdamW's"},
    "validation_fraction": {
        "type": number_in(0.0, 1.0),
        "help": "share of the training examples to validate on; 0, where a paper has no validation "
        "data: all examples are to train, and the last epoch is tested",
    },
    "ema": {
        "type": _SHARE,
        "help": "momentum of the weights' moving average, which is validated and kept; 0: none",
    },
    "precision": {"choices": PRECISIONS, "help": "Keras' dtype policy"},
    # of models
    "layers": {"type": at_least(1), "help": "blocks of the model"},
    "d_model": {"type": at_least(1), "help": "width of the tokens"},
    "heads": {"type": at_least(1), "help": "heads of each attention"},
    "key_dim": {"type": at_least(1), "help": "width of each head"},
    "feed_forward": {"type": at_least(1), "help": "width between a block's two dense layers"},
    "dropout": {"type": _SHARE, "help": "share of the numbers dropped in training"},
    # of graphs
    "embedding": {
        "action": _YES_OR_NO,
        "help": "a dense layer brings the features to the width of the model first",
    },
    "skip": {
        "action": _YES_OR_NO,
        "help": "add a dense layer of the nodes to the output of each attention",
    },
    "normalise": {"action": _YES_OR_NO, "help": "normalise what each layer finds over a batch"},
    "walks": {"type": at_least(1), "help": "walks from each node"},
    "walk_length": {"type": at_least(1), "help": "nodes of a walk, its start among them"},
    "data_seed": {"type": at_least(0), "help": "seed of walks, and of data that is made"},
    "cache_dir": {"type": Path, "help": "where walks and distances are kept"},
    "pooling": {"choices": ("mean", "sum", "max"), "help": "of a graph's nodes"},
    "head_dropout": {
        "type": _SHARE,
        "help": "share of a graph's numbers dropped in training, before the last layer",
    },
    "choose_by": {
        "choices": ("accuracy", "cross_entropy", "both", "last_epoch"),
        "help": "what chooses the epoch: one of two metrics on validation data, of which the other "
        "one decides between equals; both takes the last epoch in which both are as good as in all "
        "before; last_epoch takes the last one",
    },
    "graph_size": {
        "action": "store_true",
        "help": "log(1 + n) of a graph of n nodes stands beside its pooled nodes",
    },
    "last_heads": {"type": at_least(1), "help": "heads of the last layer, of the same width"},
    "linear_head": {
        "action": "store_true",
        "help": "classify the pooled nodes of the last layer only, by one dense layer",
    },
    "relu_head": {
        "action": _YES_OR_NO,
        "help": "classify the pooled nodes of the last layer only, by a hidden ReLU layer and a "
        "dense layer",
    },
    "buckets": {"type": at_least(1), "help": "numbers of nodes to pad to"},
    "decay": {"action": "store_true", "help": "the learning rate falls linearly to 0"},
    # of attentions; without a value the default is None
    "filter": {
        "choices": NamesIn("keras_graphattn.filters", "FILTERS"),
        "help": "a function of the attention matrix: %(choices)s [gfsa: first_order; agf: jacobi]",
    },
    "order": {
        "type": numbers(1),
        "metavar": "K",
        "help": "degree of the filter; several, comma-separated, are compared in one table [3; "
        "agf: as published]",
    },
    "start": {
        "choices": NamesIn("keras_graphattn.filters.filter", "STARTS"),
        "help": "start of the filters: %(choices)s [plain]",
    },
    "alpha": {"type": finite, "help": "a of the filter jacobi [as published, else 0]"},
    "beta": {"type": finite, "help": "b of the filter jacobi [as published, else 0]"},
    "orthogonality_weight": {
        "type": number_in(0.0, math.inf),
        "help": "agf's gamma, shared out over the layers [as published]",
    },
    "learned_constant": {
        "action": _YES_OR_NO,
        "help": "learn agf's theta_0 too, from an output of 0 on",
    },
    "vector_activation": {
        "choices": NamesIn("keras_graphattn.operators.singular", "ACTIVATIONS"),
        "help": "what makes agf's U and V, the paper's rho: %(choices)s [softmax]",
    },
    "constant": {"type": finite, "help": "w_0 of the filter first_order at the start [0]"},
    "trained_coefficients": {
        "type": names_among(("identity", "linear", "power")),
        "help": "which of the filter first_order are learned: identity,linear,power [all]",
    },
    "exponents": {"type": exponents, "help": "p, one or as many as heads [1.5 and 2.5]"},
    "mask": {"choices": ("exponential", "none"), "help": "masked_kernel's [exponential]"},
    "feature_map": {
        "choices": NamesIn("keras_graphattn.feature_maps", "FEATURE_MAPS"),
        "help": "of kernel attention: %(choices)s [relu; factored_graph_kernel: favor]",
    },
    "landmarks": {
        "type": at_least(1),
        "help": "landmarks of nystromformer, and sums of tokens of linformer; the length of the "
        "sequences if that is less [64; linformer: 256]",
    },
    "value_convolution": {
        "action": _YES_OR_NO,
        "help": "add nystromformer's depth-wise convolution of the values over 33 tokens [yes]",
    },
    "expander_degree": {
        "type": _even,
        "help": "of the random graph beside the edges, an even number [0: none]",
    },
    "num_virtual_nodes": {
        "type": at_least(0),
        "help": "nodes that all nodes see, and that see all of them [0]",
    },
    "coefficient_dropout": {
        "type": _SHARE,
        "help": "share of the entries of A that gat and graph_kernel drop in training [0]",
    },
    RATE: {
        "type": _ABOVE_0,
        "help": "the learning rate of coefficients of filters and of weights of masks, over that "
        f"of all other weights [{MULTIPLIER:g}]",
    },
}


def add_shared(
    parser: argparse._ActionsContainer,
    defaults: Mapping[str, Any],
    hints: Mapping[str, str] | None = None,
) -> None:
    """Adds options of `OPTIONS` by their defaults; hints replace defaults in the help."""
    for name, default in defaults.items():
        entry = dict(OPTIONS[name])
        if hints and name in hints:
            entry["help"] = f"{entry['help'].partition(' [')[0]} [{hints[name]}]"
        if isinstance(entry.get("choices"), NamesIn):
            entry["metavar"] = name.upper()
        short = ["--p"] if name == "exponents" else []
        parser.add_argument(*short, flags([name]), dest=name, default=default, **entry)


def add_where(add: Callable[..., Any]) -> None:
    """Adds the option `--where`: which layers of a model get the attention."""
    where = "layers with --attention: all, even, odd, first:2, last:2, 0,3, a pattern"
    add("--where", default="all", help=where)


def add_run_options(
    parser: argparse.ArgumentParser,
    attentions: Sequence[str],
    default: Sequence[str],
    folder: str,
    saved_model: bool,
) -> None:
    """Adds the options of every recipe: runs, output and devices."""
    add = parser.add_argument
    add(
        "--attention",
        type=names_among(attentions),
        default=list(default),
        help=f"comma-separated, of {', '.join(attentions)} [{','.join(default)}]",
    )
    add("--seeds", type=seeds, default=[0], help="comma-separated; one training for each [0]")
    add("--output", type=Path, help=f"folder to write to [results/{folder}]")
    add("--overwrite", action="store_true", help="begin anew where --output has a run")
    add("--backend", choices=BACKENDS, help="else KERAS_BACKEND, else Keras' own choice")
    add(
        "--distribute",
        choices=("data",),
        nargs="?",
        const="data",
        default=False,
        help="share out the batches over all devices (jax, tensorflow)",
    )
    add(
        "--processes",
        type=place,
        metavar="PLACE",
        help="this is one of several processes that share out the batches (jax): auto, or "
        "ADDRESS:PORT of process 0,COUNT,NUMBER; all with the same --output",
    )
    add("--tensorboard", action="store_true", help="write TensorBoard logs as well")
    if saved_model:
        add("--skip-saved-model", action="store_true", help="write no SavedModel (TensorFlow)")
    add("--verbose", type=int, choices=(0, 1, 2), default=1, help="Keras' progress bar")


def attention_options(attentions: Sequence[str], without: Sequence[str]) -> dict[str, None]:
    """The options of these attentions, except those in `without`."""
    wanted = {option for name in attentions for option in ATTENTIONS[name].options}
    return {name: None for name in OPTIONS if name in wanted and name not in without}


def refuse_unused(
    options: argparse.Namespace, attentions: Sequence[str], published: Mapping[str, Any]
) -> None:
    """Refuses an option that no selected attention has, and two options for one number.

    Published settings may belong to attentions that are not selected.
    """
    for name, value in given_options(options).items():
        if name in published and value == published[name]:
            continue
        users = [one for one in attentions if name in ATTENTIONS[one].options]
        filters = {one: filter_name(one, options) for one in options.attention if one in users}
        if not filters:
            raise UsageError(
                f"{flags([name])} is an option of {listed(sorted(users))} attention; "
                f"--attention is {','.join(options.attention)}"
            )
        if name in ("order", "start") and not any(filters.values()):
            raise UsageError(
                f"{flags([name])} is an option of a filter; {listed(sorted(filters))} attention "
                "has none: give --filter"
            )
        wanted = OF_FILTER.get(name)
        if wanted is not None and wanted not in filters.values():
            others = ", ".join(f"{one} has {filter}" for one, filter in filters.items())
            raise UsageError(f"{flags([name])} is an option of the filter {wanted}; {others}")
    values = {"start": "plain", "constant": 0.0, **given_options(options)}
    if values["start"] != "plain" and values["constant"]:
        raise UsageError(
            f"--start {values['start']} sets w_0, and so does --constant "
            f"{values['constant']:g}: give one of the two"
        )


def check_heads(options: argparse.Namespace) -> None:
    """Refuses a width that the heads cannot share."""
    if options.d_model % options.heads:
        raise UsageError(
            f"--d-model {options.d_model} cannot be shared out over --heads {options.heads}"
        )


def deviations(
    options: argparse.Namespace, published: Mapping[str, Any], free: Sequence[str] = ()
) -> list[str]:
    """The options that differ from the published ones; the paper leaves `free` ones open."""
    changed = [
        f"{name} {getattr(options, name)} (published: {value})"
        for name, value in published.items()
        if name not in ("attention", *free) and getattr(options, name) != value
    ]
    more = given_options(options).items()
    return changed + [f"{name} {value}" for name, value in more if name not in (*published, *free)]
