"""The files and the table of a finished comparison: `results.json`, the best model."""

import importlib.metadata
import platform
from pathlib import Path
from typing import Any, Literal

import keras

import keras_graphattn
from recipes.common.attentions import label
from recipes.common.storage import atomically, write_json
from recipes.common.training.records import Run, best_run, table


def write_results(
    output: Path,
    facts: dict[str, Any],
    settings: dict[str, Any],
    runs: list[Run],
    packages: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Writes `results.json` and returns its content; `facts` come first.

    Where the facts have folds, the table is of folds.
    """
    best = best_run(runs)
    first, second = (text.replace("_", " ") for text in best.criterion.order)
    data = "validation" if best.is_validated else "training"
    chosen_by = f"{data} {first}, ties by {data} {second}"
    tested_at = "the epoch chosen on validation data"
    if best.criterion.last_epoch:
        chosen_by, tested_at = f"its last epoch; among runs: {chosen_by}", "the last epoch"
    results = {
        **facts,
        "settings": settings,
        "backend": keras.backend.backend(),
        "versions": _versions(packages),
        "tested_at": tested_at,
        "table": table(runs, facts.get("folds", {}).get("count")),
        "runs": [run.summary() for run in runs],
        "best_model": {
            "attention": best.attention,
            "seed": best.seed,
            "epoch": best.state.best_epoch,
            "chosen_by": chosen_by,
        },
    }
    write_json(output / "results.json", results)
    return results


def write_model(output: Path, model: keras.Model, served: keras.Model | Literal[False]) -> None:
    """Writes `model.keras` and, if the model can be served, `saved_model/1`."""
    with atomically(output / "model.keras") as writing:
        model.save(writing)
    if served:
        with atomically(output / "saved_model") as writing:
            keras_graphattn.export_saved_model(served, writing, version=1)


def format_table(results: dict[str, Any], title: str, notes: list[str]) -> str:
    """The results table, for the screen."""
    ends = "_mean"
    means = [key.removesuffix(ends) for key in results["table"][0] if key.endswith(ends)]
    headings = [
        "at best test epoch" if name.startswith("best_test") else name.replace("_", " ")
        for name in means
    ]
    rows = [("attention", *headings, "seeds", "parameters")]
    for row in results["table"]:
        values = (_mean(row, name) for name in means)
        rows.append((label(row["attention"]), *values, str(row["seeds"]), f"{row['parameters']:,}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    heading, *body = lines
    repeated = any(row.get("folds", row["seeds"]) < row["seeds"] for row in results["table"])
    over = "folds, each the mean of its trainings" if repeated else "seeds"
    tested = f"{headings[0]}: at {results['tested_at']}; mean and standard deviation over {over}."
    first = f"{title} on {results['backend']}"
    return "\n".join([first, heading, "-" * len(heading), *body, tested, *notes])


def _mean(row: dict[str, Any], name: str) -> str:
    spread = row[f"{name}_standard_deviation"]
    return f"{row[f'{name}_mean']:.4f}" + ("" if spread is None else f" ± {spread:.4f}")


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    versions = {"keras_graphattn": keras_graphattn.__version__}
    versions["python"] = platform.python_version()
    for package in ("keras", keras.backend.backend(), "numpy", *packages):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "unknown"
    return versions
