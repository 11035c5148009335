"""The smoothing report: what was measured, as a table, as files, and compared with another."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from keras_graphattn.analysis.smoothing import files

Array = np.ndarray[Any, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class TokenMeasures:
    """Figures of the tokens at one place of a model, means over the sequences.

    The formulas are in `keras_graphattn.analysis.smoothing.measures`.

    Attributes:
        cosine: Mean cosine of all pairs of different tokens (`pair_similarity`).
        absolute_cosine: The same of the absolute cosine.
        dc_share: Share of the constant component in the energy (`dc_share`).
        effective_rank: Number of singular values that count (`effective_rank`).
        singular_values: Singular values of the tokens of a sequence, the largest first.

    Example:

    >>> measures = TokenMeasures(0.5, 0.5, 0.6, 2.0, np.array([2.0, 1.0]))
    >>> measures.effective_rank
    2.0
    """

    cosine: float
    absolute_cosine: float
    dc_share: float
    effective_rank: float
    singular_values: Array


@dataclass(frozen=True)
class HeadMeasures:
    """Figures of the N heads of one attention layer, means over the sampled sequences.

    A is the attention matrix, H the operator that the layer applies to its values: the filter of A,
    or A itself where there is no filter. The formulas are in
    `keras_graphattn.analysis.smoothing.measures`.

    Attributes:
        values_cosine, values_absolute_cosine: Similarity of the values of a head, (N,).
        outputs_cosine, outputs_absolute_cosine: Similarity of H times the values, (N,).
        entropy: Mean entropy of the rows of A in nats, (N,) (`attention_entropy`).
        sink_share: Share of attention that the most attended token gets, (N,) (`sink_share`).
        frequencies: Frequencies in periods for each token, from 0 to at most 0.5, (F,).
        attention_fourier: Fourier response of A, (N, F) (`fourier_response`); `None` without A.
        operator_fourier: Fourier response of H, (N, F).
        eigenvalues: Moduli of the eigenvalues of A, of H where there is no A, the largest first,
            (N, n) (`spectral_response`); `None` if they were left out.
        operator_eigenresponse: Responses of H to the eigenvectors, (N, n).
        attention_map: A of the first sequence without its padding, (N, n, n); `None` without A.
        operator_map: H of the first sequence, (N, n, n).

    Example:

    >>> from keras_graphattn.analysis import inspect_smoothing
    >>> model = keras.Sequential([keras.Input((4, 8)), GraphFilterAttention(2, 4)])
    >>> report = inspect_smoothing(model, np.random.default_rng(0).normal(size=(2, 4, 8)))
    >>> report.layers[0].heads.attention_map.shape
    (2, 4, 4)
    """

    values_cosine: Array
    values_absolute_cosine: Array
    outputs_cosine: Array
    outputs_absolute_cosine: Array
    entropy: Array
    sink_share: Array
    frequencies: Array
    attention_fourier: Array | None
    operator_fourier: Array
    eigenvalues: Array | None
    operator_eigenresponse: Array | None
    attention_map: Array | None
    operator_map: Array

    def high_gain(self, of: str = "operator") -> float:
        """Mean Fourier response of all heads at frequencies above half of the highest one.

        Args:
            of: `"operator"` for H or `"attention"` for A.
        """
        response = getattr(self, f"{of}_fourier")
        if response is None:
            return float("nan")
        return float(response[:, self.frequencies > 0.25].mean())


@dataclass(frozen=True)
class FilterCurve:
    """What a filter makes of each eigenvalue (`keras_graphattn.analysis.smoothing.curves`).

    Attributes:
        points: Eigenvalues of A, or singular values of an `AttentiveGraphFilter`, (points,).
        response: h(lambda) for each head, (N, points); (1, points) where all heads share it.

    Example:

    >>> curve = FilterCurve(np.array([-1.0, 1.0]), np.array([[2.0, 0.0]]))  # I - A, one head
    >>> curve.response.shape
    (1, 2)
    """

    points: Array
    response: Array


@dataclass(frozen=True)
class LayerReport:
    """What was measured at one attention layer.

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
        coefficients: The filter's learned coefficients by name, each (..., N).
        curve: The filter's response; `None` without a filter.

    Example:

    >>> from keras_graphattn.analysis import inspect_smoothing
    >>> model = keras.Sequential([keras.Input((4, 8)), GraphFilterAttention(2, 4)])
    >>> report = inspect_smoothing(model, np.random.default_rng(0).normal(size=(2, 4, 8)))
    >>> report.layers[0].coefficients["linear_coefficient"].tolist()
    [1.0, 1.0]
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
    curve: FilterCurve | None

    def summary(self) -> Row:
        """One number for each figure: means over heads, and those of the tokens at each place."""
        row: Row = {"not_finite": self.not_finite}
        for place in ("before", "after", "block"):
            found = getattr(self, place)
            for name in ("cosine", "absolute_cosine", "dc_share", "effective_rank"):
                row[f"{place}_{name}"] = getattr(found, name, float("nan"))
        for name in ("values_cosine", "outputs_cosine", "entropy", "sink_share"):
            row[name] = float("nan") if self.heads is None else _mean(getattr(self.heads, name))
        for of in ("attention", "operator"):
            row[f"{of}_high_gain"] = (
                float("nan") if self.heads is None else self.heads.high_gain(of)
            )
        return row


