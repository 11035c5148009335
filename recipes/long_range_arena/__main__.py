"""`python -m recipes.long_range_arena`: its options, the published settings, what it reports.

Does not import Keras itself.

AGF's K, gamma, a, b and the learning rate of each task are those of the paper (arXiv 2505.08516).
The batch sizes and numbers of steps are those of the code that its authors released. All else is
that of the public comparison that its models come from (Skyformer, arXiv 2111.00035): 2 layers, 2
heads of 32, feed-forward 128, dropout 0.1, Adam with a warm-up and a linear decay.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from recipes.common.attentions import (
    ABLATIONS,
    MASKED_KERNEL,
    MULTIPLIER,
    RATE,
    PublishedFilter,
    Settings,
    label,
)
from recipes.common.command.effects import Effect, Except
from recipes.common.command.options import CACHE, REMEDIES, deviations
from recipes.common.command.parsing import UsageError, at_least, run_program
from recipes.common.data.ragged import Problem, majority_level
from recipes.common.output.notes import absent_note, data_line, settings_note
from recipes.common.recipe import Recipe

AGF = "arXiv 2505.08516"
PAPERS = {
    "paper": f"{AGF} (filters and rate), its released code (batches and steps) and arXiv "
    "2111.00035 (all else)",
    "released": f"{AGF} (filters), its released code (rate, batches and steps) and arXiv "
    "2111.00035 (all else)",
}
REPORTED = ("softmax", "linear", "agf")
BLOCKWISE_FROM = 513  # tokens from which GFSA forms its matrix in blocks of rows
MODEL = {"layers": 2, "d_model": 64, "heads": 2, "key_dim": 32, "feed_forward": 128, "dropout": 0.1}


class Task(NamedTuple):
    """One task's published settings."""

    filter: PublishedFilter
    learning_rate: float
    batch_size: int
    steps: int
    warm_up: int  # steps
    train_examples: int | None  # of data made here; None stands for all that there is
    evaluation_examples: int | None
    max_length: int  # tokens; longer texts are cut
    source: str  # "made", "tfds" or "files"


TASKS = {
    "listops": Task(
        PublishedFilter(5, 0.1, 1.5, 1), 1e-3, 32, 5000, 1000, 96_000, 2000, 2000, "made"
    ),
    "text": Task(PublishedFilter(5, 0.001, 1, 1), 5e-5, 32, 20_000, 80, None, None, 4000, "tfds"),
    "retrieval": Task(
        PublishedFilter(5, 0.1, 1, 1), 5e-4, 32, 30_000, 800, None, None, 4000, "files"
    ),
    "image": Task(
        PublishedFilter(7, 0.01, 2, -1), 1e-3, 256, 35_000, 175, None, None, 1024, "tfds"
    ),
    "pathfinder": Task(
        PublishedFilter(3, 1e-4, 1.5, -1), 1e-4, 256, 62_400, 312, 160_000, 20_000, 1024, "made"
    ),
}
EPOCHS = 20  # parts of a published training; the model is evaluated after each
RELEASED_RATE = 1e-4  # of all tasks, in the released code
RELEASED_LENGTH = 1024  # tokens of a text there

# Small enough for two cores and a few minutes; the models are those of the paper.
SMOKE: dict[str, dict[str, Any]] = {
    "listops": {"train_examples": 4000, "evaluation_examples": 1000, "max_length": 200},
    "text": {"train_examples": 2000, "evaluation_examples": 500, "max_length": 512},
    "retrieval": {"train_examples": 1000, "evaluation_examples": 250, "max_length": 512},
    "image": {"train_examples": 2000, "evaluation_examples": 500, "max_length": 1024},
    "pathfinder": {"train_examples": 2000, "evaluation_examples": 500, "max_length": 256},
}
SMOKE_TRAINING = {"epochs": 3, "steps_per_epoch": None, "batch_size": 32}
SMOKE_TRAINING |= {"warm_up": 50, "learning_rate": 1e-3}


def preset(task: str, name: str) -> dict[str, Any]:
    """The options that `--preset` selects."""
    published = TASKS[task]._asdict()
    steps = published.pop("steps") // EPOCHS
    del published["filter"], published["source"]
    own: dict[str, Any] = {}
    if name == "smoke":
        own = {**SMOKE_TRAINING, **SMOKE[task]}
    elif name == "released":
        own["learning_rate"] = RELEASED_RATE
        if task == "text":
            own["max_length"] = RELEASED_LENGTH
    return {**MODEL, "epochs": EPOCHS, "steps_per_epoch": steps, **published, **own}


