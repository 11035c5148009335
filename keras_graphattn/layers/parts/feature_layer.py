"""The base of the layers that attend by kernel features, without the n x n matrix."""

from typing import Any

from keras import ops

from keras_graphattn.checks import seed_of
from keras_graphattn.feature_maps import FeatureMap
from keras_graphattn.layers.parts.kernel_features import (
    add_feature_weights,
    key_features,
    query_features,
)
from keras_graphattn.layers.parts.kernel_masks import kernel_mask
from keras_graphattn.layers.parts.mask_layer import MaskLayer
from keras_graphattn.layers.parts.multi_head import Masks
from keras_graphattn.numerics.precision import nan_where
from keras_graphattn.ops.kernel.attention import (
    NormalisedOperator,
    masked_scores,
    unmasked_attention,
)

Tensor = Any


class FeatureLayer(MaskLayer):
    """Base of the layers whose attention is D^-1 [(phi(Q) phi(K)^T) o M].

    A subclass sets `attention_path` and `feature_chunk`. A `feature_map` of `None` has no weights.
    The seed of a map that draws is the map's own, else the layer's.
    """

    feature_map: FeatureMap | None
    attention_path: str
    feature_chunk: int | None
    seed: Any

    def __init__(self, *args: Any, feature_map: FeatureMap | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.feature_map = feature_map
        draws = feature_map is not None and type(feature_map).weights is not FeatureMap.weights
        if draws and self.seed is None and getattr(feature_map, "seed", None) is None:
            self.seed = seed_of(None)  # kept in the configuration

    def build(self, query_shape: Any, value_shape: Any = None, key_shape: Any = None) -> None:
        if self.feature_map is not None:
            add_feature_weights(self)
        super().build(query_shape, value_shape, key_shape)

    def redraw_features(self, seed: int | None = None) -> None:
        """Draws the random weights of the feature map again, such as those of `"favor"`.

        Call it between epochs: under `fit` on JAX, a layer's weights have no values within an
        epoch.

        Args:
            seed: Seed of the draw; a new one by default, which follows
                `keras.utils.set_random_seed`.

        Raises:
            ValueError: For a feature map without random weights, and before the layer is built.
        """
        names = getattr(self, "_feature_weight_names", ())
        if self.feature_map is None or not names:
            raise ValueError(
                "Only a built layer whose feature map draws weights at random can draw them again. "
                f"Received: feature_map={self.feature_map!r}, built={self.built}. Use "
                'feature_map="favor" and build the layer first.'
            )
        drawn = self.feature_map.weights(self.num_heads, self.key_dim, seed_of(seed))
        for name, value in drawn.items():
            getattr(self, name).assign(value)

    def _attend_by_features(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor,
        masks: Masks,
        return_attention_scores: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs of the heads, (B, T, N, D), and A if it is asked for. Only then A is formed."""
        found = kernel_mask(self, masks)
        mask, inputs = found.mask, found.inputs
        fixed_scale = mask is not None and mask.hides_keys
        # features (B, T, N, m) and (B, S, N, m), values (B, S, N, D)
        phi_query = query_features(self, self.query_dense(query), found.queries, fixed_scale)
        phi_key = key_features(self, self.key_dense(key), found.keys, fixed_scale)
        values = self._values(value, masks)
        prepared = None if mask is None else mask.prepare(values, **inputs)

        def attend(x: Tensor) -> Tensor:
            if mask is not None:
                path, chunk = self.attention_path, self.feature_chunk
                return mask.attend(phi_query, phi_key, x, path, chunk, prepared)
            if self.attention_path == "dense":
                return masked_scores(phi_query, phi_key, x, ops.ones((1, 1, 1, 1), x.dtype))
            return unmasked_attention(phi_query, phi_key, x)

        operator = NormalisedOperator(attend, found.sighted_rows(), masks.broken)
        outputs = self._outputs(operator, values)  # (B, T, N, D)
        if not return_attention_scores:
            return outputs, None
        factors = None if mask is None else mask.dense(ops.shape(query)[1], **inputs)
        matrix = _attention_matrix(phi_query, phi_key, factors)
        if operator.broken is not None:
            matrix = nan_where(ops.transpose(operator.broken > 0.0, (0, 2, 1, 3)), matrix)
        return outputs, ops.cast(matrix, self.compute_dtype)

    def _outputs(self, operator: NormalisedOperator, values: Tensor) -> Tensor:
        """A V. Rows that see nothing are 0, and rows that see NaN are NaN."""
        outputs = operator(values)
        return outputs if operator.broken is None else nan_where(operator.broken > 0.0, outputs)


def _attention_matrix(phi_query: Tensor, phi_key: Tensor, factors: Tensor | None) -> Tensor:
    """A itself, (B, N, T, S), from features and factors; a row that sees nothing is 0."""
    matrix = ops.einsum("btnm,bsnm->bnts", phi_query, phi_key)
    if factors is not None:
        matrix = matrix * ops.cast(factors, matrix.dtype)
    total = ops.sum(matrix, axis=-1, keepdims=True)
    return matrix / ops.where(total == 0.0, ops.cast(1.0, total.dtype), total)
