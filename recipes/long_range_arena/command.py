"""`python -m recipes.long_range_arena`: makes or reads a task's data, trains, reports.

Keras is imported only after the backend is chosen; whatever can be checked without it comes
first, so that a wrong option fails at once.
"""

import argparse
from pathlib import Path
from typing import Any

from recipes.common.command import choose_backend, run_command, writable_folder
from recipes.common.devices import check_devices
from recipes.common.experiment import (
    check_filters,
    check_installed,
    check_settings,
    keras_configured,
)
from recipes.common.filters import FILTER_OPTIONS
from recipes.long_range_arena.arguments import filters, parse
from recipes.long_range_arena.data import load
from recipes.long_range_arena.ragged import Problem, majority_level


def main(arguments: list[str] | None = None) -> int:
    """Runs the recipe; returns its exit code: 0, or 2 with one line on standard error."""
    return run_command(compare, arguments)


def compare(arguments: list[str] | None) -> None:
    """Trains all attentions with all seeds and writes everything to `--output`."""
    options = parse(arguments)
    check_installed(saved_model=False, tensorboard=options.tensorboard)
    choose_backend(options.backend)
    check_filters(options.attention, filters(options))
    check_devices(options)
    problem = load(options)
    output = options.output
    writable_folder(output)
    settings = _settings(options, problem)
    check_settings(output, settings, options.overwrite)
    with keras_configured(options.precision):
        _train_and_report(output, problem, settings, options)


def _train_and_report(
    output: Path, problem: Problem, settings: dict[str, Any], options: argparse.Namespace
) -> None:
    from recipes.common import report
    from recipes.common.plot import plot
    from recipes.common.runs import train_run
    from recipes.long_range_arena.train import best_model, epochs, prepare, training_batches

    batches = training_batches(problem, options)
    options.epochs = epochs(batches, options)
    options.patience = min(options.patience, options.epochs)
    levels = {name: majority_level(problem.splits[name].labels) for name in ("validation", "test")}
    facts = {**_facts(problem), "padding_in_batches": batches.padding_share(), "majority": levels}
    print(_told(facts), flush=True)
    runs = [
        train_run(
            attention,
            seed,
            output,
            lambda attention=attention, seed=seed: prepare(problem, attention, seed, options),
            options,
        )
        for seed in options.seeds
        for attention in options.attention
    ]
    results = report.write_results(output, facts, settings, runs, packages=_packages(options))
    title = f"{problem.task}, {options.preset} ({results['backend']})"
    plot(output / "results.png", title, runs)
    report.write_model(output, best_model(runs, problem, options), saved_model=False)
    print(report.format_table(results, f"{problem.task}, {options.preset},", _notes(results)))
    print(f"written to {output}")


def _facts(problem: Problem) -> dict[str, Any]:
    return {
        "recipe": "long_range_arena",
        "task": problem.task,
        "classes": problem.classes,
        "examples": {name: len(split) for name, split in problem.splits.items()},
        "length": {
            "longest": problem.length,
            "mean": float(problem.train.lengths.mean()),
        },
    }


def _told(facts: dict[str, Any]) -> str:
    counts = ", ".join(f"{count:,} {name}" for name, count in facts["examples"].items())
    length = facts["length"]
    return (
        f"{facts['task']}: {counts} examples of {length['mean']:.0f} tokens on average, "
        f"{length['longest']} at most; {facts['padding_in_batches']:.0%} of what is computed is "
        "padding"
    )


def _notes(results: dict[str, Any]) -> list[str]:
    """What the numbers are to be held against: answers that look at no input."""
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
    return notes


def _packages(options: argparse.Namespace) -> tuple[str, ...]:
    return ("tensorflow-datasets",) if options.task in ("text", "image") else ()


def _settings(options: argparse.Namespace, problem: Problem) -> dict[str, Any]:
    """All that the numbers of one run depend on, whichever runs are asked for."""
    import keras

    of_the_command = ("attention", "seeds", "output", "overwrite", "verbose")
    of_the_files = ("data_dir", "cache_dir", "tensorboard", "backend")
    apart = {*of_the_command, *FILTER_OPTIONS, *of_the_files, "patience"}
    finite = options.patience if options.patience != float("inf") else None
    return {
        **{name: value for name, value in vars(options).items() if name not in apart},
        "patience": finite,
        "backend": keras.backend.backend(),
        "data": problem.digest(),
        "filters": {name: filters(options)[name] for name in ("gfsa", "agf")},
    }
