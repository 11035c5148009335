"""The outline of every recipe: its declaration, and its command.

`Recipe.run` is the command, from top to bottom: it checks the options, trains, reports.
Keras is imported only after the backend is chosen; all checks that do not need it come first, so
that a wrong option fails at once. A recipe's own methods that need Keras import it inside.
"""

import abc
import argparse
import importlib
import importlib.util
import math
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from recipes.common.attentions import (
    ATTENTIONS,
    MULTIPLIER,
    RATE,
    Settings,
    Trial,
    compared,
    filter_name,
    option_names,
    settings_of,
    with_order,
)
from recipes.common.command.checks import (
    check_attentions,
    check_installed,
    check_settings,
    keras_configured,
    only_run_in,
    refuse_to_remove,
    writes_saved_model,
)
from recipes.common.command.devices import check_devices
from recipes.common.command.effects import Effect, refuse_without_effect
from recipes.common.command.options import (
    CLASSIFIER,
    GRAPH_ATTENTIONS,
    WALKS,
    add_published,
    add_run_options,
    add_shared,
    add_where,
    attention_options,
    check_heads,
    deviations,
    refuse_unused,
)
from recipes.common.command.parsing import (
    Parser,
    UsageError,
    at_least,
    choose_backend,
    number_in,
    run_command,
)
from recipes.common.command.processes import is_writer, together, wait_for_all
from recipes.common.data.sources import refuse_beside_preset, refuse_missing
from recipes.common.output.notes import coefficient_notes
from recipes.common.training.records import (
    ACCURACY,
    LAST_EPOCH,
    Criterion,
    Run,
    best_run,
    finished_runs,
)

if TYPE_CHECKING:
    import keras

# options that do not change the numbers of a run
_OF_THE_COMMAND = {"attention", "seeds", "output", "overwrite", "verbose", "published", "released"}
_OF_THE_COMMAND |= {"processes"}
_OF_THE_FILES = {"data_dir", "cache_dir", "tensorboard", "skip_saved_model", "backend"}


