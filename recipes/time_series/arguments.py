"""The options of `python -m recipes.time_series`. Imports no Keras."""

import argparse
import math
from pathlib import Path
from typing import Any

from recipes.common.attentions import (
    MULTIPLIER,
    RATE,
    PublishedFilter,
    add_attention_options,
    given_options,
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

ATTENTIONS = ("softmax", "linear", "gfsa", "agf")

# Wi et al., arXiv 2505.08516 (IJCAI 2025), the settings of its time-series experiments
PUBLISHED_AGF = {
    "EthanolConcentration": PublishedFilter(6, 0.1, 1.5, -1.5),
    "FaceDetection": PublishedFilter(9, 0.1, 2.0, 0.5),
    "Handwriting": PublishedFilter(3, 0.01, 1.0, 0.2, True),
    "Heartbeat": PublishedFilter(6, 0.01, -0.5, -0.5, True),
    "JapaneseVowels": PublishedFilter(4, 0.01, 0.0, 0.0, True),
    "PEMS-SF": PublishedFilter(5, 0.1, 1.5, 2.0),
    "SelfRegulationSCP1": PublishedFilter(9, 0.1, 1.5, 2.0),
    "SelfRegulationSCP2": PublishedFilter(7, 0.1, 2.0, 1.5),
    "SpokenArabicDigits": PublishedFilter(4, 0.1, 1.0, 0.0),
    "UWaveGestureLibrary": PublishedFilter(10, 0.1, 2.0, 1.5),
}
ELSEWHERE = PublishedFilter(4, 0.01, 0.0, 0.0)


# the training of the same experiments; 8 heads of 64; every epoch runs, none ends it early
PUBLISHED_TRAINING = {
    "attention": list(ATTENTIONS),
    "epochs": 100,
    "patience": 100,
    "batch_size": 16,
    "learning_rate": 1e-3,
    "layers": 2,
    "d_model": 512,
    "heads": 8,
    "key_dim": 64,
}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line; raises `UsageError` with one line for what cannot be honoured."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.published:
        if options.dataset not in PUBLISHED_AGF:
            raise UsageError(
                f"--published has settings for {', '.join(PUBLISHED_AGF)}; "
                f"--dataset is {options.dataset}"
            )
        parser.set_defaults(**PUBLISHED_TRAINING)
        options = parser.parse_args(arguments)
    refuse_unused(options, ATTENTIONS, {})
    if options.output is None:
        options.output = Path("results/time_series") / options.dataset
    return options


def filters(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The filter's arguments for each attention: those given, else the published ones.

    theta_0 is learned where it was in the paper's runs with `--published` alone.
    """
    published = PUBLISHED_AGF.get(options.dataset, ELSEWHERE)
    if not options.published:
        published = published._replace(learned_constant=False)
    defaults = published.defaults(one_rate=options.published)
    return {name: settings_of(name, options, defaults.get(name, {})) for name in ATTENTIONS}


def departures(options: argparse.Namespace) -> list[str]:
    """In which options a run with `--published` is not the published one; for the table."""
    if not options.published:
        return []
    changed = [
        f"{name} {getattr(options, name)} (published: {value})"
        for name, value in PUBLISHED_TRAINING.items()
        if name != "attention" and getattr(options, name) != value
    ]
    return changed + [f"{name} {value}" for name, value in given_options(options).items()]


def _parser() -> Parser:
    parser = Parser(
        prog="python -m recipes.time_series",
        description="Trains and compares attention layers on time series of the "
        "UEA archive; writes a table, curves and the best model for serving.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--dataset", default="JapaneseVowels", help="a data set of the UEA archive")
    add(
        "--published",
        action="store_true",
        help="the paper's training of --dataset: all attentions, 100 epochs; options given here "
        "are put in its place, and named beside the table",
    )
    add("--data-dir", type=Path, help="folder with NAME_TRAIN.ts and NAME_TEST.ts")
    add(
        "--attention",
        type=names_among(ATTENTIONS),
        default=["softmax", "gfsa", "agf"],
        help="comma-separated",
    )
    add_run_options(add, "time_series/<dataset>")
    _add_training(parser.add_argument_group("training").add_argument)
    _add_model(parser.add_argument_group("model").add_argument)
    return parser


def _add_training(add: Any) -> None:
    add("--epochs", type=at_least(1), default=15, help="at most")
    add("--patience", type=at_least(1), default=8, help="epochs without gain on validation data")
    add("--batch-size", type=at_least(1), default=16)
    add("--learning-rate", type=number_in(0.0, math.inf, open_low=True), default=1e-3)
    add("--validation-fraction", type=number_in(0.0, 1.0, open_low=True), default=0.2)
    add("--precision", choices=PRECISIONS, default="float32")


def _add_model(add: Any) -> None:
    add("--layers", type=at_least(1), default=2)
    add("--d-model", type=at_least(1), default=512, help="width of the tokens")
    add("--heads", type=at_least(1), default=8)
    add("--key-dim", type=at_least(1), default=64, help="width of each head")
    add("--feed-forward", type=at_least(1), default=256)
    add("--dropout", type=number_in(0.0, 1.0), default=0.3)
    add_attention_options(add, ATTENTIONS, {RATE: f"{MULTIPLIER:g}; 1 with --published"})
