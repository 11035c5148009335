"""The options that every recipe's command has. Imports no Keras."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from recipes.common.command import BACKENDS, seeds
from recipes.common.devices import HELP, kind_of_distribution

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


def add_run_options(add: Callable[..., Any], folder: str, *, saved_model: bool = True) -> None:
    """Adds them to a parser.

    Args:
        add: The parser's `add_argument`.
        folder: What is told of `--output`: the folder that is taken without it.
        saved_model: Whether the recipe writes a SavedModel, which can be left out.
    """
    add("--seeds", type=seeds, default=[0], help="comma-separated; one training for each")
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
