"""The feature maps of a layer of kernel attention: by name, drawn at random, or the user's own."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_graphattn.layers.options import is_one_of
from keras_graphattn.ops.arguments import is_whole
from keras_graphattn.ops.feature_maps import (
    FEATURE_MAPS,
    favor_key_features,
    favor_query_features,
    orthogonal_features,
)
from keras_graphattn.ops.precision import at_least_float32, zero_where_masked
from keras_graphattn.ops.wide import largest

Tensor = Any


def check_feature_map(feature_map: Any, num_features: int | None) -> Any:
    """The feature map as a name or a registered callable.

    Raises:
        ValueError: For an unknown name, a callable that is not registered with Keras, and for
            `num_features` that is not a positive integer or that the feature map does not take.
    """
    if not callable(feature_map) and not is_one_of(feature_map, ("favor", *FEATURE_MAPS)):
        raise ValueError(
            f"`feature_map` must be one of {['favor', *FEATURE_MAPS]} or a registered callable. "
            f"Received: feature_map={feature_map!r}"
        )
    if callable(feature_map):
        name = keras.saving.get_registered_name(feature_map)
        if keras.saving.get_registered_object(name) is not feature_map:
            raise ValueError(
                "A callable `feature_map` must be registered, so that the layer can be saved: "
                "decorate it with @keras.saving.register_keras_serializable(). Received: "
                f"feature_map={feature_map!r}"
            )
    if num_features is None:
        return feature_map
    if feature_map != "favor" or not is_whole(num_features) or not 1 <= num_features < 2**31:
        raise ValueError(
            '`num_features` is the number of random features of feature_map="favor" and must be '
            "an integer of at least 1 and less than 2147483648. Received: "
            f"feature_map={feature_map!r}, num_features={num_features!r}"
        )
    return feature_map


class KernelFeatures:
    """The half of `MaskedKernelAttention` that makes phi(Q) and phi(K)."""

    feature_map: Any
    num_features: int | None
    num_heads: int
    key_dim: int
    seed: int | None
    add_weight: Any

    def _add_directions(self) -> None:
        if self.feature_map != "favor":
            return
        count = self.feature_count
        drawn = orthogonal_features(self.num_heads, self.key_dim, count, self.seed)
        self.directions = self.add_weight(
            name="directions",
            shape=drawn.shape,
            initializer=lambda shape, dtype: ops.convert_to_tensor(drawn, dtype=dtype),
            trainable=False,
            autocast=False,
        )

    @property
    def feature_count(self) -> int:
        """Number m of features of each head."""
        if self.feature_map == "favor":
            default = int(self.key_dim * max(1.0, np.log(self.key_dim)))
            return self.num_features or default
        if not callable(self.feature_map):
            return self.key_dim
        shape = (1, 1, self.num_heads, self.key_dim)
        spec = keras.KerasTensor(shape, "float32")
        return int(keras.backend.compute_output_spec(self.feature_map, spec).shape[-1])

    def redraw_features(self, seed: int | None = None) -> None:
        """Draws new random directions for `feature_map="favor"`.

        Call it between epochs: under `fit` on JAX, weights are out of reach within an epoch.

        Args:
            seed: Seed of the draw; a fresh one by default.

        Raises:
            ValueError: For another feature map, and before the layer is built.
        """
        if self.feature_map != "favor" or not hasattr(self, "directions"):
            raise ValueError(
                'Only a built layer with feature_map="favor" has random features. Received: '
                f"feature_map={self.feature_map!r}"
            )
        count = self.feature_count
        drawn = orthogonal_features(self.num_heads, self.key_dim, count, seed)
        self.directions.assign(drawn)

    def _query_features(self, query: Tensor, mask: Tensor | None, scaled: bool) -> Tensor:
        """phi(Q), (B, T, N, m) in float32; padded queries have none.

        With `scaled`, the largest feature of each query is 1: a row of A does not depend on the
        scale, and a query that is huge cannot overflow beside keys and values that are.
        """
        if self.feature_map == "favor":  # scaled by itself
            features = favor_query_features(query, at_least_float32(self.directions))
        else:
            features = self._mapped(query)
            if scaled:
                top = ops.stop_gradient(largest(features, axis=-1, keepdims=True))
                one = ops.cast(1.0, features.dtype)
                features = features / ops.where(top > 0.0, top, one)
        return _without_padding(features, mask)

    def _key_features(self, key: Tensor, mask: Tensor | None, fixed_scale: bool) -> Tensor:
        """phi(K), (B, S, N, m) in float32; padded keys have none."""
        if self.feature_map == "favor":
            directions = at_least_float32(self.directions)
            features = favor_key_features(key, directions, mask, fixed_scale)
        else:
            features = self._mapped(key)
        return _without_padding(features, mask)

    def _mapped(self, x: Tensor) -> Tensor:
        function = FEATURE_MAPS.get(self.feature_map) if isinstance(self.feature_map, str) else None
        return at_least_float32((function or self.feature_map)(at_least_float32(x)))


def _without_padding(features: Tensor, mask: Tensor | None) -> Tensor:
    return features if mask is None else zero_where_masked(features, mask[:, :, None, None])
