"""The options of `python -m recipes.long_range_arena`. Imports no Keras."""

import argparse
import math
import os
from pathlib import Path
from typing import Any

from recipes.common.attentions import (
    MULTIPLIER,
    RATE,
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
from recipes.long_range_arena.tasks import TASKS, preset

ATTENTIONS = ("softmax", "linear", "gfsa", "agf")
BLOCKWISE_FROM = 513  # tokens from which GFSA forms its matrix in blocks of rows


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line; raises `UsageError` with one line for what cannot be honoured.

    What is not given is taken from the preset of the task.
    """
    options = _parser().parse_args(arguments)
    refuse_unused(options, ATTENTIONS, {})
    source = TASKS[options.task].source
    if options.data_dir is not None and source == "made":
        raise UsageError(f"--data-dir: the data of --task {options.task} is made, not read")
    if options.data_dir is None and source == "files":
        raise UsageError(
            f"--task {options.task} needs --data-dir with the AAN files of the published arena, "
            "*.train.tsv, *.eval.tsv and *.test.tsv"
        )
    if options.max_length is not None and options.task in ("image", "pathfinder"):
        raise UsageError(f"--max-length: the images of --task {options.task} have one length")
    for name, value in preset(options.task, options.preset).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.patience is None:
        options.patience = options.epochs or math.inf
    if options.output is None:
        options.output = Path("results/long_range_arena") / f"{options.task}-{options.preset}"
    return options


def filters(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The filter's arguments for each attention: those given, else the published ones."""
    as_published = options.preset == "paper"
    defaults = TASKS[options.task].filter.defaults(one_rate=as_published)
    settings = {name: settings_of(name, options, defaults.get(name, {})) for name in ATTENTIONS}
    if options.max_length >= BLOCKWISE_FROM:
        settings["gfsa"]["attention_path"] = "blockwise"
    return settings


def departures(options: argparse.Namespace, epochs: int) -> list[str]:
    """In which options a run with `--preset paper` is not the published one; for the table.

    Args:
        options: The options of the run.
        epochs: The number of epochs that holds the published number of steps.
    """
    known = {**preset(options.task, "paper"), "epochs": epochs}
    changed = [
        f"{name} {getattr(options, name)} (published: {value})"
        for name, value in known.items()
        if value is not None and getattr(options, name) != value
    ]
    return changed + [f"{name} {value}" for name, value in given_options(options).items()]


def _parser() -> Parser:
    parser = Parser(
        prog="python -m recipes.long_range_arena",
        description="Trains and compares attention layers on a task of the Long Range Arena; "
        "writes a table, curves and the best model. [in brackets: the default]",
    )
    add = parser.add_argument
    add("--task", choices=tuple(TASKS), default="listops", help="[listops]")
    add("--preset", choices=("smoke", "paper"), default="smoke", help="size of it all [smoke]")
    add(
        "--attention",
        type=names_among(ATTENTIONS),
        default=["softmax", "agf"],
        help=f"comma-separated, of {','.join(ATTENTIONS)} [softmax,agf]",
    )
    add("--data-dir", type=Path, help="text, image: TFDS' folder; retrieval: folder of tsv files")
    add("--data-seed", type=at_least(0), default=0, help="seed of data that is made [0]")
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "keras_graphattn"
    add("--cache-dir", type=Path, default=cache, help=f"where data that is made is kept [{cache}]")
    add_run_options(add, "long_range_arena/<task>-<preset>", saved_model=False)
    _add_sizes(parser.add_argument_group("sizes, in place of the preset's").add_argument)
    add_attention_options(
        parser.add_argument_group("attentions").add_argument,
        ATTENTIONS,
        {RATE: f"{MULTIPLIER:g}; 1 with --preset paper"},
    )
    return parser


def _add_sizes(add: Any) -> None:
    add("--train-examples", type=at_least(2), help="at most")
    add("--evaluation-examples", type=at_least(2), help="at most, for validation and for test")
    add("--max-length", type=at_least(8), help="tokens of the longest sequence")
    add("--epochs", type=at_least(1), help="at most [paper: as many as give 50,000 steps]")
    add("--patience", type=at_least(1), help="epochs without gain on validation data [all]")
    add("--batch-size", type=at_least(1))
    add("--learning-rate", type=number_in(0.0, math.inf, open_low=True))
    add("--warm-up", type=at_least(0), help="steps")
    add("--precision", choices=PRECISIONS, default="float32", help="[float32]")
    add("--layers", type=at_least(1))
    add("--d-model", type=at_least(1), help="width of the tokens")
    add("--heads", type=at_least(1))
    add("--key-dim", type=at_least(1), help="width of each head")
    add("--feed-forward", type=at_least(1))
    add("--dropout", type=number_in(0.0, 1.0))
