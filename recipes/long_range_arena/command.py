"""`python -m recipes.long_range_arena`: makes or reads a task's data, trains, reports."""

import argparse
from typing import TYPE_CHECKING, Any

from recipes.common import comparison
from recipes.common.chance import Chance, of_accuracy, refuse_one_class
from recipes.common.notes import absent_note, settings_note
from recipes.common.ragged import Problem, majority_level
from recipes.long_range_arena import arguments
from recipes.long_range_arena.data import load

if TYPE_CHECKING:
    import keras

    from recipes.common.runs import Run, Training

AGF = "arXiv 2505.08516"
PAPERS = f"{AGF} (filters and rate) and arXiv 2111.00035 (all else)"


def main(given: list[str] | None = None) -> int:
    """Runs the recipe; returns its exit code: 0, or 2 with one line on standard error."""
    return comparison.run(LongRangeArena(), given)


class LongRangeArena(comparison.Recipe):
    """Attention layers on a task of the arena."""

    attentions = arguments.ATTENTIONS

    def parse(self, given: list[str] | None) -> argparse.Namespace:
        options = arguments.parse(given)
        self.packages = ("tensorflow-datasets",) if options.task in ("text", "image") else ()
        return options

    def filters(self, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
        return arguments.filters(options)

    def load(self, options: argparse.Namespace) -> Problem:
        problem = load(options)
        refuse_one_class(problem.train.labels, problem.classes, f"--task {problem.task}")
        return problem

    def complete(self, problem: Problem, options: argparse.Namespace) -> argparse.Namespace:
        from recipes.long_range_arena.train import epochs, training_batches

        options.epochs = epochs(training_batches(problem, options), options)
        options.patience = min(options.patience, options.epochs)
        return options

    def chance(self, problem: Problem) -> Chance:
        labels = {name: split.labels for name, split in problem.splits.items()}
        return of_accuracy(**labels)

    def facts(self, problem: Problem, options: argparse.Namespace) -> dict[str, Any]:
        from recipes.long_range_arena.train import published_epochs, training_batches

        splits = problem.splits
        facts = {
            "recipe": "long_range_arena",
            "task": problem.task,
            "classes": problem.classes,
            "examples": {name: len(split) for name, split in splits.items()},
            "length": {"longest": problem.length, "mean": float(problem.train.lengths.mean())},
            "padding_in_batches": training_batches(problem, options).padding_share(),
            "majority": {
                name: majority_level(splits[name].labels) for name in ("validation", "test")
            },
        }
        if options.preset == "paper":
            epochs = published_epochs(training_batches(problem, options))
            facts["published"] = {"departures": arguments.departures(options, epochs)}
        print(_told(facts), flush=True)
        return facts

    def prepare(
        self, problem: Problem, attention: str, seed: int, options: argparse.Namespace
    ) -> "Training":
        from recipes.long_range_arena.train import prepare

        return prepare(problem, attention, seed, options)

    def title(self, problem: Problem, options: argparse.Namespace) -> str:
        return f"{problem.task} ({options.preset})"

    def best_model(
        self, runs: "list[Run]", problem: Problem, options: argparse.Namespace
    ) -> "keras.Model":
        from recipes.long_range_arena.train import best_model

        return best_model(runs, problem, options)

    def notes(self, results: dict[str, Any], options: argparse.Namespace) -> list[str]:
        """What the numbers are to be held against: answers that look at no input."""
        from recipes.common.coefficients import coefficient_notes

        level = results["majority"]["test"]
        notes = [
            "at best test epoch: the best epoch on the test data itself; nothing is chosen by it.",
            f"without looking at the input: test accuracy {level['accuracy']:.4f} (most frequent "
            f"class), cross-entropy {level['cross_entropy']:.4f} (entropy of the classes).",
        ]
        for run in results["runs"]:
            below = run["test_cross_entropy"] < level["cross_entropy"]
            notes.append(
                f"{run['attention']}, seed {run['seed']}: test cross-entropy "
                f"{run['test_cross_entropy']:.4f}, {'below' if below else 'NOT below'} that"
            )
        if options.preset == "paper":
            notes.append(settings_note(PAPERS, results["published"]["departures"]))
            attentions = [row["attention"] for row in results["table"]]
            notes += absent_note(AGF, ("softmax", "linear", "agf"), attentions)
        return notes + coefficient_notes(results)


def _told(facts: dict[str, Any]) -> str:
    counts = ", ".join(f"{count:,} {name}" for name, count in facts["examples"].items())
    length = facts["length"]
    return (
        f"{facts['task']}: {counts} examples of {length['mean']:.0f} tokens on average, "
        f"{length['longest']} at most; {facts['padding_in_batches']:.0%} of what is computed is "
        "padding"
    )
