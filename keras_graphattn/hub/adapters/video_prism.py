"""The adapter of the attention of VideoPrism: a soft cap, in towers of frames, videos and texts.

`VideoPrismAttention` has no method that attends, so the hook is `call`. The encoders call it on one
tensor. The patches of a frame see each other, then the frames at a patch, then all of a video; the
tokens of a text see those before them. The layer caps its scores, s -> c tanh(s / c), and drops
entries of A. With `use_per_dim_scale` it has a learned scale of each feature of the queries.

The layer that pools a video into one vector has the same class of attention with one query, for
which A is no square. It stays as it is.

In KerasHub 0.32 the `get_config` of the encoders' block has an argument that its constructor does
not take.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from keras import ops

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import constructor_config
from keras_graphattn.hub.adapters.encoder import EncoderAdapter
from keras_graphattn.hub.logits import DROPOUT, SOFT_CAP, Logits

Tensor = Any


class VideoPrismHook:
    """The method of `VideoPrismAttention` that a converted one overrides."""

    attend: Any
    query_dense: Any
    key_dense: Any
    value_dense: Any
    output_dense: Any
    per_dim_scale_layer: Any
    use_per_dim_scale: bool

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        attention_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        key = query if key is None else key
        lengths = query.shape[1], key.shape[1], value.shape[1]
        if len(set(lengths)) > 1:
            raise ValueError(
                f"{type(self).__name__} is self-attention: queries, keys and values must be as "
                f"many, or A is not square. Received: {lengths[0]} queries, {lengths[1]} keys and "
                f"{lengths[2]} values."
            )
        if attention_mask is not None and len(attention_mask.shape) == 2:  # (B, S)
            attention_mask = ops.expand_dims(attention_mask, 1)
        queries = self.query_dense(query)
        if self.use_per_dim_scale:
            queries = self.per_dim_scale_layer(queries)
        outputs = self.attend(
            queries, self.key_dense(key), self.value_dense(value), attention_mask, training
        )
        return self.output_dense(outputs)


class VideoPrismAdapter(EncoderAdapter):
    """For `VideoPrismAttention`."""

    classes: Sequence[str] = ("VideoPrismAttention",)
    backbones: Sequence[str] = ("VideoPrismBackbone",)
    inner_layers: Sequence[str] = ("VideoPrismEncoder", "VideoPrismEncoderBlock")
    holder_configs: ClassVar[Mapping[str, Any]] = {"VideoPrismEncoderBlock": constructor_config}
    hook = VideoPrismHook

    def is_causal(self, parent: Any, layer: Any) -> bool:
        return bool(getattr(parent, "is_causal", False))

    def sizes(self, layer: Any) -> Sizes:
        soft_cap = () if layer.attention_logit_soft_cap is None else (SOFT_CAP,)
        return Sizes(
            num_heads=layer.num_heads,
            key_dim=layer.key_dim,
            scale=1.0 if layer.use_per_dim_scale else layer.key_dim**-0.5,
            dropout=layer.dropout_rate,
            beyond_softmax=(*soft_cap, DROPOUT),
        )

    def logits(self, layer: Any, length: Any, given: Tensor | None = None) -> Logits:
        return Logits(soft_cap=layer.attention_logit_soft_cap)

    def dropped(self, layer: Any, matrix: Tensor, training: bool | None) -> Tensor:
        return layer.dropout_layer(matrix, training=training)
