"""The smoothing report as text, and as files that are whole or not there."""

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = ("depth", "path", "kind", "place", "measure", "head", "index", "value")
HEADINGS = (
    *("depth", "before", "after", "block", "|block|", "DC", "rank", "entropy", "sink"),
    *("high A", "high H", "attention"),
)
SHOWN = (
    *("before_cosine", "after_cosine", "block_cosine", "block_absolute_cosine"),
    *("block_dc_share", "block_effective_rank", "entropy", "sink_share"),
    *("attention_high_gain", "operator_high_gain"),
)
NOTES = (
    "before, after: mean cosine of the tokens before the attention and after it",
    "block, |block|: mean cosine and mean absolute cosine after the block of the attention",
    "DC, rank: share of the constant component and effective rank after the block",
    "entropy, sink: entropy of A in nats, share of the most attended token",
    "high A, high H: gain at frequencies above 1/4, of attention and of its filter",
)


def number(value: float) -> str:
    """A number for a table; a dash for NaN."""
    return "-" if math.isnan(value) else f"{value:.3f}"


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, each column as wide as its widest entry; the last is left-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join([*(x.rjust(w) for x, w in zip(line[:-1], widths, strict=False)), line[-1]])
        for line in lines
    ]


def table(report: Any) -> str:
    """The figures of each layer, means over heads, and what could not be measured."""
    lines = [HEADINGS]
    for depth, layer in enumerate(report.layers):
        row = layer.summary()
        lines.append((str(depth), *(number(row[name]) for name in SHOWN), layer.kind))
    title = (
        f"Smoothing of '{report.model}': {report.sequences} sequences, the operators and singular "
        f"values of {report.sampled}"
    )
    missing = {layer.path: layer.reason for layer in report.layers if layer.heads is None}
    missing |= report.not_measured
    broken = {layer.path: layer.not_finite for layer in report.layers if layer.not_finite}
    return "\n".join(
        [
            title,
            *aligned(lines),
            *NOTES,
            *(f"not measured at '{p}': {r}" for p, r in missing.items()),
            *(f"left out at '{p}': tokens not finite, sequences: {n}" for p, n in broken.items()),
        ]
    )


def comparison_table(first: Any, second: Any) -> str:
    """Similarity after each block, gain and rank of two reports side by side."""
    names = {
        "block_cosine": "cos block",
        "block_effective_rank": "rank",
        "operator_high_gain": "high H",
    }
    lines = [
        ("depth", *(f"{name} {n}" for name in names.values() for n in (1, 2)), "attention 1, 2")
    ]
    for depth in range(max(len(first.layers), len(second.layers))):
        both = [x.layers[depth] if depth < len(x.layers) else None for x in (first, second)]
        rows = [{} if layer is None else layer.summary() for layer in both]
        cells = [number(row.get(name, float("nan"))) for name in names for row in rows]
        kinds = ", ".join("-" if layer is None else layer.kind for layer in both)
        lines.append((str(depth), *cells, kinds))
    return "\n".join([f"1: '{first.model}', 2: '{second.model}'", *aligned(lines)])


def plain(value: Any) -> Any:
    """A value as JSON has it: arrays as lists, NaN as `None`, no maps."""
    if is_dataclass(value):
        names = [field.name for field in fields(value) if not field.name.endswith("_map")]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """Writes rows to a CSV file with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write(path, text.getvalue())


def write_json(path: Path, value: Any) -> None:
    """Writes a value to a JSON file."""
    write(path, json.dumps(plain(value), indent=1, allow_nan=False) + "\n")


def write(path: Path, text: str) -> None:
    """Writes a text file under another name, then gives it its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writing = path.with_name(f".writing-{os.getpid()}-{path.name}")
    try:
        with writing.open("w", encoding="utf-8") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(writing, path)
    finally:
        writing.unlink(missing_ok=True)
