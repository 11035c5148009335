"""The picture of README, from the files of two runs: `python -m docs.findings`.

Left, the time of the linear layers beside Keras' layer by the length of the sequence
(`benchmarks/attentive_graph_filter.py`). Right, the accuracy on induced cycles
(`recipes/motif_detection`).
"""

import json
from pathlib import Path

from docs.paths import ROOT

TIMES = ROOT / "benchmarks/results/attentive_graph_filter_jax_cpu_graph_float32.json"
CYCLES = ROOT / "recipes/motif_detection/results/induced_cycle.json"
LAYERS = {
    "MaskedKernelAttention, Exponential": "MaskedKernelAttention",
    "AttentiveGraphFilter": "AttentiveGraphFilter",
}
ATTENTIONS = {"softmax": "softmax", "gat": "GAT", "graph_kernel": "GKAT"}
GREY, BLUE, ORANGE = "#a0a0a0", "#4477aa", "#cc6644"


def shares() -> dict[str, dict[int, float]]:
    """The time of a training step, relative to Keras' layer in the same run, by length."""
    rows = json.loads(TIMES.read_text())["rows"]
    return {
        label: {row["length"]: row["percent of rival"] / 100 for row in rows if row["case"] == case}
        for case, label in LAYERS.items()
    }


def accuracies() -> dict[str, tuple[float, float]]:
    """Mean test accuracy and its standard deviation over seeds."""
    rows = {row["attention"]: row for row in json.loads(CYCLES.read_text())["table"]}
    shown = {label: rows[name] for name, label in ATTENTIONS.items()}
    return {
        label: (row["test_accuracy_mean"], row["test_accuracy_standard_deviation"])
        for label, row in shown.items()
    }


def draw(path: Path) -> None:
    """Writes the picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    left.axhline(1, color=GREY)
    lengths = sorted({length for by_length in shares().values() for length in by_length})
    left.text(lengths[-1], 1.02, "keras.layers.MultiHeadAttention", ha="right", va="bottom")
    for (label, by_length), colour in zip(shares().items(), (BLUE, ORANGE), strict=True):
        left.plot(by_length.keys(), by_length.values(), "o-", color=colour, label=label)
        for length, share in by_length.items():
            place = (6, 4) if colour == BLUE else (-6, -14)
            left.annotate(
                f"{share:.2f}", (length, share), place, textcoords="offset points", color=colour
            )
    left.set(
        title="Time of a training step, relative to Keras' layer",
        xlabel="tokens",
        xscale="log",
        xticks=lengths,
        xticklabels=lengths,
        ylim=(0, 1.15),
    )
    left.minorticks_off()
    left.legend(frameon=False, loc="center right")
    names, values = list(accuracies()), list(accuracies().values())
    means, deviations = zip(*values, strict=True)
    bars = right.bar(names, means, yerr=deviations, color=(GREY, GREY, ORANGE), capsize=4)
    right.bar_label(bars, [f"{mean:.3f}" for mean in means], padding=3)
    right.set(title="Accuracy on induced cycles, 3 seeds", ylim=(0, 1.15))
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw(ROOT / "guides/images/findings.png")
