"""Sums of the figures over all batches, in memory that does not grow with their number."""

from collections.abc import Callable
from typing import Any

import numpy as np

from keras_graphattn.analysis.smoothing import measures
from keras_graphattn.analysis.smoothing.curves import coefficients_of, filter_curve
from keras_graphattn.analysis.smoothing.passes import Call
from keras_graphattn.analysis.smoothing.probes import to_numpy
from keras_graphattn.analysis.smoothing.report import (
    FilterCurve,
    HeadMeasures,
    LayerReport,
    TokenMeasures,
)

Array = np.ndarray[Any, Any]
TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1}  # of the values times the operator
PLACES = ("before", "after", "block")


class Mean:
    """A running mean of arrays of one shape, without those that are NaN."""

    def __init__(self) -> None:
        self.total: Any = 0.0
        self.count: Any = 0

    def add(self, value: Any) -> None:
        known = ~np.isnan(value)
        self.total = self.total + np.where(known, value, 0.0)
        self.count = self.count + known

    def result(self) -> Array:
        """The mean; NaN where nothing was added."""
        with np.errstate(invalid="ignore"):
            return np.asarray(np.divide(self.total, self.count), "float64")


class CurveMean:
    """A mean of curves (..., points) of sequences of different lengths.

    Curves of one length are added up. At the end, all are interpolated at the places of the
    longest.

    Args:
        places: Function from the length of a sequence to the places of its points.
    """

    def __init__(self, places: Callable[[int], Array]) -> None:
        self.places = places
        self.sums: dict[int, tuple[Array, int]] = {}

    def add(self, curve: Array, length: int) -> None:
        total, count = self.sums.get(length, (np.zeros(curve.shape), 0))
        self.sums[length] = (total + curve, count + 1)

    def points(self) -> Array:
        """The places of the points of the result."""
        return self.places(max(self.sums))

    def result(self) -> Array | None:
        """The mean curve; `None` where nothing was added."""
        if not self.sums:
            return None
        total: Any = 0.0
        for length, (curve, _) in self.sums.items():
            if length == max(self.sums):
                total = total + curve
                continue
            rows = curve.reshape(-1, curve.shape[-1])
            longer = [np.interp(self.points(), self.places(length), row) for row in rows]
            total = total + np.reshape(longer, (*curve.shape[:-1], -1))
        mean: Array = total / sum(count for _, count in self.sums.values())
        return mean


