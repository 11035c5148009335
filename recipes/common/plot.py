"""The picture of a comparison: a metric over epochs, token similarity over layers."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import MaxNLocator

from recipes.common.files import atomically
from recipes.common.runs import Run

COLOURS = {
    **{"softmax": "#999999", "linear": "#009e73", "gfsa": "#0072b2", "agf": "#d55e00"},
    **{"p_laplacian": "#cc79a7", "masked_kernel": "#009e73"},
}
# curves that coincide stay visible
WIDTHS = {name: 5.0 if name == "softmax" else 1.8 for name in COLOURS}
MARKERS = {name: 11 if name == "softmax" else 7 for name in COLOURS}


def plot(path: Path, title: str, runs: list[Run]) -> None:
    """Draws all runs: one colour per attention, one line per seed, a dot at the chosen epoch.

    Beside validation stands the test, where it was taken after every epoch, else training. Where
    token similarity was measured, a third panel shows it over the layers.
    """
    metric = runs[0].criterion.name
    tested = f"test_{metric}" in runs[0].state.best
    measured = all(run.similarity for run in runs)
    panels = 3 if measured else 2
    figure, axes = plt.subplots(1, panels, figsize=(13 * panels / 3, 4), layout="constrained")
    validation, other = axes[:2]
    for panel, name in ((validation, f"val_{metric}"), (other, f"test_{metric}")):
        _draw_metric(panel, name if tested else name.removeprefix("test_"), runs)
    if tested:
        other.sharey(validation)
    validation.set(
        title="validation (dot: chosen epoch)", xlabel="epoch", ylabel=metric.replace("_", " ")
    )
    other.set(title=f"{'test' if tested else 'training'} (dot: the same epoch)", xlabel="epoch")
    if measured:
        _draw_similarity(axes[2], runs)
    for panel in axes:
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    axes[-1].legend(frameon=False)
    figure.suptitle(title)
    with atomically(path) as writing:
        figure.savefig(writing, dpi=130)
    plt.close(figure)


def _draw_similarity(panel: plt.Axes, runs: list[Run]) -> None:
    for run in runs:
        size = MARKERS[run.attention]
        panel.plot(run.similarity, marker="o", markersize=size, **_style(run, runs))
    panel.set(
        title="similarity of tokens (test examples)",
        xlabel="after block",
        ylabel="mean pairwise cosine",
        ylim=(min(0.0, *(value for run in runs for value in run.similarity)) - 0.02, 1.02),
    )


def _draw_metric(panel: plt.Axes, metric: str, runs: list[Run]) -> None:
    for run in runs:
        history = run.state.history
        panel.plot(
            [row["epoch"] for row in history],
            [row[metric] for row in history],
            **_style(run, runs),
        )
        panel.plot(
            run.state.best_epoch,
            run.state.best[metric],
            "o",
            color=COLOURS[run.attention],
            markeredgecolor="white",
            markersize=MARKERS[run.attention] + 1,
            zorder=3,
        )


def _style(run: Run, runs: list[Run]) -> dict[str, object]:
    first = next(one for one in runs if one.attention == run.attention)
    return {
        "color": COLOURS[run.attention],
        "linewidth": WIDTHS[run.attention],
        "alpha": 1.0 if run is first else 0.5,
        "label": run.attention if run is first else None,
    }