class LongRangeArena(Recipe):
    """Attention layers on a task of the arena."""

    name = "long_range_arena"
    description = (
        "Trains and compares attention layers on a task of the Long Range Arena; writes a table, "
        "curves and the best model."
    )
    attentions = ("softmax", "linear", "masked_kernel", "gfsa", "agf", *ABLATIONS, *REMEDIES)
    by_default = ("softmax", "agf")
    results = "<task>-<preset>"
    training = dict.fromkeys(("epochs", "patience", "batch_size", "learning_rate", "warm_up"))
    sizes = dict.fromkeys(MODEL)
    hints = {
        "epochs": f"3; {EPOCHS} with the other presets",
        "patience": "all",
        RATE: f"{MULTIPLIER:g}; 1 with --preset paper and released",
    }
    saved_model = False
    effects = (
        Effect("data_seed", task=Except("retrieval")),
        Effect("max_length", task=Except("image", "pathfinder")),  # whose sequences have one length
    )
    data_files = (
        "the folder of tensorflow-datasets; for --task retrieval, the folder of its .tsv files"
    )

    def add_options(self, add: Callable[..., Any]) -> None:
        add("--task", choices=tuple(TASKS), default="listops", help="one of the arena's five")
        add(
            "--preset",
            choices=("smoke", "paper", "released"),
            default="smoke",
            help="size of data and training; those of AGF's paper, or of its released code",
        )
        add(
            "--steps-per-epoch",
            type=at_least(2),
            help="batches of an epoch (default: all of the data; with the other presets, a "
            f"{EPOCHS}th of the published steps)",
        )
        add("--data-dir", type=Path, help=self.data_files)
        add("--data-seed", type=at_least(0), default=0, help="seed of data that is made or divided")
        add("--cache-dir", type=Path, default=CACHE, help="where data that is made is kept")
        add("--train-examples", type=at_least(2), help="at most")
        evaluation = "at most, for validation and for test"
        add("--evaluation-examples", type=at_least(2), help=evaluation)
        add("--max-length", type=at_least(8), help="tokens of the longest sequence")

    def refuse(self, options: argparse.Namespace) -> None:
        source = TASKS[options.task].source
        if options.data_dir is not None and source == "made":
            raise UsageError(f"--data-dir: the data of --task {options.task} is made, not read")
        if options.data_dir is None and source == "files":
            raise UsageError(
                f"--task {options.task} needs --data-dir with the AAN files of the published "
                "arena, *.train.tsv, *.eval.tsv and *.test.tsv"
            )

    def defaults(self, options: argparse.Namespace) -> dict[str, Any]:
        return preset(options.task, options.preset)

    def finish(self, options: argparse.Namespace) -> None:
        self.packages = ("tensorflow-datasets",) if options.task in ("text", "image") else ()

    def attention_defaults(self, options: argparse.Namespace) -> dict[str, Settings]:
        defaults = TASKS[options.task].filter.defaults(one_rate=options.preset != "smoke")
        kernel = {**MASKED_KERNEL, RATE: defaults["gfsa"][RATE]}
        return {**defaults, "masked_kernel": kernel}

    def settings(self, options: argparse.Namespace) -> dict[str, Settings]:
        settings = super().settings(options)
        if options.max_length >= BLOCKWISE_FROM:
            settings["gfsa"]["attention_path"] = "blockwise"
        return settings

    def complete(self, problem: Problem, options: argparse.Namespace) -> argparse.Namespace:
        options.patience = min(options.patience, options.epochs)
        return options

    def deviations(self, options: argparse.Namespace) -> list[str]:
        published = preset(options.task, options.preset).items()
        return deviations(options, {name: value for name, value in published if value is not None})

    def facts(self, problem: Problem, options: argparse.Namespace) -> dict[str, Any]:
        batches = self.model.training_batches(problem, options)
        splits = problem.splits
        facts = {
            "task": problem.task,
            "classes": problem.classes,
            "examples": {name: len(split) for name, split in splits.items()},
            "length": {"longest": problem.length, "mean": float(problem.train.lengths.mean())},
            "padding_in_batches": batches.padding_share(),
            "majority": {
                name: majority_level(splits[name].labels) for name in ("validation", "test")
            },
        }
        if options.preset != "smoke":
            facts["published"] = {"departures": self.deviations(options)}
        print(data_line(facts, f"{problem.length} at most"), flush=True)
        return facts

    def title(self, problem: Problem, options: argparse.Namespace) -> str:
        return f"{problem.task} ({options.preset})"

    def notes(self, results: dict[str, Any], options: argparse.Namespace) -> list[str]:
        """The notes under the table, with the levels of constant answers."""
        best, *coefficients = super().notes(results, options)
        level = results["majority"]["test"]
        notes = [
            best,
            f"without looking at the input: test accuracy {level['accuracy']:.4f} (most frequent "
            f"class), cross-entropy {level['cross_entropy']:.4f} (entropy of the classes).",
        ]
        for run in results["runs"]:
            below = run["test_cross_entropy"] < level["cross_entropy"]
            notes.append(
                f"{label(run['attention'])}, seed {run['seed']}: test cross-entropy "
                f"{run['test_cross_entropy']:.4f}, {'below' if below else 'NOT below'} that"
            )
        if options.preset != "smoke":
            notes.append(settings_note(PAPERS[options.preset], results["published"]["departures"]))
            notes += absent_note(AGF, REPORTED, results)
        return notes + coefficients


RECIPE = LongRangeArena()

if __name__ == "__main__":
    run_program(RECIPE.main)