def _frequencies(length: int) -> Array:
    return np.arange(length // 2 + 1) / length


def _ranks(length: int) -> Array:
    return np.linspace(0.0, 1.0, length)


class TokenCollector:
    """The figures of tokens at one place."""

    def __init__(self) -> None:
        self.cosine, self.absolute, self.constant, self.rank = Mean(), Mean(), Mean(), Mean()
        self.singular = np.zeros(0)
        self.decomposed = 0

    def add(self, tokens: Array, decompose: bool) -> None:
        """Adds one sequence (n, d) if it is finite; singular values only where asked for."""
        if not np.isfinite(tokens).all():
            return
        cosine, absolute = measures.pair_similarity(tokens)
        self.cosine.add(cosine)
        self.absolute.add(absolute)
        self.constant.add(measures.dc_share(tokens))
        if not decompose:
            return
        values = measures.singular_values(tokens)
        self.rank.add(measures.effective_rank(values))
        size = max(len(values), len(self.singular))
        self.singular = np.pad(self.singular, (0, size - len(self.singular)))
        self.singular[: len(values)] += values
        self.decomposed += 1

    def result(self) -> TokenMeasures | None:
        """The means; `None` where there were no tokens."""
        if np.all(np.asarray(self.cosine.count) + np.asarray(self.constant.count) == 0):
            return None
        return TokenMeasures(
            cosine=float(self.cosine.result()),
            absolute_cosine=float(self.absolute.result()),
            dc_share=float(self.constant.result()),
            effective_rank=float(self.rank.result()),
            singular_values=self.singular / max(self.decomposed, 1),
        )


class LayerCollector:
    """The figures of one attention layer.

    Args:
        layer: The layer.
        path: Its path, with the number of the call for layers that are called several times.
        most_tokens: From longer sequences, so many tokens at equal distances are measured.
        eigenvalues: Whether to find the eigenvalues of A.
    """

    def __init__(self, layer: Any, path: str, most_tokens: int, eigenvalues: bool) -> None:
        self.layer, self.path = layer, path
        self.most_tokens, self.eigenvalues = most_tokens, eigenvalues
        self.places = {name: TokenCollector() for name in PLACES}
        self.not_finite = 0  # sequences with tokens that are NaN or infinite
        self.reason: str | None = None
        self.is_disproved = False  # whether a matrix was read that is not that of the layer
        names = ("values_cosine", "values_absolute_cosine", "outputs_cosine")
        self.means = {
            name: Mean() for name in (*names, "outputs_absolute_cosine", "entropy", "sink_share")
        }
        self.curves = {
            "attention_fourier": CurveMean(_frequencies),
            "operator_fourier": CurveMean(_frequencies),
            "eigenvalues": CurveMean(_ranks),
            "operator_eigenresponse": CurveMean(_ranks),
        }
        self.maps: tuple[Array | None, Array | None] = (None, None)  # of the first sequence

    def add(self, call: Call, decompose: int) -> None:
        """Adds one call; the first `decompose` sequences of it are decomposed."""
        tensors = {"before": call.tokens, "after": call.outputs, "block": call.block}
        arrays = {name: to_numpy(x) for name, x in tensors.items() if x is not None}
        for index in range(len(arrays["before"])):
            kept = self._kept(call, index)
            sample = kept[_spread(len(kept), self.most_tokens)]
            found = {
                name: array[index][sample]
                for name, array in arrays.items()
                if array.ndim == 3 and array.shape[1] == arrays["before"].shape[1]
            }
            for name, tokens in found.items():
                self.places[name].add(tokens, index < decompose)
            self.not_finite += not all(np.isfinite(tokens).all() for tokens in found.values())
        reading = call.reading
        self.reason = reading.reason or self.reason
        if reading.operator is None:
            return
        contradiction = _contradiction(reading, call)
        if contradiction is not None:
            self.reason, self.is_disproved = contradiction, True
        if not self.is_disproved:
            for index in range(len(reading.operator)):
                self._add_operator(reading, index, self._kept(call, index))

    def _kept(self, call: Call, index: int) -> Array:
        """The positions of the tokens of one sequence that are not padding."""
        if call.valid is None:
            return np.arange(call.tokens.shape[1])
        return np.flatnonzero(call.valid[index])

    def _add_operator(self, reading: Any, index: int, kept: Array) -> None:
        if len(kept) < 2:
            return
        square = np.ix_(np.arange(reading.operator.shape[1]), kept, kept)
        operator = reading.operator[index][square]  # (N, n, n)
        attention = None if reading.attention is None else reading.attention[index][square]
        for name, x in (("values", reading.values), ("outputs", reading.heads)):
            tokens = np.moveaxis(x[index][kept], 1, 0)  # (N, n, D)
            cosine, absolute = measures.pair_similarity(tokens)
            self.means[f"{name}_cosine"].add(cosine)
            self.means[f"{name}_absolute_cosine"].add(absolute)
        curves = {"operator_fourier": measures.fourier_response(operator)}
        if attention is not None:
            curves["attention_fourier"] = measures.fourier_response(attention)
            self.means["sink_share"].add(measures.sink_share(attention))
            self.means["entropy"].add(measures.attention_entropy(attention))
        if self.eigenvalues:
            basis = operator if attention is None else attention
            pairs = [measures.spectral_response(*x) for x in zip(basis, operator, strict=True)]
            curves["eigenvalues"] = np.stack([moduli for moduli, _ in pairs])
            curves["operator_eigenresponse"] = np.stack([gains for _, gains in pairs])
        for name, curve in curves.items():
            self.curves[name].add(curve, len(kept))
        if self.maps[1] is None:
            self.maps = (attention, operator)

    def result(self) -> LayerReport:
        """The figures of all calls so far."""
        has_operator = bool(self.curves["operator_fourier"].sums) and not self.is_disproved
        curve = filter_curve(self.layer) if self.layer.built else None
        return LayerReport(
            path=self.path,
            kind=type(self.layer).__name__,
            **{name: place.result() for name, place in self.places.items()},
            heads=self._heads() if has_operator else None,
            reason=None if has_operator else self.reason,
            not_finite=self.not_finite,
            coefficients=coefficients_of(self.layer),
            curve=None if curve is None else FilterCurve(*curve),
        )

    def _heads(self) -> HeadMeasures:
        means = {name: mean.result() for name, mean in self.means.items()}
        heads = means["values_cosine"].shape
        found: dict[str, Any] = {n: np.broadcast_to(mean, heads) for n, mean in means.items()}
        found |= {name: curve.result() for name, curve in self.curves.items()}
        return HeadMeasures(
            **found,
            frequencies=self.curves["operator_fourier"].points(),
            attention_map=self.maps[0],
            operator_map=np.asarray(self.maps[1]),
        )


def _spread(count: int, most: int) -> Array:
    """At most so many of `count` places, at equal distances, the first and the last among them."""
    if count <= most:
        return np.arange(count)
    return np.round(np.linspace(0, count - 1, most)).astype(int)


def _contradiction(reading: Any, call: Call) -> str | None:
    """Why the operator is not that of the layer: its values times it must be its outputs.

    The report has the part of it that is between tokens. So no token may see padding.
    """
    if not np.isfinite(reading.operator).all():
        return "its operator has entries that are not finite"
    values = np.where(np.isfinite(reading.values), reading.values, 0.0).astype("float64")
    expected = np.einsum("bnts,bsnd->btnd", reading.operator.astype("float64"), values)
    valid = np.ones(reading.heads.shape[:2], bool)
    if call.valid is not None:
        valid = call.valid[: len(valid)]
    difference = (expected - reading.heads)[valid]
    size = np.sqrt(np.mean(reading.heads[valid].astype("float64") ** 2)) if valid.any() else 0.0
    policy = getattr(call.layer, "compute_dtype", "float32")
    tolerance = TOLERANCE.get(policy, 1e-3)
    if np.sqrt(np.mean(difference**2)) > tolerance * size + 1e-6:
        return "its outputs are not the product of one matrix for each head and its values"
    to_padding = valid[:, None, :, None] & ~valid[:, None, None, :]  # (B, 1, T, T)
    if np.max(np.abs(reading.operator), where=to_padding, initial=0.0) > tolerance:
        return "its tokens see padding"
    return None
