"""The base of the layers with a mask of factors, which may attend by kernel features."""

from typing import Any

from keras import ops

from keras_graphattn import masks
from keras_graphattn.checks import seed_of
from keras_graphattn.feature_maps import FeatureMap
from keras_graphattn.layers.base import (
    AttentionLayer,
    Call,
    Shape,
    Tokens,
    finite_tokens,
    inputs_of,
    is_key_mask,
    key_mask_of,
)
from keras_graphattn.masks.mask import Mask
from keras_graphattn.numerics.custom_gradient import kept_with
from keras_graphattn.numerics.precision import without_padding
from keras_graphattn.operators.kernel import KernelOperator
from keras_graphattn.operators.operator import Visibility, all_of
from keras_graphattn.types import Bool, Float, Tensor


class KernelLayer(AttentionLayer):
    """Base of the layers whose attention is D^-1 [(phi(Q) phi(K)^T) o M].

    A `feature_map` of `None` has no weights. The seed of a random map is the map's own, or else
    that of the layer.
    """

    takes_mask_inputs = True

    max_rank = 3
    mask: Mask | None
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

    def add_coefficients(self, query_shape: Shape) -> None:
        super().add_coefficients(query_shape)
        if self.feature_map is not None:
            # the map's own seed has priority over the layer's
            seed = self.seed if getattr(self.feature_map, "seed", None) is None else None
            drawn = self.feature_map.weights(self.num_heads, self.key_dim, seed)  # {} for most maps
            self._feature_weight_names = tuple(drawn)
            for name, value in drawn.items():
                setattr(self, name, self.add_array(name, value, trainable=False))
        if self.mask is not None:
            shape = (*query_shape[:2], self.num_heads, self.value_dim)
            self.mask.build_in(self, shape, tuple(query_shape))

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

    def without_non_finite(
        self, *tensors: Float[Tensor, "B ..."]
    ) -> tuple[tuple[Float[Tensor, "B ..."], ...], Bool[Tensor, "B ..."] | None]:
        """`finite_tokens` under a mask that hides keys.

        Such a mask separates segments, components and the future by factors of 0, and 0 times NaN
        is NaN. So this sets such tokens to zero. Rows that see one become NaN at the end.
        """
        if self.mask is None or not self.mask.hides_keys:
            return tensors, None
        return finite_tokens(*tensors)

    def features(
        self,
        query: Float[Tensor, "B T N H"],
        key: Float[Tensor, "B S N H"],
        queries: Bool[Tensor, "B T"] | None,
        keys: Bool[Tensor, "B S"] | None,
        fixed_scale: bool,
    ) -> tuple[Float[Tensor, "B T N m"], Float[Tensor, "B S N m"]]:
        """phi(Q) and phi(K), in at least float32, with zeros in padding."""
        feature_map: Any = self.feature_map
        weights = {name: getattr(self, name) for name in self._feature_weight_names}
        phi_query = feature_map.query_features(query, weights)
        phi_key = feature_map.key_features(key, weights, keys, fixed_scale)
        return without_padding(phi_query, queries), without_padding(phi_key, keys)

    def kernel_operator(self, tokens: Tokens, call: Call) -> KernelOperator:
        """The operator of features, under the layer's mask and all masks of the call."""
        mask, inputs, queries, keys = self._mask_of(tokens, call)
        fixed_scale = mask is not None and mask.hides_keys
        phi_query, phi_key = self.features(tokens.query, tokens.key, queries, keys, fixed_scale)
        seen = Visibility(None, queries, keys, mask is not None and mask.is_causal)
        return KernelOperator(
            phi_query,
            phi_key,
            mask,
            inputs,
            rows=seen.rows_with_visible_keys(ops.shape(phi_key)[1]),
            non_finite=call.non_finite,
            path=self.attention_path,
            feature_chunk=self.feature_chunk,
        )

    def _mask_of(
        self, tokens: Tokens, call: Call
    ) -> tuple[
        Mask | None, dict[str, Tensor], Bool[Tensor, "B T"] | None, Bool[Tensor, "B S"] | None
    ]:
        """The layer's mask with causality and the `attention_mask` of the call, and its inputs.

        It also returns which queries and which keys are not padding.
        """
        entries, queries, keys, causal, _ = call.visibility
        inputs = dict(call.mask_inputs or {})
        if self.mask is not None and self.mask.reads_tokens:
            inputs = inputs_of(self.mask, tokens.inputs, call)
        if self.mask is None and inputs:
            raise ValueError(
                "`mask_inputs` are for a mask, and this layer has no mask. Received: "
                f"mask_inputs with {sorted(inputs)}. Set `mask`."
            )
        queries, keys = all_of(queries), all_of(keys)
        ours, theirs = tokens.query.shape[1], tokens.value.shape[1]
        of_pairs = causal or not (entries is None or is_key_mask(entries.shape))
        if of_pairs and ours != theirs and None not in (ours, theirs):
            self._refuse_lengths(tokens.query.shape[:2], tokens.value.shape[:2])
        if entries is None:
            return self.joined_mask(causal), inputs, queries, keys
        if is_key_mask(entries.shape):
            keys = all_of(keys, key_mask_of(entries, tokens.key))
            return self.joined_mask(causal), inputs, queries, keys
        if self.attention_path not in ("auto", *Mask.paths):
            raise ValueError(
                "An `attention_mask` for each pair of positions needs a path that forms the pairs. "
                f"Received: attention_mask.shape={tuple(entries.shape)}, path="
                f"{self.attention_path!r}. "
                'Use path="auto", "dense" or "blockwise", or a `mask`.'
            )
        if 1 in entries.shape[-2:]:  # the same for all rows, or for all columns
            pairs = ops.shape(tokens.query)[1], ops.shape(tokens.key)[1]
            entries = ops.broadcast_to(entries, (*ops.shape(entries)[:-2], *pairs))
        inputs["entries"] = ops.cast(entries, "bool")
        return self.joined_mask(causal, entries=True), inputs, queries, keys

    def joined_mask(self, causal: bool, entries: bool = False) -> Any:
        """The mask, times `Causal` and `Entries` if asked for; it shares the mask's weights.

        It is made once, and kept with the mask, or else with the layer.
        """
        mask = self.mask
        causal = causal and not (mask is not None and mask.is_causal)
        if not causal and not entries:
            return mask
        return kept_with(self if mask is None else mask, _joined, causal, entries)


def _joined(owner: KernelLayer | Mask, causal: bool, entries: bool) -> Mask:
    factors: list[Any] = ["causal"] if causal else []
    factors += [owner] if isinstance(owner, Mask) else []
    factors += ["entries"] if entries else []
    return masks.Product(factors) if len(factors) > 1 else masks.get(factors[0])
