"""Positive orthogonal random features, FAVOR+: products are unbiased estimates of exp(q . k).

A factor on all features of one query cancels in the normaliser. So each query is scaled to a
largest feature of 1. For keys, only a common factor of all keys cancels. If every query sees every
key, this factor is the largest feature of all keys. If a mask hides keys, the factor must not
depend on the keys: a causal layer would see the future through rounding, and a state of past keys
would have another scale than later keys. Then the factor is fixed: exp(`favor_shift`). It depends
only on the random features and keeps every key below exp(60). This limits the range: keys whose
squared norm is above about 170 sqrt(H) become 0.

Source: Choromanski et al., "Rethinking Attention with Performers", arXiv 2009.14794.
"""

import math
from collections.abc import Mapping

import keras
import numpy as np
from keras import ops

from keras_graphattn.checks import optional, seed_of, whole
from keras_graphattn.feature_maps.feature_map import FeatureMap
from keras_graphattn.numerics.precision import HIDDEN_LOGIT, at_least_float32, larger, largest
from keras_graphattn.types import Bool, Float, Tensor

LARGEST_EXPONENT = 60.0  # of a key's feature with the fixed factor


def orthogonal_features(
    num_heads: int, key_dim: int, num_features: int, seed: int | None = None
) -> np.ndarray:
    """Directions (N, H, m): Gaussian vectors, orthogonal in blocks of `key_dim`; Sec. 2.4."""
    generator = np.random.default_rng(seed_of(seed))
    blocks = -(-num_features // key_dim)
    gaussian = generator.standard_normal((num_heads, blocks, key_dim, key_dim))
    orthogonal, triangular = np.linalg.qr(gaussian)
    signs = np.sign(np.diagonal(triangular, axis1=-2, axis2=-1))
    orthogonal = orthogonal * signs[..., None, :]  # makes signs uniform: LAPACK prefers some
    orthogonal = np.moveaxis(orthogonal, 1, 2).reshape((num_heads, key_dim, blocks * key_dim))
    lengths = np.linalg.norm(generator.standard_normal((num_heads, num_features, key_dim)), axis=-1)
    return np.asarray(orthogonal[..., :num_features] * lengths[:, None, :], dtype="float32")


def favor_shift(directions: Float[Tensor, "N H m"]) -> Float[Tensor, "N 1"]:
    """The number that the fixed factor subtracts from the exponents of all keys.

    An exponent w . x - |x|^2 / 2 is at most |w|^2 / 2. The shift reduces this to
    `LARGEST_EXPONENT`, so nothing overflows. It is 0 for heads of up to about 100 channels.
    """
    longest = largest(ops.sum(ops.square(directions), axis=1), axis=1, keepdims=True)
    return larger(0.5 * longest - LARGEST_EXPONENT, 0.0)


def _exponents(
    x: Float[Tensor, "B T N H"], directions: Float[Tensor, "N H m"]
) -> Float[Tensor, "B T N m"]:
    """w . x' - |x'|^2 / 2 with x' = x / H^(1/4)."""
    x = at_least_float32(x) * math.pow(x.shape[-1], -0.25)
    directions = ops.cast(directions, x.dtype)
    half_square = 0.5 * ops.sum(ops.square(x), axis=-1, keepdims=True)
    return ops.einsum("btnh,nhm->btnm", x, directions) - half_square


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Favor(FeatureMap):
    """FAVOR+: random features whose products are an unbiased estimate of softmax attention.

    Args:
        num_features: Number m of random features. H log(H) by default, where H is the size of a
            head.
        seed: Seed of the draw; the layer's own `seed` by default, which follows
            `keras.utils.set_random_seed`.

    Raises:
        ValueError: If `num_features` is not a positive integer, or `seed` is negative.

    Weights:
        `directions` of shape (num_heads, key_dim, m), not trained.

    Example:

    >>> Favor(num_features=16, seed=0).weights(num_heads=2, key_dim=8)["directions"].shape
    (2, 8, 16)

    Source: Choromanski et al., "Rethinking Attention with Performers", arXiv 2009.14794, Sec. 2.
    """

    def __init__(self, num_features: int | None = None, seed: int | None = None) -> None:
        self._num_features = optional(whole())("num_features", num_features, {})
        self.seed = optional(whole(0))("seed", seed, {})

    def __call__(self, x: Float[Tensor, "B T N H"]) -> Float[Tensor, "B T N m"]:
        raise TypeError(
            "FAVOR+ features of queries and of keys have different scales. Use `query_features` "
            "and `key_features`."
        )

    def num_features(self, num_heads: int, key_dim: int) -> int:
        return self._num_features or int(key_dim * max(1.0, math.log(key_dim)))

    def weights(
        self, num_heads: int, key_dim: int, seed: int | None = None
    ) -> dict[str, np.ndarray]:
        count = self.num_features(num_heads, key_dim)
        # a seed from the caller, such as for a new draw, replaces the map's
        seed = self.seed if seed is None else seed
        return {"directions": orthogonal_features(num_heads, key_dim, count, seed)}  # (N, H, m)

    def query_features(
        self, query: Float[Tensor, "B T N H"], weights: Mapping[str, Float[Tensor, "N H m"]]
    ) -> Float[Tensor, "B T N m"]:
        exponents = _exponents(query, weights["directions"])  # Lemma 1 and Eq. 8
        return ops.exp(exponents - ops.stop_gradient(largest(exponents, axis=-1, keepdims=True)))

    def key_features(
        self,
        key: Float[Tensor, "B S N H"],
        weights: Mapping[str, Float[Tensor, "N H m"]],
        mask: Bool[Tensor, "B S"] | None,
        fixed_scale: bool,
    ) -> Float[Tensor, "B S N m"]:
        exponents = _exponents(key, weights["directions"])
        if fixed_scale:
            return ops.exp(
                exponents - favor_shift(ops.cast(weights["directions"], exponents.dtype))
            )
        if mask is not None:
            mask = ops.cast(mask, "bool")[:, :, None, None]
            exponents = ops.where(mask, exponents, ops.cast(HIDDEN_LOGIT, exponents.dtype))
        # the largest feature of all keys that count becomes 1
        return ops.exp(
            exponents - ops.stop_gradient(largest(exponents, axis=(1, 3), keepdims=True))
        )

    def get_config(self) -> dict[str, int | None]:
        return {"num_features": self._num_features, "seed": self.seed}
