"""The figure with all pictures of a smoothing report."""

from typing import Any

import numpy as np

from keras_graphattn.analysis.figures import new_figure
from keras_graphattn.analysis.smoothing.pictures import (
    COLOURS,
    plot_filters,
    plot_similarity,
    plot_singular_values,
)
from keras_graphattn.analysis.smoothing.report import SmoothingReport


def overview(report: SmoothingReport) -> Any:
    """The figure of `SmoothingReport.plot`: four pictures of all layers."""
    figure = new_figure(11.0, 7.6)
    axes = figure.subplots(2, 2)
    plot_similarity(report, axis=axes[0, 0])
    _plot_gains(report, axes[0, 1])
    plot_singular_values(report, axes[1, 0])
    if any(layer.curve is not None for layer in report.layers):
        plot_filters(report, axes[1, 1])
    else:
        for name, colour in (("dc_share", COLOURS[0]), ("effective_rank", COLOURS[1])):
            axis = axes[1, 1] if name == "dc_share" else axes[1, 1].twinx()
            shown = [getattr(layer.block, name, np.nan) for layer in report.layers]
            axis.plot(np.arange(len(shown)) + 1, shown, marker="o", markersize=4, color=colour)
            axis.set_ylabel(name.replace("_", " ").replace("dc", "DC"), color=colour)
        axes[1, 1].set(xlabel="depth (attention layers)", title="after the block")
    figure.suptitle(f"{report.model}, {report.sequences} sequences")
    return figure


def _plot_gains(report: SmoothingReport, axis: Any) -> None:
    """High-frequency gain of A and H by depth, each head a point."""
    for of, colour, shift in (("attention", COLOURS[1], -0.12), ("operator", COLOURS[0], 0.12)):
        for depth, layer in enumerate(report.layers):
            response = getattr(layer.heads, f"{of}_fourier", None)
            if layer.heads is None or response is None:
                continue
            gains = response[:, layer.heads.frequencies > 0.25].mean(axis=1)
            place = np.full(len(gains), depth + 1 + shift)
            axis.plot(place, gains, "o", markersize=3, color=colour)
        axis.plot([], [], "o", color=colour, label=f"{of} {'H' if of == 'operator' else 'A'}")
    axis.axhline(1.0, color="#bbbbbb", linewidth=1, zorder=0)
    axis.set(xlabel="depth (attention layers)", ylabel="mean gain of each head", ylim=(0.0, None))
    axis.set_title("frequencies above 1/4")
    axis.set_ylim(top=1.2 * axis.get_ylim()[1])  # room for the legend
    axis.legend(loc="upper center", ncols=2)