class Recipe(abc.ABC):
    """The declaration of a recipe; its methods are in the order in which they are called.

    Besides the declaration, the recipe's folder has two modules, which may import Keras:

    * `data`, with `load(options)`: the recipe's data in a form of its own, with a `digest()` and,
      where there is one, a `chance()`: the criterion's level without looking at the inputs;
    * `model`, with `prepare(trial)`, the compiled model and the batches of one run, a `Training`;
      and `build(trial)`, the model before its training. Where the model of a finished run needs
      more than its weights, `best_model(trial, weights)` makes it instead; where the SavedModel
      differs from the model, `served(model, options)` makes it.
    """

    name: str  # of the folder
    description: str  # in the help
    attentions: tuple[str, ...]  # all that it knows, in the order of the table
    by_default: tuple[str, ...]  # those that are trained without `--attention`
    results: str = "<dataset>"  # the folder of results in `results/<name>`, by options
    training: dict[str, Any]  # defaults of options that are shared: of training
    sizes: dict[str, Any]  # and of the model
    hints: dict[str, str] = {}  # defaults that depend on other options, in the help
    without: tuple[str, ...] = ()  # options of its attentions that it does not have
    saved_model: bool = True  # whether it writes a SavedModel
    data_files: str = ""  # what --data-dir is, for recipes that read data
    trains_on_all: bool = False  # whether --validation-fraction can be 0
    packages: tuple[str, ...] = ()  # whose versions count, besides Keras, its backend and NumPy
    open_in_paper: tuple[str, ...] = ()  # options that the published settings leave to the user
    effects: tuple[Effect, ...] = ()  # of its own options, where others take them away

    def add_options(self, add: Callable[..., Any]) -> None:  # noqa: B027
        """Adds the recipe's own options by `add`, which is `ArgumentParser.add_argument`."""

    def published(self, options: argparse.Namespace) -> dict[str, Any]:
        """The selected published settings, by option: they replace the usual defaults.

        Raises:
            UsageError: If there are none.
        """
        return {}

    def refuse(self, options: argparse.Namespace) -> None:  # noqa: B027
        """Raises `UsageError` for options that do not fit together; see also `effects`."""

    def defaults(self, options: argparse.Namespace) -> dict[str, Any]:
        """The values of unset options that depend on other options."""
        return {}

    def finish(self, options: argparse.Namespace) -> None:  # noqa: B027
        """Sets the remaining options; raises `UsageError` for options that do not fit together."""

    def folder(self, options: argparse.Namespace) -> str:
        """The name of the folder of results in `results/<name>`."""
        return re.sub(r"<(\w+)>", lambda part: str(getattr(options, part[1])), self.results)

    def attention_defaults(self, options: argparse.Namespace) -> dict[str, Settings]:
        """The options whose defaults differ from the layer's, for each attention."""
        return {"gfsa": {"order": 3, RATE: MULTIPLIER}}

    def load(self, options: argparse.Namespace) -> Any:
        """The problem; raises `UsageError` if its data cannot be read or used."""
        return self.data.load(options)

    def complete(self, problem: Any, options: argparse.Namespace) -> argparse.Namespace:
        """The options, including those that depend on the data."""
        return options

    @abc.abstractmethod
    def facts(self, problem: Any, options: argparse.Namespace) -> dict[str, Any]:
        """Facts on the data; they come first in `results.json`."""

    def criterion(self, problem: Any, options: argparse.Namespace) -> Criterion:
        """The metric in the table, and the one that chooses an epoch."""
        return ACCURACY

    @abc.abstractmethod
    def title(self, problem: Any, options: argparse.Namespace) -> str:
        """The title of the table and the picture."""

    def best_model(self, trial: Trial, weights: Path) -> "keras.Model":
        """The model of a finished run with the weights of its chosen epoch, not compiled."""
        if hasattr(self.model, "best_model"):
            return self.model.best_model(trial, weights)
        from recipes.common.training.runs import load_chosen, load_weights

        model = self.model.build(trial)
        if not getattr(trial.options, "ema", 0.0):
            load_weights(model, weights)
            return model
        trained = self.model.prepare(trial).model
        load_chosen(trained, weights)
        model.set_weights(trained.get_weights())
        return model

    def compare(self, runs: Sequence[Run]) -> None:  # noqa: B027
        """Adds to `reported` of each run what is known only of all runs together."""

    def write_more(  # noqa: B027
        self, output: Path, runs: Sequence[Run], best: "keras.Model", problem: Any, options: Any
    ) -> None:
        """Writes the files of this recipe only, for all runs, to the folder `output`."""

    def notes(self, results: dict[str, Any], options: argparse.Namespace) -> list[str]:
        """The lines under the table; the first one explains the column of best test epochs."""
        best = "at best test epoch: the best epoch on the test data; nothing is chosen by it."
        return [best, *coefficient_notes(results)]

    @property
    def data(self) -> ModuleType:
        return importlib.import_module(f"recipes.{self.name}.data")

    @property
    def model(self) -> ModuleType:
        return importlib.import_module(f"recipes.{self.name}.model")

    def parse(self, arguments: list[str] | None = None) -> argparse.Namespace:
        """The options; raises `UsageError` with one line for options that cannot be used."""
        parser = self._parser()
        options = parser.parse_args(arguments)
        unset = argparse.Namespace(**dict.fromkeys(vars(options)))  # keeps out the defaults
        given = vars(parser.parse_args(arguments, unset))
        given = {name for name, value in given.items() if value is not None}
        if getattr(options, "published", False) and getattr(options, "released", False):
            raise UsageError("--published and --released: give one of the two")
        published = self.published(options)
        if published:
            parser.set_defaults(**published)
            options = parser.parse_args(arguments)
        if options.processes is not None:
            options.distribute = "data"
        if getattr(options, "validation_fraction", None) == 0 and not self.trains_on_all:
            raise UsageError(
                "--validation-fraction 0: this recipe chooses its epoch on validation data. Give a "
                "share above 0"
            )
        refuse_unused(options, self.attentions, published)
        self.refuse(options)
        for name, value in self.defaults(options).items():
            if getattr(options, name) is None:
                setattr(options, name, value)
        if (getattr(options, "patience", None) or 0) >= options.epochs:
            given.discard("patience")  # it asks for all epochs, whatever ends training
        refuse_without_effect(options, given, self.attentions, self.effects)
        self.finish(options)
        exponents, heads = getattr(options, "exponents", None), getattr(options, "heads", None)
        if exponents is not None and heads is not None and len(exponents) not in (1, heads):
            raise UsageError(
                f"--exponents has {len(exponents)} numbers; one for all heads, or one for each of "
                f"--heads {heads}"
            )
        if getattr(options, "patience", None) is None:  # nothing ends training early
            options.patience = options.epochs
        if options.output is None:
            options.output = Path("results") / self.name / self.folder(options)
        return options

    def _parser(self) -> Parser:
        """The parser of the options, with the usual defaults."""
        parser = Parser(self.description, f"python -m recipes.{self.name}")
        self.add_options(parser.add_argument)
        folder = f"{self.name}/{self.results}"
        add_run_options(parser, self.attentions, self.by_default, folder, self.saved_model)
        groups = {
            "training": {**self.training, "precision": "float32"},
            "model": self.sizes,
            "attentions": attention_options(self.attentions, self.without),
        }
        for title, defaults in groups.items():
            add_shared(parser.add_argument_group(title), defaults, self.hints)
        return parser

    def settings(self, options: argparse.Namespace) -> dict[str, Settings]:
        """The settings of each attention, selected or not."""
        defaults = self.attention_defaults(options)
        return {
            name: settings_of(name, options, defaults.get(name, {})) for name in self.attentions
        }

    def trial(
        self, problem: Any, attention: str, options: argparse.Namespace, seed: int = 0
    ) -> Trial:
        """One training of this recipe; the attention may have one of several orders."""
        attention, order = compared(attention)
        if order is not None:
            options = argparse.Namespace(**{**vars(options), "order": order})
        return Trial(problem, attention, self.settings(options)[attention], options, seed, order)

    def compared(self, options: argparse.Namespace) -> list[str]:
        """The names of what is compared: attentions, each with all orders of its filter."""
        orders = getattr(options, "order", None)
        several = orders if isinstance(orders, list) else []
        names = []
        for name in options.attention:
            has_order = "order" in ATTENTIONS[name].options and filter_name(name, options)
            in_turn = several if has_order else []
            names += [with_order(name, order) for order in in_turn] or [name]
        return names

    def deviations(self, options: argparse.Namespace) -> list[str]:
        """The options in which a run with published settings differs from the paper."""
        return deviations(options, self.published(options), self.open_in_paper)

    def main(self, arguments: list[str] | None = None) -> int:
        """Runs the command; returns its exit code: 0, or 2 with one line on standard error."""
        return run_command(self.run, arguments)

    def run(self, arguments: list[str] | None) -> None:
        """Trains all attentions with all seeds and writes everything to `--output`."""
        options = self.parse(arguments)
        check_installed(options)
        choose_backend(options.backend)
        check_attentions(self.trial(None, name, options) for name in self.compared(options))
        with together(options):
            self._run_in_place(options)

    def _run_in_place(self, options: argparse.Namespace) -> None:
        check_devices(options)
        folder = getattr(options, "data_dir", None)
        if folder is not None and not folder.exists():
            raise UsageError(f"--data-dir {folder} does not exist. Give {self.data_files}")
        problem = self.load(options)
        with ExitStack() as stack:
            stack.enter_context(keras_configured(options.precision))
            settings = self._all_settings(problem, options)
            if is_writer(options):
                stack.enter_context(only_run_in(options.output))
                refuse_to_remove(options)
                usual = vars(self._parser().parse_args([]))
                check_settings(options.output, settings, usual, options.overwrite)
            wait_for_all(options, "settings")
            self._train_and_report(problem, settings, self.complete(problem, options))

    def _all_settings(self, problem: Any, options: argparse.Namespace) -> Settings:
        """All settings that the numbers of one run depend on, whichever other runs there are."""
        import keras

        apart = {*_OF_THE_COMMAND, *_OF_THE_FILES, *option_names()}
        values = {name: value for name, value in vars(options).items() if name not in apart}
        return {
            **values,
            "backend": keras.backend.backend(),
            "data": problem.digest(),
            "filters": self.settings(options),
        }

    def _train_and_report(
        self, problem: Any, settings: Settings, options: argparse.Namespace
    ) -> None:
        from recipes.common.output import report
        from recipes.common.output.plot import draw, save
        from recipes.common.training.runs import train_run

        output = options.output
        facts = self.facts(problem, options)
        if self.published(options):
            own = facts.pop("published", {})
            facts["published"] = {**own, "departures": self.deviations(options)}
        protocol = "published" if "published" in facts else "own"
        if getattr(options, "released", False):
            protocol = "released"  # by what the paper's code sets
        facts = {"recipe": self.name, "protocol": protocol, **facts}
        criterion = self.criterion(problem, options)
        if getattr(options, "validation_fraction", None) == 0:
            criterion = criterion._replace(choose_by=LAST_EPOCH)
        for seed in options.seeds:
            for name in self.compared(options):
                trial = self.trial(problem, name, options, seed)
                train_run(trial, output, self.model.prepare, criterion)
        if not is_writer(options):
            return
        runs = finished_runs(output, self.attentions, criterion)
        self.compare(runs)
        results = report.write_results(output, facts, settings, runs, self.packages)
        title = self.title(problem, options)
        chance = problem.chance() if hasattr(problem, "chance") else None
        save(draw(f"{title} ({results['backend']})", runs, chance), output / "results.png")
        best = best_run(runs)
        trial = self.trial(problem, best.attention, options, best.seed)
        model = self.best_model(trial, best.weights)
        served = getattr(self.model, "served", lambda model, options: model)
        report.write_model(output, model, writes_saved_model(options) and served(model, options))
        self.write_more(output, runs, model, problem, options)
        print(report.format_table(results, title, self.notes(results, options)))
        print(f"written to {output}")


