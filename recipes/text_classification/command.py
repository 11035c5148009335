"""`python -m recipes.text_classification`: reads a task of GLUE, fine-tunes, reports."""

import argparse
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.common import comparison
from recipes.common.chance import Chance, of_accuracy, of_correlation, refuse_one_class
from recipes.common.files import folder_atomically
from recipes.common.notes import absent_note, settings_note
from recipes.text_classification import arguments

if TYPE_CHECKING:
    import keras

    from recipes.common.resume import Criterion
    from recipes.common.runs import Run, Training
    from recipes.text_classification.data import Problem

PAPER = "arXiv 2312.04234"
REPORTED = ("softmax", "gfsa")


def main(given: list[str] | None = None) -> int:
    """Runs the recipe; returns its exit code: 0, or 2 with one line on standard error."""
    return comparison.run(TextClassification(), given)


class TextClassification(comparison.Recipe):
    """Softmax, GFSA and p-Laplacian attention on a task of GLUE."""

    attentions = arguments.ATTENTIONS
    packages = ("keras-hub", "scikit-learn", "scipy")

    def parse(self, given: list[str] | None) -> argparse.Namespace:
        return arguments.parse(given)

    def filters(self, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
        return arguments.filters(options)

    def load(self, options: argparse.Namespace) -> "Problem":
        arguments.check_packages()
        from recipes.text_classification.data import load
        from recipes.text_classification.model import build
        from recipes.text_classification.train import validation_split

        problem = load(options)
        if problem.task.classes:
            refuse_one_class(problem.train.labels, problem.task.classes, f"--task {problem.name}")
        validation_split(problem, options.validation_fraction, seed=0)
        for attention in options.attention:  # what cannot be converted fails before any training
            build(problem, attention, options)
        return problem

    def criterion(self, problem: "Problem") -> "Criterion":
        from recipes.text_classification.metrics import criterion

        return criterion(problem.task)

    def chance(self, problem: "Problem") -> Chance | None:
        metric, train = problem.task.metrics[0], problem.train.labels
        if metric == "accuracy":
            return of_accuracy(validation=train, training=train)
        return None if metric == "f1" else of_correlation("validation", "training")

    def facts(self, problem: "Problem", options: argparse.Namespace) -> dict[str, Any]:
        from recipes.common.buckets import Buckets
        from recipes.text_classification.train import examples_per_split, padded_lengths

        lengths = padded_lengths(problem)
        padding = Buckets(problem.train, lengths, options.batch_size).padding_share()
        facts = {
            "recipe": "text_classification",
            "task": problem.name,
            "classes": list(problem.task.classes),
            "examples": examples_per_split(problem),
            "length": {
                "longest": problem.length,
                "mean": float(problem.train.lengths.mean()),
                "padded_to": lengths,
            },
            "padding_in_batches": padding,
        }
        if options.published:
            facts["published"] = {"departures": arguments.departures(options)}
        print(_told(facts), flush=True)
        return facts

    def prepare(
        self, problem: "Problem", attention: str, seed: int, options: argparse.Namespace
    ) -> "Training":
        from recipes.text_classification.train import prepare

        return prepare(problem, attention, seed, options)

    def title(self, problem: "Problem", options: argparse.Namespace) -> str:
        return f"{problem.name} ({Path(options.preset).name if options.preset else 'from scratch'})"

    def best_model(
        self, runs: "list[Run]", problem: "Problem", options: argparse.Namespace
    ) -> "keras.Model":
        from recipes.text_classification.train import best_model

        return best_model(runs, problem, options)

    def write_model(self, output: Path, model: Any, options: argparse.Namespace) -> None:
        from recipes.common import report
        from recipes.text_classification.model import served

        saved_model = comparison.writes_saved_model(options)
        report.write_model(output, model, saved_model=saved_model, served=served(model, options))
        with folder_atomically(output / "preset") as writing:
            model.save_to_preset(str(writing))

    def notes(self, results: dict[str, Any], options: argparse.Namespace) -> list[str]:
        """The metrics that are not in the table, and what the settings are to be held against."""
        from recipes.common.coefficients import coefficient_notes

        notes = []
        runs, told = results["runs"], set(results["table"][0])
        others = [key for key in runs[0] if key.startswith("test_") and f"{key}_mean" not in told]
        for row in results["table"]:
            own = [run for run in runs if run["attention"] == row["attention"]]
            means = (f"{key} {statistics.fmean(run[key] for run in own):.4f}" for key in others)
            if others:
                notes.append(f"{row['attention']}: {', '.join(means).replace('_', ' ')}")
        notes += coefficient_notes(results)
        if options.published:
            notes.append(settings_note(PAPER, results["published"]["departures"]))
            notes += absent_note(PAPER, REPORTED, [row["attention"] for row in results["table"]])
            if "gfsa" in results["settings"]["filters"]:
                order = options.order or 3
                notes.append(f"{PAPER} chooses K from 2 to 10 for each task; here {order}.")
            if options.preset not in arguments.PUBLISHED_PRESETS:
                notes.append(f"the model is none of {PAPER}, which has BERT, RoBERTa, ALBERT base.")
        return notes


def _told(facts: dict[str, Any]) -> str:
    counts = ", ".join(f"{count:,} {name}" for name, count in facts["examples"].items())
    length = facts["length"]
    padded = ", ".join(map(str, length["padded_to"]))
    return (
        f"{facts['task']}: {counts} examples of {length['mean']:.0f} tokens on average, padded to "
        f"{padded}; {facts['padding_in_batches']:.0%} of what is computed is padding"
    )
