"""The options that recipes share, and which of them are not a paper's. Imports no Keras.

What an option is called and what it takes stands here, what it is by default in the recipe.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recipes.common.attentions import given_options
from recipes.common.command.devices import HELP, kind_of_distribution
from recipes.common.command.parsing import (
    BACKENDS,
    Parser,
    at_least,
    names_among,
    number_in,
    seeds,
)

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
_ABOVE_0 = number_in(0.0, math.inf, open_low=True)

# Options of training and of models: what `add_argument` takes, but for the default.
SHARED: dict[str, dict[str, Any]] = {
    "epochs": {"type": at_least(1), "help": "at most"},
    "patience": {"type": at_least(1), "help": "epochs without gain on validation data"},
    "batch_size": {"type": at_least(1), "help": "examples of a batch"},
    "learning_rate": {"type": _ABOVE_0, "help": "the peak, where it changes"},
    "warm_up": {"type": at_least(0), "help": "steps until the peak of the learning rate"},
    "validation_fraction": {
        "type": number_in(0.0, 1.0, open_low=True),
        "help": "share of the training examples to validate on",
    },
    "ema": {
        "type": number_in(0.0, 1.0),
        "help": "momentum of the weights' moving average, which is validated and kept; 0: none",
    },
    "precision": {"choices": PRECISIONS, "help": "Keras' dtype policy"},
    "layers": {"type": at_least(1), "help": "blocks of the model"},
    "d_model": {"type": at_least(1), "help": "width of the tokens"},
    "heads": {"type": at_least(1), "help": "heads of each attention"},
    "key_dim": {"type": at_least(1), "help": "width of each head"},
    "feed_forward": {"type": at_least(1), "help": "width between a block's two dense layers"},
    "dropout": {"type": number_in(0.0, 1.0), "help": "share of the numbers dropped in training"},
}


def add_shared(
    parser: argparse._ActionsContainer,
    defaults: Mapping[str, Any],
    told: Mapping[str, str] | None = None,
) -> None:
    """Adds options of `SHARED` to a parser or to a group of it.

    Args:
        parser: The parser or group.
        defaults: The default of each option that is wanted.
        told: What the help tells of defaults that depend on other options.
    """
    for name, default in defaults.items():
        given = dict(SHARED[name])
        if told and name in told:
            given["help"] = f"{given['help']} [{told[name]}]"
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, **given)


def add_run_options(
    parser: Parser,
    attentions: Sequence[str],
    default: Sequence[str],
    folder: str,
    *,
    saved_model: bool = True,
) -> None:
    """Adds what every recipe has: which runs, where to, on what.

    Args:
        parser: The parser.
        attentions: The recipe's attentions.
        default: Those that are trained without `--attention`.
        folder: What is told of `--output`: the folder that is taken without it.
        saved_model: Whether the recipe writes a SavedModel, which can be left out.
    """
    add = parser.add_argument
    add(
        "--attention",
        type=names_among(tuple(attentions)),
        default=list(default),
        help=f"comma-separated, of {','.join(attentions)} [{','.join(default)}]",
    )
    add("--seeds", type=seeds, default=[0], help="comma-separated; one training for each [0]")
    add("--output", type=Path, help=f"folder to write to [results/{folder}]")
    add("--overwrite", action="store_true", help="begin anew where --output has a run")
    add("--backend", choices=BACKENDS, help="else KERAS_BACKEND, else Keras' own choice")
    add(
        "--distribute", type=kind_of_distribution, nargs="?", const="data", default=False, help=HELP
    )
    add("--tensorboard", action="store_true", help="write TensorBoard logs as well")
    if saved_model:
        add("--skip-saved-model", action="store_true", help="write no SavedModel (TensorFlow)")
    add("--verbose", type=int, choices=(0, 1, 2), default=1, help="Keras' progress bar")


def departures(
    options: argparse.Namespace, published: Mapping[str, Any], free: Sequence[str] = ()
) -> list[str]:
    """In which options a run with published settings is not the published one; for the notes.

    Args:
        options: The options of the run.
        published: The published settings, by option.
        free: Options that the paper leaves open, and `attention`.
    """
    changed = [
        f"{name} {getattr(options, name)} (published: {value})"
        for name, value in published.items()
        if name not in ("attention", *free) and getattr(options, name) != value
    ]
    given = given_options(options).items()
    return changed + [f"{name} {value}" for name, value in given if name not in (*published, *free)]