class ClassifierOfGraphs(Recipe):
    """The common part of the recipes that classify graphs."""

    attentions = GRAPH_ATTENTIONS
    by_default = ("softmax", "gcn", "gat", "graph_kernel", "graph_masked_kernel")
    sizes = {"layers": 2, "heads": 8, "key_dim": 4, "feed_forward": 32, "dropout": 0.0}
    sizes |= {"embedding": True, "skip": True, "normalise": True, **WALKS, **CLASSIFIER}

    def finish(self, options: argparse.Namespace) -> None:
        width, last = options.heads * options.key_dim, options.last_heads
        if width % last:
            raise UsageError(
                f"--last-heads must divide --heads times --key-dim, {width}. Received: {last}"
            )

    def criterion(self, problem: Any, options: argparse.Namespace) -> Criterion:
        """Accuracy in the table; `--choose-by` names the metric that chooses the epoch."""
        return ACCURACY._replace(choose_by=options.choose_by)


class ClassifierOfTexts(Recipe):
    """The common part of the recipes that classify texts by encoders of KerasHub."""

    small = {"vocabulary": 4000, "layers": 2, "d_model": 64, "heads": 2, "feed_forward": 128}
    needed = {"keras_hub": "keras-hub", "sklearn": "scikit-learn"}  # by module, what to install
    presets: str  # what --preset takes
    results = "<task>-<preset>"
    sizes = {name: None for name in small if name != "vocabulary"}
    hints = {**{name: f"{value}, without --preset" for name, value in small.items()}, "order": "3"}
    without = (RATE,)
    open_in_paper = ("order",)
    effects = (Effect("coefficient_learning_rate", attention=("gfsa", "scaled_high_frequency")),)

    def add_options(self, add: Callable[..., Any]) -> None:
        add("--preset", help=self.presets)
        add_published(add, "the GFSA paper's training")
        add_where(add)
        rate = {"type": number_in(0.0, math.inf, open_low=True), "default": 1e-3}
        add("--coefficient-learning-rate", **rate, help="the peak for filter coefficients")
        add("--max-length", type=at_least(8), default=128, help="tokens; longer texts are cut")
        vocabulary = f"of the small model without --preset [{self.small['vocabulary']}]"
        add("--vocabulary", type=at_least(1), help=vocabulary)

    def refuse(self, options: argparse.Namespace) -> None:
        if options.preset is not None:
            refuse_beside_preset(options, tuple(self.small))

    def defaults(self, options: argparse.Namespace) -> dict[str, Any]:
        return self.small if options.preset is None else {}

    def finish(self, options: argparse.Namespace) -> None:
        if options.preset is None:
            check_heads(options)

    def folder(self, options: argparse.Namespace) -> str:
        return f"{options.task}-{Path(options.preset or 'small').name}"

    def attention_defaults(self, options: argparse.Namespace) -> dict[str, Settings]:
        return {"gfsa": {"order": 3}}

    def load(self, options: argparse.Namespace) -> Any:
        refuse_missing(self.needed)
        problem = super().load(options)
        for attention in options.attention:  # what cannot be converted fails before any training
            self.model.build(self.trial(problem, attention, options))
        return problem
