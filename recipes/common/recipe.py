"""The outline of every recipe: what it declares, and what its command does with that.

The command checks what was asked for, trains, reports. Keras is imported only after the backend is
chosen; whatever can be checked without it comes first, so that a wrong option fails at once. A
recipe's own methods that need Keras import it inside.
"""

import abc
import argparse
import functools
import importlib
import math
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from recipes.common.attentions import MULTIPLIER, RATE, option_names, settings_of
from recipes.common.command.attention_options import refuse_unused
from recipes.common.command.checks import (
    check_attentions,
    check_installed,
    check_settings,
    keras_configured,
    only_run_in,
)
from recipes.common.command.compiling import shared_programs
from recipes.common.command.devices import check_devices
from recipes.common.command.options import departures
from recipes.common.command.parsing import Parser, UsageError, choose_backend, run_command
from recipes.common.output.notes import coefficient_notes

if TYPE_CHECKING:
    import keras

    from recipes.common.data.chance import Chance
    from recipes.common.training.kept import Run
    from recipes.common.training.resume import Criterion

Settings = dict[str, Any]  # of one attention, as `settings_of` gives them

# options that no number of a run depends on
_OF_THE_COMMAND = {"attention", "seeds", "output", "overwrite", "verbose", "published", "released"}
_OF_THE_FILES = {"data_dir", "cache_dir", "tensorboard", "skip_saved_model", "backend"}


class Recipe(abc.ABC):
    """What a recipe declares; methods stand in the order in which they are called.

    Beside the declaration, the recipe's folder has two modules, which may import Keras:

    * `data`, with `load(options)`: the recipe's data in a form of its own, with a `digest()`;
    * `model`, with `prepare(problem, attention, settings, seed, options)`, the compiled model and
      the batches of one run, a `Training`; and `build(problem, attention, settings, options,
      seed)`, the model before its training. Where the model of a finished run needs more than its
      weights, `best_model(run, settings, problem, options)` makes it instead.
    """

    name: str  # of the folder
    description: str  # in the help
    attentions: tuple[str, ...]  # all that it knows, in the order of the table
    data_files: str = ""  # what --data-dir is, for recipes that read data
    packages: tuple[str, ...] = ()  # whose versions count, beside Keras, its backend and NumPy
    open_in_paper: tuple[str, ...] = ()  # options that the published settings leave to the user

    @abc.abstractmethod
    def add_options(self, parser: Parser) -> None:
        """Adds the recipe's options."""

    def published(self, options: argparse.Namespace) -> dict[str, Any]:
        """Published settings that were asked for, by option: defaults in place of the usual ones.

        Raises:
            UsageError: If no finished run is found.
        """
        return {}

    def refuse(self, options: argparse.Namespace) -> None:  # noqa: B027
        """Raises `UsageError` for options that were given and have no use."""

    def defaults(self, options: argparse.Namespace) -> dict[str, Any]:
        """The value of each option that has none yet and depends on others."""
        return {}

    def finish(self, options: argparse.Namespace) -> None:  # noqa: B027
        """Sets what is left; raises `UsageError` for options that do not go together."""

    @abc.abstractmethod
    def folder(self, options: argparse.Namespace) -> str:
        """The name of the folder of results in `results/<name>`."""

    def attention_defaults(self, options: argparse.Namespace) -> dict[str, Settings]:
        """By attention, the options that have another default than the layer's."""
        return {"gfsa": {"order": 3, RATE: MULTIPLIER}}

    def load(self, options: argparse.Namespace) -> Any:
        """The problem; raises `UsageError` where its data cannot be had or used."""
        return self.data.load(options)

    def complete(self, problem: Any, options: argparse.Namespace) -> argparse.Namespace:
        """The options, with those set that only the data can tell."""
        return options

    @abc.abstractmethod
    def facts(self, problem: Any, options: argparse.Namespace) -> dict[str, Any]:
        """What is to be said of the data: comes first in `results.json`."""

    def criterion(self, problem: Any, options: argparse.Namespace) -> "Criterion":
        """The metric that stands in the table, and what chooses an epoch."""
        from recipes.common.training.resume import ACCURACY

        return ACCURACY

    def chance(self, problem: Any) -> "Chance | None":
        """The criterion's level without looking at the inputs, where there is one."""
        return None

    @abc.abstractmethod
    def title(self, problem: Any, options: argparse.Namespace) -> str:
        """What stands over the table and the picture."""

    def best_model(
        self, run: "Run", settings: Settings, problem: Any, options: argparse.Namespace
    ) -> "keras.Model":
        """The model of a finished run at its chosen epoch, not compiled."""
        own = getattr(self.model, "best_model", None)
        if own is not None:
            return own(run, settings, problem, options)
        model = self.model.build(problem, run.attention, settings, options, run.seed)
        if not getattr(options, "ema", 0.0):
            model.load_weights(run.weights)
            return model
        from recipes.common.training.averages import load_averages

        training = self.model.prepare(problem, run.attention, settings, run.seed, options)
        load_averages(model, run.weights, training.model)
        return model

    def write_model(self, output: Path, model: "keras.Model", options: argparse.Namespace) -> None:
        """Writes the best model to the folder `output`."""
        from recipes.common.output import report

        served = getattr(self.model, "served", None)
        report.write_model(
            output,
            model,
            saved_model=writes_saved_model(options),
            served=served and served(model, options),
        )

    def write_more(  # noqa: B027
        self, output: Path, runs: "list[Run]", best: "keras.Model", problem: Any, options: Any
    ) -> None:
        """Writes to the folder `output` what this recipe alone writes, of all runs."""

    def notes(self, results: dict[str, Any], options: argparse.Namespace) -> list[str]:
        """The lines under the table; the first one is on the column of best test epochs."""
        best = "at best test epoch: the best epoch on the test data; nothing is chosen by it."
        return [best, *coefficient_notes(results)]

    @property
    def data(self) -> ModuleType:
        """The recipe's module `data`."""
        return importlib.import_module(f"recipes.{self.name}.data")

    @property
    def model(self) -> ModuleType:
        """The recipe's module `model`."""
        return importlib.import_module(f"recipes.{self.name}.model")

    def parse(self, arguments: list[str] | None = None) -> argparse.Namespace:
        """The options; raises `UsageError` with one line for what cannot be honoured."""
        parser = Parser(self.description, f"python -m recipes.{self.name}")
        self.add_options(parser)
        options = parser.parse_args(arguments)
        published = self.published(options)
        if published:
            parser.set_defaults(**published)
            options = parser.parse_args(arguments)
        refuse_unused(options, self.attentions, published)
        self.refuse(options)
        for name, value in self.defaults(options).items():
            if getattr(options, name) is None:
                setattr(options, name, value)
        self.finish(options)
        if getattr(options, "patience", None) is None:  # nothing ends training early
            options.patience = options.epochs or math.inf
        if options.output is None:
            options.output = Path("results") / self.name / self.folder(options)
        return options

    def settings(self, options: argparse.Namespace) -> dict[str, Settings]:
        """The settings of each attention, whether it is asked for or not."""
        defaults = self.attention_defaults(options)
        return {
            name: settings_of(name, options, defaults.get(name, {})) for name in self.attentions
        }

    def departures(self, options: argparse.Namespace) -> list[str]:
        """In which options a run with published settings is not the published one."""
        return departures(options, self.published(options), self.open_in_paper)

    def main(self, arguments: list[str] | None = None) -> int:
        """Runs the command; returns its exit code: 0, or 2 with one line on standard error."""
        return run_command(lambda given: compare(self, given), arguments)


