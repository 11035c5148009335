"""What a finished comparison leaves behind: the table, `results.json`, the best model."""

import argparse
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import keras

from recipes.common.files import atomically, remove, write_json
from recipes.time_series.data import Problem
from recipes.time_series.train import Run, best_model, best_run, table


def write_results(
    output: Path, problem: Problem, settings: dict[str, Any], runs: list[Run]
) -> dict[str, Any]:
    """Writes `results.json` and returns its content."""
    best = best_run(runs)
    results = {
        "recipe": "time_series",
        "dataset": problem.name,
        "classes": problem.classes,
        "series": {"train": len(problem.train), "test": len(problem.test)},
        "length": problem.length,
        "channels": problem.channels,
        "settings": settings,
        "backend": keras.backend.backend(),
        "versions": _versions(),
        "table": table(runs),
        "runs": [run.summary() for run in runs],
        "best_model": {
            "attention": best.attention,
            "seed": best.seed,
            "epoch": best.state.best_epoch,
            "chosen_by": "validation accuracy, ties by validation cross-entropy",
        },
    }
    write_json(output / "results.json", results)
    return results


def write_best_model(
    output: Path, problem: Problem, runs: list[Run], options: argparse.Namespace
) -> None:
    """Writes the best model as `model.keras` and, unless skipped, as `saved_model/1`."""
    model = best_model(runs, problem, options)
    with atomically(output / "model.keras") as writing:
        model.save(writing)
    if not options.skip_saved_model:
        from keras_graphattn.export import export_saved_model

        writing, folder = output / ".writing-saved_model", output / "saved_model"
        remove(writing)
        export_saved_model(model, writing, version=1)
        remove(folder)
        os.replace(writing, folder)


def format_table(results: dict[str, Any]) -> str:
    """The results table, for the screen."""
    rows = [("attention", "test accuracy", "at best test epoch", "seeds", "parameters")]
    for row in results["table"]:
        rows.append(
            (
                row["attention"],
                _accuracy(row, "test_accuracy"),
                _accuracy(row, "best_test_epoch_accuracy"),
                str(row["seeds"]),
                f"{row['parameters']:,}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(
        [
            f"{results['dataset']} on {results['backend']}",
            *lines,
            "test accuracy: at the epoch chosen on validation data; mean and standard deviation "
            "over seeds.",
            "at best test epoch: the best epoch on the test data itself, as the paper reports.",
        ]
    )


def _accuracy(row: dict[str, Any], name: str) -> str:
    spread = row[f"{name}_standard_deviation"]
    return f"{row[f'{name}_mean']:.4f}" + ("" if spread is None else f" ± {spread:.4f}")


def _versions() -> dict[str, str]:
    packages = ["keras", keras.backend.backend(), "aeon", "numpy"]
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "unknown"
    import keras_graphattn

    return {"keras_graphattn": keras_graphattn.__version__, **found}
