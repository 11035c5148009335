"""Positive orthogonal random features, FAVOR+."""

import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_graphattn.checks import optional, whole
from keras_graphattn.feature_maps.feature_map import FeatureMap
from keras_graphattn.numerics.precision import at_least_float32
from keras_graphattn.ops.kernel.features import (
    favor_key_features,
    favor_query_features,
    orthogonal_features,
)

Tensor = Any


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

    def __call__(self, x: Tensor) -> Tensor:
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
        self, query: Tensor, weights: Mapping[str, Tensor], fixed_scale: bool
    ) -> Tensor:
        return favor_query_features(query, at_least_float32(weights["directions"]))

    def key_features(
        self,
        key: Tensor,
        weights: Mapping[str, Tensor],
        mask: Tensor | None,
        fixed_scale: bool,
    ) -> Tensor:
        directions = at_least_float32(weights["directions"])
        return favor_key_features(key, directions, mask, fixed_scale)

    def get_config(self) -> dict[str, Any]:
        return {"num_features": self._num_features, "seed": self.seed}