def compare(recipe: Recipe, arguments: list[str] | None) -> None:
    """Trains all attentions with all seeds and writes everything to `--output`."""
    options = recipe.parse(arguments)
    check_installed(
        saved_model=writes_saved_model(options),
        tensorboard=options.tensorboard,
    )
    choose_backend(options.backend)
    of_attentions = recipe.settings(options)
    check_attentions(options.attention, of_attentions)
    check_devices(options)
    folder = getattr(options, "data_dir", None)
    if folder is not None and not folder.exists():
        raise UsageError(f"--data-dir {folder} does not exist. Give {recipe.data_files}")
    problem = recipe.load(options)
    configured = keras_configured(options.precision)
    with only_run_in(options.output), configured, shared_programs():
        settings = _settings(of_attentions, problem, options)
        check_settings(options.output, settings, options.overwrite)
        _train_and_report(recipe, problem, of_attentions, settings, options)


def writes_saved_model(options: argparse.Namespace) -> bool:
    """Whether a SavedModel is written: where a recipe offers to leave it out, and was not told."""
    return not getattr(options, "skip_saved_model", True)


def _train_and_report(
    recipe: Recipe,
    problem: Any,
    of_attentions: dict[str, Settings],
    settings: dict[str, Any],
    options: argparse.Namespace,
) -> None:
    from recipes.common.output import report
    from recipes.common.output.plot import plot
    from recipes.common.training.kept import finished_runs
    from recipes.common.training.runs import best_run, train_run

    output, model = options.output, recipe.model
    options = recipe.complete(problem, options)
    facts = _facts(recipe, problem, options)
    criterion = recipe.criterion(problem, options)
    for seed in options.seeds:
        for attention in options.attention:
            one = (problem, attention, of_attentions[attention], seed, options)
            prepare = functools.partial(model.prepare, *one)
            train_run(attention, seed, output, prepare, options, criterion)
    runs = finished_runs(output, recipe.attentions, criterion)
    results = report.write_results(output, facts, settings, runs, recipe.packages)
    title = recipe.title(problem, options)
    plot(output / "results.png", f"{title} ({results['backend']})", runs, recipe.chance(problem))
    best = best_run(runs)
    found = recipe.best_model(best, of_attentions[best.attention], problem, options)
    recipe.write_model(output, found, options)
    recipe.write_more(output, runs, found, problem, options)
    print(report.format_table(results, title, recipe.notes(results, options)))
    print(f"written to {output}")


def _facts(recipe: Recipe, problem: Any, options: argparse.Namespace) -> dict[str, Any]:
    facts = {"recipe": recipe.name, **recipe.facts(problem, options)}
    if recipe.published(options):
        told = facts.pop("published", {})
        facts["published"] = {**told, "departures": recipe.departures(options)}
    return facts


def _settings(
    of_attentions: dict[str, Settings], problem: Any, options: argparse.Namespace
) -> dict[str, Any]:
    """All that the numbers of one run depend on, whichever runs are asked for."""
    import keras

    apart = {*_OF_THE_COMMAND, *_OF_THE_FILES, *option_names()}
    return {
        **{
            name: None if value == math.inf else value
            for name, value in vars(options).items()
            if name not in apart
        },
        "backend": keras.backend.backend(),
        "data": problem.digest(),
        "filters": {name: given for name, given in of_attentions.items() if given},
    }
