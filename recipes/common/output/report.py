"""What a finished comparison leaves behind: the table, `results.json`, the best model."""

import importlib.metadata
import platform
from pathlib import Path
from typing import Any

import keras

from recipes.common.attentions import label
from recipes.common.storage.files import atomically, folder_atomically, write_json
from recipes.common.training.runs import Run, best_run, table

CHOSEN = "the epoch chosen on validation data"


def write_results(
    output: Path,
    facts: dict[str, Any],
    settings: dict[str, Any],
    runs: list[Run],
    packages: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Writes `results.json` and returns its content.

    Args:
        output: Folder to write to.
        facts: What comes first: the recipe's name and what is to be said of its data.
        settings: What the runs were made with.
        runs: All runs.
        packages: Packages whose versions count, beside Keras, its backend and NumPy.
    """
    best = best_run(runs)
    first, second = (text.replace("_", " ") for text in best.criterion.order)
    told, tested = f"validation {first}, ties by validation {second}", CHOSEN
    if best.criterion.last_epoch:
        told, tested = f"its last epoch; among runs: {told}", "the last epoch"
    results = {
        **facts,
        "settings": settings,
        "backend": keras.backend.backend(),
        "versions": _versions(packages),
        "tested_at": tested,
        "table": table(runs),
        "runs": [run.summary() for run in runs],
        "best_model": {
            "attention": best.attention,
            "seed": best.seed,
            "epoch": best.state.best_epoch,
            "chosen_by": told,
        },
    }
    write_json(output / "results.json", results)
    return results


def write_model(
    output: Path, model: keras.Model, *, saved_model: bool, served: keras.Model | None = None
) -> None:
    """Writes `model.keras` and, where asked for, `saved_model/1`: `served`, else the same."""
    with atomically(output / "model.keras") as writing:
        model.save(writing)
    if saved_model:
        from keras_graphattn.export import export_saved_model

        with folder_atomically(output / "saved_model") as writing:
            export_saved_model(served or model, writing, version=1)


def format_table(results: dict[str, Any], title: str, notes: list[str]) -> str:
    """The results table, for the screen."""
    ends = "_mean"
    means = [key.removesuffix(ends) for key in results["table"][0] if key.endswith(ends)]
    rows = [("attention", *map(_heading, means), "seeds", "parameters")]
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
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(
        [
            f"{title} on {results['backend']}",
            *lines,
            f"{_heading(means[0])}: at {results['tested_at']}; mean and standard deviation over "
            "seeds.",
            *notes,
        ]
    )


def _heading(name: str) -> str:
    return "at best test epoch" if name.startswith("best_test") else name.replace("_", " ")


def _mean(row: dict[str, Any], name: str) -> str:
    spread = row[f"{name}_standard_deviation"]
    return f"{row[f'{name}_mean']:.4f}" + ("" if spread is None else f" ± {spread:.4f}")


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("keras", keras.backend.backend(), "numpy", *packages):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "unknown"
    import keras_graphattn

    return {"keras_graphattn": keras_graphattn.__version__, **found}
