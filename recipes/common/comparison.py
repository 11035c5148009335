"""The outline of every recipe's command: check what was asked for, train, report.

Keras is imported only after the backend is chosen; whatever can be checked without it comes
first, so that a wrong option fails at once. A recipe's own methods that need Keras import it
inside.
"""

import abc
import argparse
import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.common.attentions import OPTIONS
from recipes.common.command import choose_backend, run_command
from recipes.common.devices import check_devices
from recipes.common.experiment import (
    check_attentions,
    check_installed,
    check_settings,
    keras_configured,
    only_run_in,
)

if TYPE_CHECKING:
    import keras

    from recipes.common.chance import Chance
    from recipes.common.resume import Criterion
    from recipes.common.runs import Run, Training

# options that no number of a run depends on
_OF_THE_COMMAND = {"attention", "seeds", "output", "overwrite", "verbose", "published"}
_OF_THE_FILES = {"data_dir", "cache_dir", "tensorboard", "skip_saved_model", "backend"}


class Recipe(abc.ABC):
    """What is a recipe's own in the outline; methods stand in the order in which they are called.

    `problem` is the recipe's data in a form of its own; it has a `digest()`.
    """

    attentions: tuple[str, ...]  # all that it knows, in the order of the table
    packages: tuple[str, ...] = ()  # whose versions count, beside Keras, its backend and NumPy

    @abc.abstractmethod
    def parse(self, arguments: list[str] | None) -> argparse.Namespace:
        """The options; raises `UsageError` for what cannot be honoured."""

    @abc.abstractmethod
    def filters(self, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
        """The arguments of each attention, whether asked for or not."""

    @abc.abstractmethod
    def load(self, options: argparse.Namespace) -> Any:
        """The problem; raises `UsageError` where its data cannot be had."""

    def complete(self, problem: Any, options: argparse.Namespace) -> argparse.Namespace:
        """The options, with those set that only the data can tell."""
        return options

    def criterion(self, problem: Any) -> "Criterion":
        """The metric that chooses an epoch and stands in the table."""
        from recipes.common.resume import ACCURACY

        return ACCURACY

    def chance(self, problem: Any) -> "Chance | None":
        """The criterion's level without looking at the inputs, where there is one."""
        return None

    @abc.abstractmethod
    def facts(self, problem: Any, options: argparse.Namespace) -> dict[str, Any]:
        """What is to be said of the data: comes first in `results.json`."""

    @abc.abstractmethod
    def prepare(
        self, problem: Any, attention: str, seed: int, options: argparse.Namespace
    ) -> "Training":
        """The compiled model and the batches of one attention with one seed."""

    @abc.abstractmethod
    def title(self, problem: Any, options: argparse.Namespace) -> str:
        """What stands over the table and the picture."""

    @abc.abstractmethod
    def best_model(
        self, runs: "list[Run]", problem: Any, options: argparse.Namespace
    ) -> "keras.Model":
        """The model of the run best on validation data, at its chosen epoch, not compiled."""

    def write_model(self, output: Path, model: "keras.Model", options: argparse.Namespace) -> None:
        """Writes the best model to the folder `output`."""
        from recipes.common import report

        report.write_model(output, model, saved_model=writes_saved_model(options))

    @abc.abstractmethod
    def notes(self, results: dict[str, Any], options: argparse.Namespace) -> list[str]:
        """The lines under the table."""


def run(recipe: Recipe, arguments: list[str] | None) -> int:
    """Runs a recipe; returns its exit code: 0, or 2 with one line on standard error."""
    return run_command(lambda given: compare(recipe, given), arguments)


def compare(recipe: Recipe, arguments: list[str] | None) -> None:
    """Trains all attentions with all seeds and writes everything to `--output`."""
    options = recipe.parse(arguments)
    check_installed(
        saved_model=writes_saved_model(options),
        tensorboard=options.tensorboard,
    )
    choose_backend(options.backend)
    check_attentions(options.attention, recipe.filters(options))
    check_devices(options)
    problem = recipe.load(options)
    with only_run_in(options.output), keras_configured(options.precision):
        settings = _settings(recipe, problem, options)
        check_settings(options.output, settings, options.overwrite)
        _train_and_report(recipe, problem, settings, options)


def writes_saved_model(options: argparse.Namespace) -> bool:
    """Whether a SavedModel is written: where a recipe offers to leave it out, and was not told."""
    return not getattr(options, "skip_saved_model", True)


def _train_and_report(
    recipe: Recipe, problem: Any, settings: dict[str, Any], options: argparse.Namespace
) -> None:
    from recipes.common import report
    from recipes.common.kept import finished_runs
    from recipes.common.plot import plot
    from recipes.common.runs import train_run

    output = options.output
    options = recipe.complete(problem, options)
    facts = recipe.facts(problem, options)
    criterion = recipe.criterion(problem)
    for seed in options.seeds:
        for attention in options.attention:
            train_run(
                attention,
                seed,
                output,
                functools.partial(recipe.prepare, problem, attention, seed, options),
                options,
                criterion,
            )
    runs = finished_runs(output, recipe.attentions, criterion)
    results = report.write_results(output, facts, settings, runs, recipe.packages)
    title = recipe.title(problem, options)
    plot(output / "results.png", f"{title} ({results['backend']})", runs, recipe.chance(problem))
    recipe.write_model(output, recipe.best_model(runs, problem, options), options)
    print(report.format_table(results, title, recipe.notes(results, options)))
    print(f"written to {output}")


def _settings(recipe: Recipe, problem: Any, options: argparse.Namespace) -> dict[str, Any]:
    """All that the numbers of one run depend on, whichever runs are asked for."""
    import keras

    apart = {*_OF_THE_COMMAND, *_OF_THE_FILES, *OPTIONS}
    return {
        **{
            name: None if value == math.inf else value
            for name, value in vars(options).items()
            if name not in apart
        },
        "backend": keras.backend.backend(),
        "data": problem.digest(),
        "filters": {name: given for name, given in recipe.filters(options).items() if given},
    }
