"""`python -m recipes.time_series`: checks what was asked for, trains, reports.

Keras is imported only after the backend is chosen; whatever can be checked without it comes
first, so that a wrong option fails at once.
"""

import argparse
import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recipes.common.command import UsageError, choose_backend, run_command, writable_folder
from recipes.common.files import read_json, remove, write_json
from recipes.common.filters import FILTER_OPTIONS
from recipes.time_series.arguments import filters, parse
from recipes.time_series.data import Problem, load, validation_split

WRITTEN = (
    "settings.json",
    "runs",
    "histories",
    "tensorboard",
    "results.json",
    "results.png",
    "model.keras",
    "saved_model",
)


def main(arguments: list[str] | None = None) -> int:
    """Runs the recipe; returns its exit code: 0, or 2 with one line on standard error."""
    return run_command(compare, arguments)


def compare(arguments: list[str] | None) -> None:
    """Trains all attentions with all seeds and writes everything to `--output`."""
    options = parse(arguments)
    _check_installed(options)
    problem = load(options.dataset, options.data_dir)
    validation_split(problem.train.labels, options.validation_fraction, seed=0)
    choose_backend(options.backend)
    _check_filters(options)
    distribution = _distribution(options) if options.distribute else None
    output = options.output
    writable_folder(output)
    settings = _settings(options, problem)
    _check_settings(output, settings, options.overwrite)
    with _keras_configured(options.precision, distribution):
        _train_and_report(output, problem, settings, options)


def _train_and_report(
    output: Path, problem: Problem, settings: dict[str, Any], options: argparse.Namespace
) -> None:
    from recipes.time_series import report, train
    from recipes.time_series.plot import plot

    runs = [
        train.train_one(problem, attention, seed, options, output)
        for seed in options.seeds
        for attention in options.attention
    ]
    results = report.write_results(output, problem, settings, runs)
    plot(output / "results.png", f"{problem.name} ({results['backend']})", runs)
    report.write_best_model(output, problem, runs, options)
    print(report.format_table(results))
    print(f"written to {output}")


def _check_installed(options: argparse.Namespace) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("the plot needs matplotlib: pip install matplotlib")
    missing = importlib.util.find_spec("tensorflow") is None
    if missing and not options.skip_saved_model:
        raise UsageError(
            "a SavedModel is written by TensorFlow: pip install tensorflow, or give "
            "--skip-saved-model"
        )
    if options.tensorboard and (missing or importlib.util.find_spec("tensorboard") is None):
        raise UsageError("--tensorboard needs: pip install tensorflow tensorboard")


def _check_filters(options: argparse.Namespace) -> None:
    from keras_graphattn.ops.polynomials import check_basis

    if "agf" in options.attention:
        names = ("basis", "order", "alpha", "beta")
        settings = filters(options)["agf"]
        try:
            with warnings.catch_warnings(action="ignore"):  # the layer warns when it is made
                check_basis(**{name: settings[name] for name in names})
        except ValueError as error:
            raise UsageError(str(error)) from error


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


def _check_settings(output: Path, settings: dict[str, Any], overwrite: bool) -> None:
    """Refuses to mix runs of different settings in one folder."""
    if overwrite:
        for name in WRITTEN:
            remove(output / name)
    known = read_json(output / "settings.json")
    if known is None:
        write_json(output / "settings.json", settings)
        return
    changed = [
        f"{name} (was {known.get(name)!r}, now {settings.get(name)!r})"
        for name in {**known, **settings}
        if known.get(name) != settings.get(name)
    ]
    if changed:
        raise UsageError(
            f"{output} holds runs of other settings: {', '.join(changed)}. Give another "
            "--output, or --overwrite to begin anew"
        )


@contextmanager
def _keras_configured(precision: str, distribution: Any) -> Iterator[None]:
    """Keras' precision and distribution as asked for; as they were afterwards."""
    import keras

    policy = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy(precision)
        if distribution is not None:
            keras.distribution.set_distribution(distribution)
        yield
    finally:
        keras.config.set_dtype_policy(policy)
        if distribution is not None:
            keras.distribution.set_distribution(None)


def _distribution(options: argparse.Namespace) -> Any:
    import keras

    if keras.backend.backend() != "jax":
        raise UsageError(
            "--distribute needs keras.distribution, which the backend "
            f"{keras.backend.backend()} lacks: use --backend jax"
        )
    devices = keras.distribution.list_devices()
    if options.batch_size % len(devices):
        raise UsageError(
            f"--batch-size {options.batch_size} cannot be shared out over {len(devices)} devices"
        )
    return keras.distribution.DataParallel(devices=devices)
