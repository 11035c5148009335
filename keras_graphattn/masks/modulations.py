"""The modulation f of graph random features at the start: f * f holds the series' coefficients."""

from typing import Any, NamedTuple

import numpy as np
import scipy.special

from keras_graphattn.checks import numpy_of, one_of, whole
from keras_graphattn.masks.topology import finite
from keras_graphattn.ops.graphs.graphs import Array
from keras_graphattn.ops.graphs.random_features import modulation_of_series

SERIES = ("diffusion", "regularized_laplacian", "random_walk")
WALK_LENGTH = 8


class Modulation(NamedTuple):
    """The settings of a series, checked.

    Attributes:
        series: Its name, or its coefficients as plain lists.
        strength: A number or one per head; `None` for given coefficients.
        start: f, of shape (L, 1) or (L, num_heads).
    """

    series: Any
    strength: Any
    start: Array


def read_modulation(series: Any, strength: Any, walk_length: Any) -> Modulation:
    """Reads the arguments `series`, `strength` and `walk_length` of a mask.

    Raises:
        ValueError: For unknown names, numbers out of range, and a modulation with a negative value.

    Example:

    >>> read_modulation([1.0, 2.0, 3.0], None, None).start.ravel().tolist()
    [1.0, 1.0, 1.0]
    """
    if not isinstance(series, str) and numpy_of(series).ndim in (1, 2):
        return _of_coefficients(series, strength, walk_length)
    name = one_of(*SERIES)("series", series, {})
    length = whole()("walk_length", WALK_LENGTH if walk_length is None else walk_length, {})
    default = 0.5 if name == "random_walk" else 1.0
    strength = finite("strength", default if strength is None else strength, positive=True)
    numbers = np.atleast_1d(np.asarray(strength, "float64"))
    if numbers.ndim > 1 or (name == "random_walk" and (numbers >= 1.0).any()):
        limit = ", below 1 for a random walk" if name == "random_walk" else ""
        raise ValueError(
            f"`strength` must be a positive number or one per head{limit}. Received: "
            f"strength={strength!r}"
        )
    return Modulation(name, strength, _named(name, numbers, np.arange(length)[:, None]))


def _named(name: str, strength: Array, k: Array) -> Array:
    """f_k of a named series, for strengths (heads,) and steps (L, 1): (L, heads)."""
    found: Array
    if name == "diffusion":  # exp(-s / 2) exp(s x / 2)
        found = np.exp(k * np.log(strength / 2.0) - strength / 2.0 - scipy.special.gammaln(k + 1.0))
    elif name == "regularized_laplacian":  # (1 + s - s x)^-1/2
        ratio = strength / (1.0 + strength)
        found = scipy.special.binom(k - 0.5, k) * ratio**k / np.sqrt(1.0 + strength)
    else:  # ((1 - s) + s x)^(L - 1)
        last = k[-1]
        found = scipy.special.binom(last, k) * (1.0 - strength) ** (last - k) * strength**k
    return found


def _of_coefficients(series: Any, strength: Any, walk_length: Any) -> Modulation:
    """Solves f * f = alpha for each column of coefficients, (K,) or (K, num_heads)."""
    numbers = finite("series", series)
    rows = np.asarray(numbers, "float64")
    rows = rows[:, None] if rows.ndim == 1 else rows  # (K, 1) or (K, heads)
    if strength is not None or walk_length not in (None, len(rows)):
        raise ValueError(
            "Given coefficients are the whole series. Received: `series` with "
            f"{len(rows)} coefficients, strength={strength!r}, walk_length={walk_length!r}. Leave "
            "`strength` and `walk_length` out."
        )
    found = np.stack([modulation_of_series(column) for column in rows.T], axis=1)
    if (found < 0.0).any():
        step, head = np.argwhere(found < 0.0)[0]
        raise ValueError(
            "A mask has no negative factors, so the modulation f with f * f = `series` must not be "
            f"negative. Received: series={series!r}, whose f is {found[step, head]:g} at step "
            f"{step}. Use another series, or `ops.graph_random_product` for products only."
        )
    return Modulation(numbers, None, found)
