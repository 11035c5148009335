"""The picture of a comparison: a metric over epochs, token similarity over layers."""

from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator, ScalarFormatter

from recipes.common.attentions import attention_of, label
from recipes.common.data.chance import Chance
from recipes.common.storage import atomically
from recipes.common.training.records import Run

BELOW = "softmax"  # drawn wider and first: what coincides with it stays visible
WIDTH, WIDTH_BELOW = 2.2, 5.0
MOST_LINES = 5  # of the seeds of an attention; more are drawn as a band
SHARES = ("accuracy", "f1")  # metrics from 0 to 1
LEGEND = "#555555"


def save(figure: plt.Figure, path: Path) -> None:
    """Writes a picture to the file `path`."""
    with atomically(path) as writing:
        figure.savefig(writing, dpi=130)
    plt.close(figure)


def draw(title: str, runs: list[Run], chance: Chance | None = None) -> plt.Figure:
    """Draws all runs: one colour for each attention, a thin line for each seed, a thick one for
    their mean, a dot at each chosen epoch. In place of more than five thin lines there is a band,
    one standard deviation above and below the mean.

    The first panel shows the validation data, or the training data where nothing was held out. The
    second panel shows the test if it was evaluated after every epoch, else the training. Where
    token similarity was measured, a third panel shows it over the layers. The level of chance is
    a dashed line.
    """
    metric = runs[0].criterion.name
    tested = f"test_{metric}" in runs[0].state.best
    measured = all(run.similarity for run in runs)
    panels = 3 if measured else 2
    figure, axes = plt.subplots(1, panels, figsize=(13 * panels / 3, 4.6), layout="constrained")
    other = "test" if tested else "training"
    validated = all(f"val_{metric}" in run.state.best for run in runs)
    first = "validation" if validated else "training"
    _draw_metric(axes[0], f"val_{metric}" if validated else metric, runs)
    _draw_metric(axes[1], f"test_{metric}" if tested else metric, runs)
    for panel, data in zip(axes, (first, other), strict=False):
        if metric in SHARES:
            panel.set_ylim(-0.02, 1.02)
        elif metric == "perplexity":
            panel.set_yscale("log")
            panel.yaxis.set_major_locator(MaxNLocator(nbins=7))
            panel.yaxis.set_major_formatter(ScalarFormatter())
            panel.yaxis.set_minor_locator(NullLocator())
        scale = " (log scale)" if panel.get_yscale() == "log" else ""
        panel.set(xlabel="epoch", ylabel=f"{data} {metric.replace('_', ' ')}{scale}")
        if chance is not None and data in chance.levels:
            panel.axhline(chance.levels[data], color="black", linestyle="--", linewidth=1)
    choose = "" if runs[0].criterion.last_epoch else ", which choose the epoch"
    axes[0].set_title(f"{first} data{choose}")
    axes[1].set_title(f"{other} data")
    if measured:
        _draw_curves(axes[2], runs, lambda run: run.similarity, first=0, marker=".")
        lowest = min(0.0, *(value for run in runs for value in run.similarity))
        axes[2].set(
            title="similarity of the tokens (test data)",
            xlabel="after block (0: before the first)",
            ylabel="mean cosine of pairs of tokens",
            ylim=(lowest - 0.02, 1.02),
        )
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    columns = {"ncols": 2 * panels, "frameon": False, "fontsize": 9}
    figure.legend(handles=_legend(runs, chance), loc="outside lower center", **columns)
    figure.suptitle(title)
    return figure


def _draw_metric(panel: plt.Axes, metric: str, runs: list[Run]) -> None:
    _draw_curves(panel, runs, lambda run: [row[metric] for row in run.state.history], first=1)
    for run in runs:
        panel.plot(
            run.state.best_epoch,
            run.state.best[metric],
            "o",
            color=attention_of(run.attention).colour,
            markeredgecolor="white",
            markersize=11 if run.attention == BELOW else 7,
            zorder=3,
        )
    epochs = max(run.state.epoch for run in runs)
    panel.set_xlim(0.5, epochs + max(0.5, 0.02 * epochs))


def _draw_curves(
    panel: plt.Axes,
    runs: list[Run],
    values_of: Callable[[Run], list[float]],
    first: int,
    marker: str | None = None,
) -> None:
    """Draws a line for each run, and one for their mean over the epochs that all runs have."""
    for attention, own in _by_attention(runs):
        curves = [np.array(values_of(run), "float") for run in own]
        wide, several = _width(attention), len(own) > 1
        style = {"color": attention_of(attention).colour, "marker": marker}
        thin = {"linewidth": wide / 3 if several else wide, "alpha": 0.5 if several else 1.0}
        for curve in curves if len(own) <= MOST_LINES else ():
            panel.plot(np.arange(first, first + len(curve)), curve, **thin, **style)
        if several:
            length = min(map(len, curves))
            shared, epochs = [x[:length] for x in curves], np.arange(first, first + length)
            mean, deviation = np.mean(shared, axis=0), np.std(shared, axis=0, ddof=1)
            panel.plot(epochs, mean, linewidth=wide, zorder=2.5, **style)
            if len(own) > MOST_LINES:
                band = {"color": style["color"], "alpha": 0.15, "linewidth": 0}
                panel.fill_between(epochs, mean - deviation, mean + deviation, **band)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _by_attention(runs: list[Run]) -> list[tuple[str, list[Run]]]:
    names = dict.fromkeys(run.attention for run in runs)
    ordered = sorted(names, key=lambda name: name != BELOW)
    return [(name, [run for run in runs if run.attention == name]) for name in ordered]


def _width(attention: str) -> float:
    return WIDTH_BELOW if attention == BELOW else WIDTH


def _legend(runs: list[Run], chance: Chance | None) -> list[Line2D]:
    """The legend: the meaning of each line."""
    groups = _by_attention(runs)
    entries = []
    for name, own in groups:
        seeds = f" ({len(own)} seeds)" if len(own) > 1 else f" (seed {own[0].seed})"
        look = {"color": attention_of(name).colour, "linewidth": _width(name)}
        entries.append({**look, "label": label(name) + seeds})
    counts = {len(own) for _, own in groups}
    if max(counts) > 1:
        entries.append({"color": LEGEND, "linewidth": 2.5, "label": "mean of the seeds"})
    if counts & set(range(2, MOST_LINES + 1)):
        entries.append({"color": LEGEND, "linewidth": 0.8, "label": "one seed"})
    if max(counts) > MOST_LINES:
        band = {"color": LEGEND, "linewidth": 7, "alpha": 0.3}
        entries.append({**band, "label": "standard deviation of the seeds"})
    dot = {"marker": "o", "linestyle": "", "markersize": 7}
    entries.append({"color": LEGEND, **dot, "label": "chosen epoch"})
    if chance is not None:
        entries.append({"color": "black", "linestyle": "--", "label": chance.label})
    return [Line2D([], [], **entry) for entry in entries]
