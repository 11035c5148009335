"""Several finished comparisons in one table and one picture: such as one model at several depths.

    python -m recipes.common.output.together results/depth/* --output results/depth-together

Reads each folder's `results.json`, trains nothing, and writes `together.md` and `together.png`. The
table has each attention's test metric, its paired difference from softmax, and the similarity of
tokens: the mean cosine of pairs of them, after the middle block and after the last.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recipes.common.attentions import attention_of, label
from recipes.common.command.parsing import Parser, UsageError, run_command, run_program
from recipes.common.output.notes import paired_difference
from recipes.common.storage import DamagedFileError, atomically, read_json, write_text

INTERRUPTED = "interrupted: nothing was written"
OTHER = "softmax"  # is subtracted from the other attentions


class Comparison(NamedTuple):
    """The content of a folder of results."""

    name: str
    attentions: list[str]
    metric: str  # such as test_accuracy
    runs: list[dict[str, Any]]

    @property
    def metric_in_words(self) -> str:
        return self.metric.replace("_", " ")

    def of(self, attention: str) -> list[dict[str, Any]]:
        return [run for run in self.runs if run["attention"] == attention]

    def values(self, attention: str) -> list[float]:
        return [run[self.metric] for run in self.of(attention)]

    def similarity(self, attention: str) -> list[float]:
        """Before the blocks and after each, over the seeds; empty where it was not measured."""
        curves = [run.get("token_similarity") or [] for run in self.of(attention)]
        return [statistics.fmean(values) for values in zip(*curves, strict=all(curves))]


def read(folder: Path) -> Comparison:
    """The comparison that a folder holds; its name is the folder's.

    Raises:
        UsageError: If the folder has no finished comparison.
    """
    try:
        results = read_json(folder / "results.json")
        if results is None:
            raise UsageError(f"{folder} has no results.json: a recipe's command writes it")
        metric = next(key for key in results["table"][0] if key.endswith("_mean"))
        metric, runs = metric.removesuffix("_mean"), results["runs"]
        attentions = [row["attention"] for row in results["table"]]
        if not all(run[metric] is not None and label(run["attention"]) for run in runs):
            raise KeyError(metric)
    except (DamagedFileError, LookupError, StopIteration, TypeError, AttributeError) as error:
        raise UsageError(f"{folder / 'results.json'} is not that of a recipe") from error
    return Comparison(folder.resolve().name, attentions, metric, runs)


def have_one_metric(comparisons: Sequence[Comparison]) -> bool:
    """Whether one scale fits the numbers of all comparisons."""
    return len({one.metric for one in comparisons}) == 1


def table(comparisons: Sequence[Comparison]) -> str:
    """The table, in Markdown: a line for each comparison and attention."""
    same = have_one_metric(comparisons)
    heading = comparisons[0].metric_in_words if same else "test metric"
    headings = [
        *("model", "attention", "seeds", f"{heading}, mean ± standard deviation"),
        *("least to largest", f"less {label(OTHER)}, paired, ± standard error"),
        *("similarity in the middle", "at the end"),
    ]
    rows = [headings, ["---"] * len(headings)]
    for one in comparisons:
        name = one.name if same else f"{one.name}, {one.metric_in_words}"
        rows += [[name, *_cells(one, attention)] for attention in one.attentions]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cells(comparison: Comparison, attention: str) -> list[str]:
    values, similarity = comparison.values(attention), comparison.similarity(attention)
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    difference = None
    if attention != OTHER:
        difference = paired_difference(comparison.runs, comparison.metric, attention, OTHER)
    return [
        label(attention),
        str(len(values)),
        f"{statistics.fmean(values):.4f}{spread}",
        f"{min(values):.4f} to {max(values):.4f}",
        difference or "",
        f"{similarity[len(similarity) // 2]:.2f}" if similarity else "",
        f"{similarity[-1]:.2f}" if similarity else "",
    ]


def draw(comparisons: Sequence[Comparison]) -> Any:
    """The picture: a column for each comparison, the test metric above similarity by depth.

    A dot is a seed, a bar the mean of the seeds; a thin line is a seed, a thick one their mean.
    """
    from matplotlib.figure import Figure

    measured = any(run.get("token_similarity") for one in comparisons for run in one.runs)
    count, same = len(comparisons), have_one_metric(comparisons)
    size = (1.5 + 3.2 * count, 6.6 if measured else 3.6)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1 + measured, count, squeeze=False)
    for column, one in enumerate(comparisons):
        panel = axes[0][column]
        names = [label(attention) for attention in one.attentions]
        panel.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
        panel.set_title(one.name)
        if column == 0 or not same:
            panel.set_ylabel(one.metric_in_words)
        for place, attention in enumerate(one.attentions):
            values, colour = one.values(attention), attention_of(attention).colour
            panel.plot([place] * len(values), values, "o", color=colour, markersize=5, alpha=0.6)
            means = [statistics.fmean(values)] * 2
            panel.plot([place - 0.3, place + 0.3], means, color=colour, linewidth=3)
            if not measured:
                continue
            for run in one.of(attention):
                curve = run.get("token_similarity") or []
                axes[1][column].plot(curve, color=colour, linewidth=0.8, alpha=0.4)
            axes[1][column].plot(one.similarity(attention), color=colour, linewidth=2.5)
    if measured:
        axes[1][0].set_ylabel("mean cosine of pairs of tokens")
        for panel in axes[1]:
            panel.set_xlabel("after block (0: before the first)")
    for row in [*axes[1:], *(axes[:1] if same else [])]:
        for panel in row[1:]:
            panel.sharey(row[0])
            panel.tick_params(labelleft=False)
        row[0].autoscale(axis="y")
    for panel in axes.ravel():
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    return figure


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0, or 2 with one line on standard error."""
    return run_command(_main, arguments)


def _main(arguments: list[str] | None) -> None:
    parser = Parser("One table and one picture of several finished comparisons.")
    parser.add_argument("folders", nargs="+", type=Path, help="with a results.json in each")
    output = "folder to write together.md and together.png to"
    parser.add_argument("--output", type=Path, default=Path("results/together"), help=output)
    options = parser.parse_args(arguments)
    comparisons = [read(folder) for folder in options.folders]
    text = table(comparisons)
    write_text(options.output / "together.md", text)
    with atomically(options.output / "together.png") as writing:
        draw(comparisons).savefig(writing, dpi=130)
    print(text)
    print(f"written to {options.output}")


if __name__ == "__main__":
    run_program(main, INTERRUPTED)
