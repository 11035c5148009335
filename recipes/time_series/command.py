"""`python -m recipes.time_series`: checks what was asked for, trains, reports."""

import argparse
from typing import TYPE_CHECKING, Any

from recipes.common import comparison
from recipes.common.chance import Chance, of_accuracy, refuse_one_class
from recipes.common.notes import absent_note, settings_note
from recipes.time_series import arguments
from recipes.time_series.data import Problem, load, validation_split

if TYPE_CHECKING:
    import keras

    from recipes.common.runs import Run, Training

PAPER = "arXiv 2505.08516"
REPORTED = ("softmax", "linear", "agf")


def main(given: list[str] | None = None) -> int:
    """Runs the recipe; returns its exit code: 0, or 2 with one line on standard error."""
    return comparison.run(TimeSeries(), given)


class TimeSeries(comparison.Recipe):
    """Attention layers on a data set of the UEA archive."""

    attentions = arguments.ATTENTIONS
    packages = ("aeon",)

    def parse(self, given: list[str] | None) -> argparse.Namespace:
        return arguments.parse(given)

    def filters(self, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
        return arguments.filters(options)

    def load(self, options: argparse.Namespace) -> Problem:
        problem = load(options.dataset, options.data_dir)
        refuse_one_class(problem.train.labels, problem.classes, problem.name)
        validation_split(problem.train.labels, options.validation_fraction, seed=0)
        return problem

    def chance(self, problem: Problem) -> Chance:
        train = problem.train.labels
        return of_accuracy(validation=train, training=train, test=problem.test.labels)

    def facts(self, problem: Problem, options: argparse.Namespace) -> dict[str, Any]:
        facts = {
            "recipe": "time_series",
            "dataset": problem.name,
            "classes": problem.classes,
            "series": {"train": len(problem.train), "test": len(problem.test)},
            "length": problem.length,
            "channels": problem.channels,
        }
        if options.published:
            facts["published"] = {"departures": arguments.departures(options)}
        return facts

    def prepare(
        self, problem: Problem, attention: str, seed: int, options: argparse.Namespace
    ) -> "Training":
        from recipes.time_series.train import prepare

        return prepare(problem, attention, seed, options)

    def title(self, problem: Problem, options: argparse.Namespace) -> str:
        return problem.name

    def best_model(
        self, runs: "list[Run]", problem: Problem, options: argparse.Namespace
    ) -> "keras.Model":
        from recipes.time_series.train import best_model

        return best_model(runs, problem, options)

    def notes(self, results: dict[str, Any], options: argparse.Namespace) -> list[str]:
        from recipes.common.coefficients import coefficient_notes

        best = "at best test epoch: the best epoch on the test data; nothing is chosen by it."
        notes = coefficient_notes(results)
        if options.dataset not in arguments.PUBLISHED_AGF:
            return [best, *notes]
        notes = [f"{best} {PAPER} reports this figure for {options.dataset}.", *notes]
        if options.published:
            notes.append(settings_note(PAPER, results["published"]["departures"]))
        attentions = [row["attention"] for row in results["table"]]
        return notes + absent_note(PAPER, REPORTED, attentions)
