"""The smoothing report: what was measured, as a table and as pictures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from keras_graphattn.analysis.pictures import new_figure
from keras_graphattn.analysis.smoothing.measures import frequency_parts
from keras_graphattn.checks import Array, is_list, is_whole, whole
from keras_graphattn.types import Float

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
WIDTH, HEIGHT = 5.4, 3.8  # inches of a picture of its own

COLUMNS = {  # of the table: the heading, and the figure of `LayerReport.summary`
    "before": "before_cosine",
    "after": "after_cosine",
    "block": "block_cosine",
    "DC": "block_dc_share",
    "rank": "block_effective_rank",
    "high A": "attention_high_gain",
    "high H": "operator_high_gain",
}
NOTES = (
    "before, after: mean cosine of the tokens before the attention and after it",
    "block: mean cosine of the tokens after the block of the attention",
    "DC, rank: share of the constant component and effective rank after the block",
    "high A, high H: gain at frequencies above 1/4, of attention and of its filter",
)


@dataclass(frozen=True)
class TokenMeasures:
    """Figures of the tokens at one place of a model, means over the sequences.

    The formulas are in `keras_graphattn.analysis.smoothing.measures`.

    Attributes:
        cosine: Mean cosine of all pairs of different tokens (`token_similarity`).
        dc_share: Share of the constant component in the energy (`dc_share`).
        effective_rank: Number of singular values that count (`effective_rank`).

    Example:

    >>> TokenMeasures(cosine=0.5, dc_share=0.6, effective_rank=2.0).effective_rank
    2.0
    """

    cosine: float
    dc_share: float
    effective_rank: float


@dataclass(frozen=True)
class HeadMeasures:
    """Figures of the N heads of one attention layer, means over the sampled sequences.

    A is the attention matrix, H the operator that the layer applies to its values: the filter of A,
    or A itself where there is no filter. The formulas are in
    `keras_graphattn.analysis.smoothing.measures`.

    Attributes:
        frequencies: Frequencies in periods for each token, from 0 to at most 0.5, (F,).
        operator_fourier: Fourier response of H, (N, F) (`fourier_response`).
        operator_map: H of the first sequence without its padding, (N, n, n).
        values: The values of the first sequence, to which H is applied, (N, n, D).
        attention_fourier: Fourier response of A, (N, F); `None` without A.
        attention_map: A of the first sequence, (N, n, n); `None` without A.

    Example:

    >>> operator, values = np.eye(2)[None], np.ones((1, 2, 4))
    >>> HeadMeasures(np.array([0.0, 0.5]), np.array([[1.0, 0.3]]), operator, values).high_gain()
    0.3
    """

    frequencies: Float[Array, " F"]
    operator_fourier: Float[Array, "N F"]
    operator_map: Float[Array, "N n n"]
    values: Float[Array, "N n D"]
    attention_fourier: Float[Array, "N F"] | None = None
    attention_map: Float[Array, "N n n"] | None = None

    def high_gain(self, of: str = "operator") -> float:
        """Mean response of `"operator"` H or `"attention"` A at frequencies above 1/4."""
        response = self.operator_fourier if of == "operator" else self.attention_fourier
        return math.nan if response is None else float(response[:, self.frequencies > 0.25].mean())


@dataclass(frozen=True)
class LayerReport:
    """The measures of one attention layer.

    Attributes:
        path: The layer's path. A layer that is called several times has a number at its end.
        kind: The name of its class.
        before: Its input.
        after: Its output, before any residual connection.
        block: The tokens after its block (see `inspect_smoothing`); `None` without any.
        heads: Its operators; `None` where they cannot be read.
        reason: Why `heads` is `None`.
        not_finite: Number of sequences with tokens that are NaN or infinite. They are left out of
            the measures of the places where they are so.
        coefficients: The layer's `coefficients` by name, such as those of its filter, (..., N).

    Example:

    >>> tokens = TokenMeasures(0.5, 0.6, 2.0)
    >>> report = LayerReport("a", "Layer", tokens, tokens, None, None, "no `value`", 0, {})
    >>> report.summary()["before_dc_share"]
    0.6
    """

    path: str
    kind: str
    before: TokenMeasures | None
    after: TokenMeasures | None
    block: TokenMeasures | None
    heads: HeadMeasures | None
    reason: str | None
    not_finite: int
    coefficients: dict[str, Array]

    def summary(self) -> dict[str, float]:
        """One number for each figure: means over heads, and those of the tokens at each place."""
        row: dict[str, float] = {"not_finite": self.not_finite}
        for place in ("before", "after", "block"):
            for name in ("cosine", "dc_share", "effective_rank"):
                row[f"{place}_{name}"] = getattr(getattr(self, place), name, math.nan)
        for of in ("attention", "operator"):
            row[f"{of}_high_gain"] = math.nan if self.heads is None else self.heads.high_gain(of)
        return row


@dataclass(frozen=True)
class SmoothingReport:
    """The result of `inspect_smoothing`. `print(report)` prints it as a table.

    Attributes:
        model: The model's name.
        layers: One `LayerReport` for each attention layer, in the order of their calls.
        not_measured: Attention layers of which nothing was measured, with the reason.
        sequences: Number of sequences whose tokens were measured.
        sampled: Number of sequences whose operators and ranks were measured.

    Example:

    >>> print(str(SmoothingReport("model", [], {}, sequences=2, sampled=1)).splitlines()[0])
    Smoothing of 'model': 2 sequences, the operators and ranks of 1
    """

    model: str
    layers: list[LayerReport]
    not_measured: dict[str, str]
    sequences: int
    sampled: int

    def __str__(self) -> str:
        lines = [("depth", *COLUMNS, "attention")]
        for depth, layer in enumerate(self.layers):
            figures = [layer.summary()[name] for name in COLUMNS.values()]
            cells = ["-" if math.isnan(figure) else f"{figure:.3f}" for figure in figures]
            lines.append((str(depth), *cells, layer.kind))
        *widths, _ = (max(map(len, column)) for column in zip(*lines, strict=True))
        missing = {layer.path: layer.reason for layer in self.layers if layer.heads is None}
        text = [
            f"Smoothing of '{self.model}': {self.sequences} sequences, the operators and ranks of "
            f"{self.sampled}",
            *("  ".join([*map(str.rjust, line, widths), line[-1]]) for line in lines),
            *NOTES,
            *(f"not measured at '{p}': {r}" for p, r in (missing | self.not_measured).items()),
        ]
        for layer in self.layers:
            if layer.not_finite:
                cause = f"tokens not finite, sequences: {layer.not_finite}"
                text.append(f"left out at '{layer.path}': {cause}")
        return "\n".join(text)


def plot_similarity(
    reports: SmoothingReport | Sequence[SmoothingReport],
    *,
    labels: Sequence[str] | None = None,
    axis: "Axes | None" = None,
) -> "Axes":
    """Draws the similarity of tokens by depth: each line starts at the input of the first layer.

    Solid lines are the tokens after each block. For a single report, a dashed line shows the tokens
    after each attention.

    Args:
        reports: A report of `inspect_smoothing`, or several.
        labels: A name for each report; the names of the models by default.
        axis: A matplotlib axis to draw on. By default, a new figure is created.

    Returns:
        The matplotlib axis.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: Without a report, and for another number of labels than of reports.

    Example:

    >>> from keras_graphattn.analysis import inspect_smoothing
    >>> model = keras.Sequential([keras.Input((4, 8)), GraphFilterAttention(2, 4)])
    >>> report = inspect_smoothing(model, np.random.default_rng(0).normal(size=(2, 4, 8)))
    >>> axis = plot_similarity(report)
    >>> axis.get_title()
    'similarity of tokens'
    """
    reports = [reports] if isinstance(reports, SmoothingReport) else reports
    are_reports = is_list(reports) and len(reports) > 0
    if not are_reports or not all(isinstance(x, SmoothingReport) and x.layers for x in reports):
        raise ValueError(
            "`reports` must be a SmoothingReport of inspect_smoothing, or a list of them. "
            f"Received: reports={reports!r}"
        )
    names = [report.model for report in reports] if labels is None else list(labels)
    if len(names) != len(reports):
        raise ValueError(
            f"`labels` must have a name for each report. Received: {len(reports)} reports, "
            f"labels={labels!r}"
        )
    axis = axis or new_figure(WIDTH, HEIGHT).add_subplot()
    for number, (report, name) in enumerate(zip(reports, names, strict=True)):
        places = [report.layers[0].before, *(layer.block for layer in report.layers)]
        similarity = [getattr(place, "cosine", math.nan) for place in places]
        colour = COLOURS[number % len(COLOURS)]
        axis.plot(similarity, marker="o", markersize=4, color=colour, label=name)
    if len(reports) == 1:
        after = [getattr(layer.after, "cosine", math.nan) for layer in reports[0].layers]
        depths = np.arange(1, len(after) + 1)
        axis.plot(depths, after, "--", color=COLOURS[1], label="after the attention")
        axis.lines[0].set_label("after the block")
    axis.set(xlabel="depth (attention layers)", ylabel="mean cosine of tokens", ylim=(None, 1.02))
    axis.set_title("similarity of tokens")
    axis.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
    axis.legend()
    return axis


def plot_responses(report: SmoothingReport, depth: int, axis: "Axes | None" = None) -> "Axes":
    """Draws how each head of one layer amplifies the frequencies of the Fourier basis.

    Solid lines are the operator H. Dashed lines of the same colours are the attention matrix A,
    where H is a filter of it.

    Args:
        report: A report of `inspect_smoothing`.
        depth: The number of the layer in the report, from 0; from the end if negative.
        axis: A matplotlib axis to draw on. By default, a new figure is created.

    Returns:
        The matplotlib axis.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: For a depth that the report does not have, and a layer without operators.

    Example:

    >>> from keras_graphattn.analysis import inspect_smoothing
    >>> model = keras.Sequential([keras.Input((4, 8)), GraphFilterAttention(2, 4)])
    >>> report = inspect_smoothing(model, np.random.default_rng(0).normal(size=(2, 4, 8)))
    >>> axis = plot_responses(report, depth=0)
    >>> axis.get_xlabel()
    'frequency (periods for each token)'
    """
    number, heads = _heads_at(report, depth)
    attention, operator = heads.attention_fourier, heads.operator_fourier
    is_filtered = _is_filtered(heads)
    axis = axis or new_figure(WIDTH, HEIGHT).add_subplot()
    for head, gains in enumerate(operator):
        colour = COLOURS[head % len(COLOURS)]
        axis.plot(heads.frequencies, gains, color=colour, label=f"head {head}")
        if is_filtered and attention is not None:
            axis.plot(heads.frequencies, attention[head], "--", color=colour, linewidth=1)
    axis.axhline(1.0, color="#bbbbbb", linewidth=1, zorder=0)
    axis.set(xlabel="frequency (periods for each token)", ylabel="gain", ylim=(0.0, None))
    axis.set_title(f"layer {number}" + (", dashed: A" if is_filtered else ""))
    if len(operator) <= 8:
        axis.legend(fontsize=8)
    return axis


def plot_powers(
    report: SmoothingReport, depth: int, steps: int = 10, axis: "Axes | None" = None
) -> "Axes":
    """Draws how fast the differences of tokens vanish if one layer is applied again and again.

    Each line is high(t) / low(t) of a head (`frequency_parts`), for its values in the first
    sequence. Solid lines are the operator H. Dashed lines of the same colours are the attention
    matrix A, where H is a filter of it.

    Args:
        report: A report of `inspect_smoothing`.
        depth: The number of the layer in the report, from 0; from the end if negative.
        steps: How many steps are drawn, at least 2.
        axis: A matplotlib axis to draw on. By default, a new figure is created.

    Returns:
        The matplotlib axis.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: For a depth that the report does not have, a layer without operators, and fewer
            than 2 steps.

    Example:

    >>> from keras_graphattn.analysis import inspect_smoothing
    >>> model = keras.Sequential([keras.Input((4, 8)), GraphFilterAttention(2, 4)])
    >>> report = inspect_smoothing(model, np.random.default_rng(0).normal(size=(2, 4, 8)))
    >>> axis = plot_powers(report, depth=0)
    >>> axis.get_yscale()
    'log'
    """
    number, heads = _heads_at(report, depth)
    whole(2)("steps", steps, {})
    is_filtered = _is_filtered(heads)
    axis = axis or new_figure(WIDTH, HEIGHT).add_subplot()
    for matrix, style in ((heads.operator_map, "-"), (heads.attention_map, "--")):
        if matrix is None or (style == "--" and not is_filtered):
            continue
        low, high = frequency_parts(matrix, heads.values, steps)
        for head in range(len(matrix)):
            colour, label = COLOURS[head % len(COLOURS)], f"head {head}" if style == "-" else None
            axis.plot(high[head] / low[head], style, color=colour, label=label)
    axis.set(xlabel="times applied", ylabel="high part / constant part", yscale="log")
    axis.set_title(f"powers of layer {number}" + (", dashed: A" if is_filtered else ""))
    if len(heads.operator_map) <= 8:
        axis.legend(fontsize=8)
    return axis


def plot_attention_maps(report: SmoothingReport, depth: int, head: int = 0) -> "Figure":
    """Draws A and H of one head, for the first sequence: attention before and after the filter.

    Rows are queries, columns are keys. In H, red is positive and blue is negative.

    Args:
        report: A report of `inspect_smoothing`.
        depth: The number of the layer in the report, from 0; from the end if negative.
        head: The number of the head.

    Returns:
        A matplotlib figure.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: For a layer or a head that the report does not have, and a layer without
            operators.

    Example:

    >>> from keras_graphattn.analysis import inspect_smoothing
    >>> model = keras.Sequential([keras.Input((4, 8)), GraphFilterAttention(2, 4)])
    >>> report = inspect_smoothing(model, np.random.default_rng(0).normal(size=(2, 4, 8)))
    >>> figure = plot_attention_maps(report, depth=0, head=1)
    >>> len(figure.axes)  # two matrices, each with its colours
    4
    """
    number, heads = _heads_at(report, depth)
    before, after = heads.attention_map, heads.operator_map
    if not is_whole(head) or not 0 <= head < len(after):
        raise ValueError(f"`head` must be from 0 to {len(after) - 1}. Received: head={head!r}")
    figure = new_figure(8.4, 3.8)
    axes = figure.subplots(1, 2)
    if before is not None:
        image = axes[0].imshow(before[head], vmin=0.0, cmap="magma")
        figure.colorbar(image, ax=axes[0], fraction=0.046, pad=0.04)
    else:
        axes[0].text(0.5, 0.5, "has no A", ha="center", transform=axes[0].transAxes)
    highest = float(np.abs(after[head]).max()) or 1.0
    image = axes[1].imshow(after[head], vmin=-highest, vmax=highest, cmap="RdBu_r")
    figure.colorbar(image, ax=axes[1], fraction=0.046, pad=0.04)
    for axis, name in zip(axes, ("attention A", "after the filter, H"), strict=True):
        axis.set(title=name, xlabel="key", ylabel="query")
    figure.suptitle(f"layer {number}, head {head}")
    return figure


def _is_filtered(heads: HeadMeasures) -> bool:
    """Whether H is another operator than A."""
    attention, operator = heads.attention_fourier, heads.operator_fourier
    return attention is not None and not np.allclose(attention, operator, atol=1e-4)


def _heads_at(report: SmoothingReport, depth: int) -> tuple[int, HeadMeasures]:
    """The number of a layer, from 0, and its operators."""
    if not isinstance(report, SmoothingReport):
        raise ValueError(
            f"`report` must be a SmoothingReport of inspect_smoothing. Received: report={report!r}"
        )
    count = len(report.layers)
    if not is_whole(depth) or not -count <= depth < count:
        raise ValueError(
            f"`depth` must be from {-count} to {count - 1}, the layers of this report. Received: "
            f"depth={depth!r}"
        )
    layer = report.layers[depth]
    if layer.heads is None:
        raise ValueError(f"'{layer.path}' has no operators in the report: {layer.reason}")
    return depth % count, layer.heads
