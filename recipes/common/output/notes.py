"""Sentences under a table: on coefficients, and on a paper, only on what it has. No Keras."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from recipes.common.attentions import label


def settings_note(paper: str, departures: Sequence[str]) -> str:
    """Says that the settings are a paper's, and which of them are not.

    Args:
        paper: The paper, such as `"arXiv 2505.08516"`.
        departures: The options that have other values than the published ones.
    """
    changed = f"except for {', '.join(departures)}" if departures else "without changes"
    return f"settings: those of {paper}, {changed}; what is left open there is ours."


def absent_note(paper: str, reported: Iterable[str], attentions: Iterable[str]) -> list[str]:
    """Names the attentions of a table that a paper does not have; nothing where it has all."""
    absent = [label(name) for name in dict.fromkeys(attentions) if name not in set(reported)]
    return [f"not in {paper}: {', '.join(absent)}."] if absent else []


def coefficient_notes(results: dict[str, Any]) -> list[str]:
    """One line under the table for each attention with coefficients: means over its seeds."""
    from recipes.common.training.coefficients import DISTANCE, POWER

    notes = []
    for row in results["table"]:
        runs = [run for run in results["runs"] if run["attention"] == row["attention"]]
        told = [run for run in runs if DISTANCE in run]
        if not told:
            continue
        distance = statistics.fmean(run[DISTANCE] for run in told)
        line = f"{label(row['attention'])}: coefficients {distance:.3f} from their start on average"
        if POWER in told[0]:
            line += f"; mean |w_K| {statistics.fmean(run[POWER] for run in told):.3f}"
        notes.append(f"{line}.")
    return notes


def data_told(facts: dict[str, Any], lengths: str) -> str:
    """One line on the data, before the training: how much of it, how long, how much padding.

    Args:
        facts: The recipe's facts, with `task`, `examples`, `length` and `padding_in_batches`.
        lengths: What is to be said of lengths, beside their mean.
    """
    counts = ", ".join(f"{count:,} {name}" for name, count in facts["examples"].items())
    return (
        f"{facts['task']}: {counts} examples of {facts['length']['mean']:.0f} tokens on average, "
        f"{lengths}; {facts['padding_in_batches']:.0%} of what is computed is padding"
    )
