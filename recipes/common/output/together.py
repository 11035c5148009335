"""Several finished comparisons in one table and one picture: one model at several depths, say.

    python -m recipes.common.output.together results/depth/* --output results/depth-together

Reads each folder's `results.json`, trains nothing, and writes `together.md` and `together.png`. The
table has each attention's test metric, its paired difference from another attention, and how alike
tokens are: the mean cosine of pairs of them, after the middle block and after the last.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recipes.common.attentions import ATTENTIONS, label
from recipes.common.command.parsing import Parser, UsageError, run_command
from recipes.common.command.program import run_program
from recipes.common.output.paired import paired
from recipes.common.storage.files import DamagedFileError, atomically, read_json, write_text

INTERRUPTED = "interrupted: nothing was written"


class Comparison(NamedTuple):
    """What a folder of results holds."""

    name: str
    attentions: list[str]
    metric: str  # such as test_accuracy
    runs: list[dict[str, Any]]

    def of(self, attention: str) -> list[dict[str, Any]]:
        """The runs of one attention."""
        return [run for run in self.runs if run["attention"] == attention]


def read(folder: Path) -> Comparison:
    """The comparison that a folder holds; its name is the folder's.

    Raises:
        UsageError: If the folder has no finished comparison.
    """
    try:
        found = read_json(folder / "results.json")
        if found is None:
            raise UsageError(f"{folder} has no results.json: a recipe's command writes it")
        metric = next(key for key in found["table"][0] if key.endswith("_mean"))
        attentions = [row["attention"] for row in found["table"]]
        metric, runs = metric.removesuffix("_mean"), found["runs"]
        if not all(run.get(metric) is not None and run["attention"] in ATTENTIONS for run in runs):
            raise KeyError(metric)
    except (
        DamagedFileError,
        KeyError,
        IndexError,
        StopIteration,
        TypeError,
        AttributeError,
    ) as error:
        raise UsageError(f"{folder / 'results.json'} is not that of a recipe") from error
    return Comparison(folder.resolve().name, attentions, metric, runs)


def table(comparisons: Sequence[Comparison], other: str) -> str:
    """The table, in Markdown: a line for each comparison and attention.

    Args:
        comparisons: What is compared.
        other: The attention that is subtracted from the others.
    """
    same = have_one_metric(comparisons)
    heading = _words(comparisons[0]) if same else "test metric"
    names = (
        "model",
        "attention",
        "seeds",
        f"{heading}, mean ± standard deviation",
        "least to largest",
        f"less {label(other)}, paired, ± standard error",
        "similarity in the middle",
        "at the end",
    )
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    for one in comparisons:
        for attention in one.attentions:
            first, *cells = _cells(one, attention, other)
            first = first if same else f"{first}, {_words(one)}"
            lines.append("| " + " | ".join([first, *cells]) + " |")
    return "\n".join(lines) + "\n"


def have_one_metric(comparisons: Sequence[Comparison]) -> bool:
    """Whether the numbers of all comparisons can stand on one scale."""
    return len({one.metric for one in comparisons}) == 1


def _words(comparison: Comparison) -> str:
    return comparison.metric.replace("_", " ")


def _cells(comparison: Comparison, attention: str, other: str) -> list[str]:
    runs = comparison.of(attention)
    values = [run[comparison.metric] for run in runs]
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    above = None
    if attention != other:
        above = paired(comparison.runs, comparison.metric, attention, other)
    similarity = _mean_similarity(runs)
    return [
        comparison.name,
        label(attention),
        str(len(runs)),
        f"{statistics.fmean(values):.4f}{spread}",
        f"{min(values):.4f} to {max(values):.4f}",
        "" if above is None else above.told(),
        f"{similarity[len(similarity) // 2]:.2f}" if similarity else "",
        f"{similarity[-1]:.2f}" if similarity else "",
    ]


def _mean_similarity(runs: Sequence[dict[str, Any]]) -> list[float]:
    """Before the blocks and after each, over the seeds; empty where it was not measured."""
    if not all(run.get("token_similarity") for run in runs):
        return []
    curves = [run["token_similarity"] for run in runs]
    return [statistics.fmean(values) for values in zip(*curves, strict=True)]


def draw(comparisons: Sequence[Comparison]) -> Any:
    """The picture: a column for each comparison, the test metric above similarity by depth.

    A dot is a seed, a bar the mean of the seeds; a thin line is a seed, a thick one their mean.
    """
    from matplotlib.figure import Figure

    measured = any(run.get("token_similarity") for one in comparisons for run in one.runs)
    count = len(comparisons)
    size = (1.5 + 3.2 * count, 6.6 if measured else 3.6)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1 + measured, count, squeeze=False)
    for column, one in enumerate(comparisons):
        panel = axes[0][column]
        for place, attention in enumerate(one.attentions):
            _draw_values(panel, place, one, attention)
        names = [label(attention) for attention in one.attentions]
        panel.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
        panel.set_title(one.name)
        if measured:
            for attention in one.attentions:
                _draw_similarity(axes[1][column], one.of(attention), attention)
            axes[1][column].set_xlabel("after block (0: before the first)")
    scales = list(axes[1:]) + ([axes[0]] if have_one_metric(comparisons) else [])
    for row in scales:
        for panel in row[1:]:
            panel.sharey(row[0])
            panel.tick_params(labelleft=False)
        row[0].autoscale(axis="y")
    for panel, one in zip(axes[0], comparisons, strict=True):
        if panel is axes[0][0] or not have_one_metric(comparisons):
            panel.set_ylabel(_words(one))
    if measured:
        axes[1][0].set_ylabel("mean cosine of pairs of tokens")
    for panel in axes.ravel():
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    return figure


def _draw_values(panel: Any, place: int, comparison: Comparison, attention: str) -> None:
    values = [run[comparison.metric] for run in comparison.of(attention)]
    colour, mean = ATTENTIONS[attention].colour, statistics.fmean(values)
    panel.plot([place] * len(values), values, "o", color=colour, markersize=5, alpha=0.6)
    panel.plot([place - 0.3, place + 0.3], [mean, mean], color=colour, linewidth=3)


def _draw_similarity(panel: Any, runs: Sequence[dict[str, Any]], attention: str) -> None:
    colour = ATTENTIONS[attention].colour
    for run in runs:
        panel.plot(run.get("token_similarity") or [], color=colour, linewidth=0.8, alpha=0.4)
    panel.plot(_mean_similarity(runs), color=colour, linewidth=2.5)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0, or 2 with one line on standard error."""
    return run_command(_main, arguments)


def _main(arguments: list[str] | None) -> None:
    parser = Parser("One table and one picture of several finished comparisons.")
    parser.add_argument("folders", nargs="+", type=Path, help="with a results.json in each")
    output = "folder to write together.md and together.png to"
    parser.add_argument("--output", type=Path, default=Path("results/together"), help=output)
    against = "attention that is subtracted from the others"
    parser.add_argument("--against", choices=list(ATTENTIONS), default="softmax", help=against)
    options = parser.parse_args(arguments)
    comparisons = [read(folder) for folder in options.folders]
    text = table(comparisons, options.against)
    write_text(options.output / "together.md", text)
    with atomically(options.output / "together.png") as writing:
        draw(comparisons).savefig(writing, dpi=130)
    print(text)
    print(f"written to {options.output}")


if __name__ == "__main__":
    run_program(main, INTERRUPTED)