@dataclass(frozen=True)
class SmoothingReport:
    """What `inspect_smoothing` has measured. `print(report)` is a table of it.

    Attributes:
        model: The model's name.
        layers: One `LayerReport` for each attention layer, in the order of their calls.
        not_measured: Attention layers of which nothing was measured, with the reason.
        sequences: Number of sequences whose tokens were measured.
        sampled: Number of sequences whose operators and singular values were measured.

    Example:

    >>> from keras_graphattn.analysis import inspect_smoothing
    >>> model = keras.Sequential([keras.Input((4, 8)), GraphFilterAttention(2, 4)])
    >>> report = inspect_smoothing(model, np.random.default_rng(0).normal(size=(2, 4, 8)))
    >>> len(report.layers), report.sequences, report.layers[0].reason
    (1, 2, None)
    """

    model: str
    layers: list[LayerReport]
    not_measured: dict[str, str]
    sequences: int
    sampled: int

    def __str__(self) -> str:
        return files.table(self)

    def compare(self, other: "SmoothingReport") -> "SmoothingComparison":
        """This report beside another one, layer by layer in their order.

        Args:
            other: A report, such as that of the same model with another attention.

        Raises:
            ValueError: If `other` is not a report.
        """
        if not isinstance(other, SmoothingReport):
            raise ValueError(f"`other` must be a SmoothingReport. Received: other={other!r}")
        return SmoothingComparison(self, other)

    def plot(self) -> Any:
        """A figure with all pictures: similarity, responses, singular values, filters.

        Returns:
            A matplotlib figure.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        from keras_graphattn.analysis.smoothing.overview import overview

        return overview(self)

    def rows(self) -> Iterator[Row]:
        """All figures but the maps, one number in each row.

        Yields:
            Dictionaries with `depth` (from 0), `path`, `kind`, `place` (`"tokens"`, `"before"`,
            `"after"`, `"block"`, `"heads"` or `"filter"`), `measure`, `head`, `index` (of the
            frequency or singular value), and `value`.
        """
        for depth, layer in enumerate(self.layers):
            start = {"depth": depth, "path": layer.path, "kind": layer.kind}
            for place, measure, array, has_heads in _arrays(layer):
                for at in np.ndindex(array.shape):
                    head = at[0] if has_heads and at else ""
                    rest = at[1:] if has_heads else at
                    yield {
                        **start,
                        "place": place,
                        "measure": measure,
                        "head": head,
                        "index": " ".join(map(str, rest)),
                        "value": float(array[at]),
                    }

    def to_csv(self, path: str | Path) -> None:
        """Writes all figures but the maps to a CSV file, as `rows` has them.

        The file is written whole or not at all.
        """
        files.write_csv(Path(path), files.COLUMNS, self.rows())

    def to_json(self, path: str | Path) -> None:
        """Writes all figures but the maps to a JSON file, in the form of the report's attributes.

        NaN becomes `null`. The file is written whole or not at all.
        """
        files.write_json(Path(path), self)


@dataclass(frozen=True)
class SmoothingComparison:
    """Two reports side by side. `print(comparison)` is a table of both.

    Attributes:
        first: A report.
        second: Another one.

    Example:

    >>> from keras_graphattn.analysis import inspect_smoothing
    >>> model = keras.Sequential([keras.Input((4, 8)), GraphFilterAttention(2, 4)])
    >>> report = inspect_smoothing(model, np.random.default_rng(0).normal(size=(2, 4, 8)))
    >>> len(str(report.compare(report)).splitlines())  # two names, a header, one layer
    3
    """

    first: SmoothingReport
    second: SmoothingReport

    def __str__(self) -> str:
        return files.comparison_table(self.first, self.second)

    def plot(self) -> Any:
        """A figure with the similarity by depth of both.

        Returns:
            A matplotlib figure.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        from keras_graphattn.analysis.smoothing import pictures

        return pictures.plot_similarity([self.first, self.second]).figure


def _arrays(layer: LayerReport) -> Iterator[tuple[str, str, Array, bool]]:
    """The figures of a layer: place, name, array, and whether its first axis is that of heads."""
    yield "tokens", "not_finite", np.asarray(layer.not_finite), False
    for place in ("before", "after", "block"):
        found = getattr(layer, place)
        for field in fields(TokenMeasures) if found is not None else ():
            yield place, field.name, np.asarray(getattr(found, field.name)), False
    for field in fields(HeadMeasures) if layer.heads is not None else ():
        array = getattr(layer.heads, field.name)
        if array is not None and not field.name.endswith("_map"):
            yield "heads", field.name, array, field.name != "frequencies"
    for name, array in layer.coefficients.items():  # (..., N)
        has_heads = array.ndim > 0 and not name.startswith("theta")
        yield "filter", name, np.moveaxis(array, -1, 0) if has_heads else array, has_heads
    if layer.curve is not None:
        yield "filter", "points", layer.curve.points, False
        yield "filter", "response", layer.curve.response, True


def _mean(array: Array) -> float:
    known = array[~np.isnan(array)]
    return float(known.mean()) if known.size else float("nan")
