"""`python -m recipes.time_series`: checks what was asked for, trains, reports.

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
from recipes.time_series.arguments import departures, filters, parse
from recipes.time_series.data import Problem, load, validation_split


def main(arguments: list[str] | None = None) -> int:
    """Runs the recipe; returns its exit code: 0, or 2 with one line on standard error."""
    return run_command(compare, arguments)


def compare(arguments: list[str] | None) -> None:
    """Trains all attentions with all seeds and writes everything to `--output`."""
    options = parse(arguments)
    check_installed(saved_model=not options.skip_saved_model, tensorboard=options.tensorboard)
    problem = load(options.dataset, options.data_dir)
    validation_split(problem.train.labels, options.validation_fraction, seed=0)
    choose_backend(options.backend)
    check_filters(options.attention, filters(options))
    check_devices(options)
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
    from recipes.time_series.train import best_model, prepare

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
    facts = {
        "recipe": "time_series",
        "dataset": problem.name,
        "classes": problem.classes,
        "series": {"train": len(problem.train), "test": len(problem.test)},
        "length": problem.length,
        "channels": problem.channels,
    }
    notes = ["at best test epoch: the best epoch on the test data itself, as the paper reports."]
    if options.published:
        changed = departures(options)
        facts["published"] = {"departures": changed}
        said = f"but for {', '.join(changed)}" if changed else "without departures"
        notes.append(f"the published settings, {said}.")
    results = report.write_results(output, facts, settings, runs, packages=("aeon",))
    plot(output / "results.png", f"{problem.name} ({results['backend']})", runs)
    report.write_model(
        output, best_model(runs, problem, options), saved_model=not options.skip_saved_model
    )
    print(report.format_table(results, problem.name, notes))
    print(f"written to {output}")


def _settings(options: argparse.Namespace, problem: Problem) -> dict[str, Any]:
    """All that the numbers of one run depend on, whichever runs are asked for."""
    import keras

    of_the_command = ("attention", "seeds", "output", "overwrite", "verbose")
    of_the_files = ("data_dir", "published", "tensorboard", "skip_saved_model", "backend")
    apart = {*of_the_command, *FILTER_OPTIONS, *of_the_files}
    return {
        **{name: value for name, value in vars(options).items() if name not in apart},
        "backend": keras.backend.backend(),
        "data": problem.digest(),
        "filters": {name: filters(options)[name] for name in ("gfsa", "agf")},
    }
