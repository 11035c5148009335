"""The pictures of the smoothing report. matplotlib is needed only here."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_graphattn.analysis.figures import new_figure, own_or_new_axis
from keras_graphattn.analysis.smoothing.report import HeadMeasures, SmoothingReport
from keras_graphattn.checks import flag, is_list, is_whole

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DEPTHS = "viridis"
WIDTH, HEIGHT = 5.4, 3.8  # inches of a picture of its own


def plot_similarity(
    reports: SmoothingReport | Sequence[SmoothingReport],
    *,
    labels: Sequence[str] | None = None,
    absolute: bool = False,
    axis: Any = None,
) -> Any:
    """Draws the similarity of tokens by depth: each line starts at the input of the first layer.

    One report shows the tokens after each block, and dashed those after each attention; several
    reports show the tokens after each block.

    Args:
        reports: A report of `inspect_smoothing`, or several.
        labels: A name for each report; the names of the models by default.
        absolute: Whether to draw the mean absolute cosine instead of the mean cosine.
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
    names = _labels(reports, labels)
    axis = own_or_new_axis(axis, WIDTH, HEIGHT)
    measure = "absolute_cosine" if flag("absolute", absolute) else "cosine"
    for number, (report, name) in enumerate(zip(reports, names, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        start = getattr(report.layers[0].before, measure, np.nan)
        blocks = [getattr(layer.block, measure, np.nan) for layer in report.layers]
        depths = np.arange(len(blocks) + 1)
        axis.plot(depths, [start, *blocks], marker="o", markersize=4, color=colour, label=name)
        if len(reports) == 1:
            after = [getattr(layer.after, measure, np.nan) for layer in report.layers]
            axis.plot(depths[1:], after, "--", color=COLOURS[1], label="after the attention")
            axis.lines[0].set_label("after the block")
    word = "absolute cosine" if absolute else "cosine"
    axis.set(xlabel="depth (attention layers)", ylabel=f"mean {word} of tokens", ylim=(None, 1.02))
    axis.set_title("similarity of tokens")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend()
    return axis


def plot_responses(report: SmoothingReport, depth: int, axis: Any = None) -> Any:
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
    heads = _heads(report, depth)
    axis = own_or_new_axis(axis, WIDTH, HEIGHT)
    attention, operator = heads.attention_fourier, heads.operator_fourier
    is_filtered = attention is not None and not np.allclose(attention, operator, atol=1e-4)
    for head, gains in enumerate(operator):
        colour = COLOURS[head % len(COLOURS)]
        axis.plot(heads.frequencies, gains, color=colour, label=f"head {head}")
        if is_filtered and attention is not None:
            axis.plot(heads.frequencies, attention[head], "--", color=colour, linewidth=1)
    axis.axhline(1.0, color="#bbbbbb", linewidth=1, zorder=0)
    axis.set(xlabel="frequency (periods for each token)", ylabel="gain", ylim=(0.0, None))
    axis.set_title(f"layer {_number(report, depth)}" + (", dashed: A" if is_filtered else ""))
    if len(operator) <= 8:
        axis.legend(fontsize=8)
    return axis


def plot_singular_values(report: SmoothingReport, axis: Any = None) -> Any:
    """Draws the singular values of the tokens after each block, relative to the largest.

    Args:
        report: A report of `inspect_smoothing`.
        axis: A matplotlib axis to draw on. By default, a new figure is created.

    Returns:
        The matplotlib axis.

    Raises:
        ImportError: If matplotlib is not installed.

    Example:

    >>> from keras_graphattn.analysis import inspect_smoothing
    >>> model = keras.Sequential([keras.Input((4, 8)), GraphFilterAttention(2, 4)])
    >>> report = inspect_smoothing(model, np.random.default_rng(0).normal(size=(2, 4, 8)))
    >>> axis = plot_singular_values(report)
    >>> axis.get_yscale()
    'log'
    """
    _check_report(report)
    axis = own_or_new_axis(axis, WIDTH, HEIGHT)
    for depth, layer in enumerate(report.layers):
        if layer.block is not None and layer.block.singular_values.size:
            values = layer.block.singular_values
            shares = values / max(values[0], 1e-30)
            kept = shares > 1e-7  # the others are rounding
            axis.plot(np.arange(1, len(values) + 1)[kept], shares[kept], color=shade(report, depth))
    axis.set(yscale="log", xlabel="number of the singular value", ylabel="relative to the largest")
    axis.set_title("singular values after the block")
    _depth_bar(report, axis)
    return axis


def plot_filters(report: SmoothingReport, axis: Any = None) -> Any:
    """Draws what the filter of each head makes of the eigenvalues of A, coloured by depth.

    The dashed line is plain attention, which makes lambda of lambda.

    Args:
        report: A report of `inspect_smoothing`.
        axis: A matplotlib axis to draw on. By default, a new figure is created.

    Returns:
        The matplotlib axis.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If no layer has a filter.

    Example:

    >>> from keras_graphattn.analysis import inspect_smoothing
    >>> model = keras.Sequential([keras.Input((4, 8)), GraphFilterAttention(2, 4)])
    >>> report = inspect_smoothing(model, np.random.default_rng(0).normal(size=(2, 4, 8)))
    >>> axis = plot_filters(report)
    >>> axis.get_xlabel()
    'eigenvalue of A'
    """
    _check_report(report)
    curves = [(depth, layer.curve) for depth, layer in enumerate(report.layers)]
    if all(curve is None for _, curve in curves):
        raise ValueError(
            f"No layer of '{report.model}' has a filter. Convert the model with "
            'keras_graphattn.convert(model, "graph_filter"), or draw another picture.'
        )
    axis = own_or_new_axis(axis, WIDTH, HEIGHT)
    points = np.zeros(0)
    for depth, curve in curves:
        if curve is not None:
            points = curve.points
            for response in curve.response:
                axis.plot(points, response, color=shade(report, depth), linewidth=1)
    axis.plot(points, points, "--", color="#888888", linewidth=1, label="plain attention")
    axis.set(xlabel="eigenvalue of A", ylabel="response", title="filters")
    _depth_bar(report, axis)
    return axis


def plot_attention_maps(report: SmoothingReport, depth: int, head: int = 0) -> Any:
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
    heads = _heads(report, depth)
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
    figure.suptitle(f"layer {_number(report, depth)}, head {head}")
    return figure


def _labels(reports: Any, labels: Sequence[str] | None) -> Sequence[str]:
    known = is_list(reports) and len(reports) > 0
    if not known or not all(isinstance(x, SmoothingReport) and x.layers for x in reports):
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
    return names


def _check_report(report: Any) -> None:
    if not isinstance(report, SmoothingReport):
        raise ValueError(
            f"`report` must be a SmoothingReport of inspect_smoothing. Received: report={report!r}"
        )


def _heads(report: SmoothingReport, depth: int) -> HeadMeasures:
    """The operators of one layer; an error if there is no such layer or it has none."""
    _check_report(report)
    count = len(report.layers)
    if not is_whole(depth) or not -count <= depth < count:
        raise ValueError(
            f"`depth` must be from {-count} to {count - 1}, the layers of this report. Received: "
            f"depth={depth!r}"
        )
    layer = report.layers[depth]
    if layer.heads is None:
        raise ValueError(f"'{layer.path}' has no operators in the report: {layer.reason}")
    return layer.heads


def _number(report: SmoothingReport, depth: int) -> int:
    return range(len(report.layers))[depth]


def shade(report: SmoothingReport, depth: int) -> Any:
    """The colour of a layer."""
    import matplotlib

    return matplotlib.colormaps[DEPTHS](0.9 * depth / max(len(report.layers) - 1, 1))


def _depth_bar(report: SmoothingReport, axis: Any) -> None:
    """Two entries of a legend that tell the colours of the first and the last layer."""
    last = len(report.layers) - 1
    for depth in sorted({0, last}):
        axis.plot([], [], color=shade(report, depth), label=f"layer {depth}")
    axis.legend(fontsize=8)
