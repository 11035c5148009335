"""Sentences under a table: differences, coefficients, and deviations from a paper."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from recipes.common.attentions import DISTANCE, POWER, compared, label
from recipes.common.command.parsing import listed


def settings_note(paper: str, deviations: Sequence[str]) -> str:
    """Says that the settings are those of a paper, and names the exceptions."""
    changed = f"except for {', '.join(deviations)}" if deviations else "without changes"
    return f"settings: those of {paper}, {changed}; what is left open there is ours."


def order_note(paper: str, chosen: str, order: int | list[int]) -> str:
    """Says which K a paper chooses, and which one or ones the runs have."""
    orders = order if isinstance(order, list) else [order]
    return f"{paper} chooses K {chosen}; here {listed([str(one) for one in orders])}."


def absent_note(paper: str, reported: Iterable[str], results: dict[str, Any]) -> list[str]:
    """Names the attentions in a table that a paper does not have; empty if it has all."""
    attentions = dict.fromkeys(row["attention"] for row in results["table"])
    absent = [label(name) for name in attentions if compared(name)[0] not in set(reported)]
    return [f"not in {paper}: {', '.join(absent)}."] if absent else []


def coefficient_notes(results: dict[str, Any]) -> list[str]:
    """One line under the table for each attention with coefficients: means over its seeds."""
    notes = []
    for row in results["table"]:
        runs = [run for run in results["runs"] if run["attention"] == row["attention"]]
        runs = [run for run in runs if DISTANCE in run]
        if not runs:
            continue
        distance = statistics.fmean(run[DISTANCE] for run in runs)
        line = f"{label(row['attention'])}: coefficients {distance:.3f} from their start on average"
        if POWER in runs[0]:
            line += f"; mean |w_K| {statistics.fmean(run[POWER] for run in runs):.3f}"
        notes.append(f"{line}.")
    return notes


def other_measures(results: dict[str, Any]) -> list[str]:
    """One line for each attention with the test measures that have no column: means over seeds."""
    columns = set(results["table"][0])
    tests = [key for key in results["runs"][0] if key.startswith("test_")]
    others = [key for key in tests if f"{key}_mean" not in columns]
    notes = []
    for row in results["table"] if others else []:
        own = [run for run in results["runs"] if run["attention"] == row["attention"]]
        means = (f"{key} {statistics.fmean(run[key] for run in own):.4f}" for key in others)
        notes.append(f"{label(row['attention'])}: {', '.join(means).replace('_', ' ')}")
    return notes


def paired_difference(
    runs: Sequence[dict[str, Any]], metric: str, attention: str, other: str
) -> str | None:
    """By how much one attention is above another, over the seeds that both have.

    Runs with one seed share their data and the order of it. Their difference varies less than
    either. The result has the mean difference, its standard error, and the number of seeds in which
    the attention is above the other. It is `None` if no seed has both. `runs` are those of
    `results.json`.
    """
    first, second = (
        {run["seed"]: run[metric] for run in runs if run["attention"] == name}
        for name in (attention, other)
    )
    differences = [first[seed] - second[seed] for seed in first.keys() & second.keys()]
    if not differences:
        return None
    count, spread = len(differences), ""
    if count > 1:
        spread = f" ± {statistics.stdev(differences) / math.sqrt(count):.4f}"
    above = sum(one > 0 for one in differences)
    return f"{statistics.fmean(differences):+.4f}{spread}, above in {above} of {count}"


def data_line(facts: dict[str, Any], lengths: str) -> str:
    """One line on the data, before the training: its size, its lengths, its share of padding."""
    counts = ", ".join(f"{count:,} {name}" for name, count in facts["examples"].items())
    return (
        f"{facts['task']}: {counts} examples of {facts['length']['mean']:.0f} tokens on average, "
        f"{lengths}; {facts['padding_in_batches']:.0%} of what is computed is padding"
    )
