"""The adapter of Moonshine's attention: rotary angles as an argument, in encoder and decoder.

`MoonshineMultiHeadAttention` is a subclass of KerasHub's cached attention. Its full pass goes
through `_compute_attention(query, key, value, attention_mask)`, with queries and keys rotated. The
model hands the angles of the new tokens, (t, R), to `call`; the first R features are rotated.
The cache is [B, 2, S, N, H] with rotated keys. Cross-attention is of the same class, has a cache
that the model fills once, and stays as it is. The layer drops entries of A.

Moonshine's blocks hand the dtype of their variables on, and not their policy. So under
"mixed_bfloat16" attention computes in float32 (KerasHub 0.32), converted or not.
"""

import sys
from collections.abc import Sequence
from typing import Any

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import DecoderAdapter
from keras_graphattn.hub.logits import DROPOUT
from keras_graphattn.keras_internals import scale_of

Tensor = Any


class MoonshineHook:
    """The methods of `MoonshineMultiHeadAttention` that a converted one overrides."""

    attend: Any
    attend_cached: Any
    adapter: Any

    def _compute_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> tuple[Tensor, None]:
        return self.attend(query, key, value, attention_mask, training), None

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor,
        rotary_embedding: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Tensor | None = None,
        cache_update_index: Any = None,
        training: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        if cache is None:
            return super().call(  # type: ignore[misc]
                query,
                value,
                key,
                rotary_embedding,
                attention_mask,
                None,
                cache_update_index,
                training,
                **kwargs,
            )
        return self.attend_cached(
            query,
            attention_mask,
            cache,
            cache_update_index,
            training,
            projected=self.adapter.rotated_by(self, query, rotary_embedding),
        )


class MoonshineAdapter(DecoderAdapter):
    """For `MoonshineMultiHeadAttention` over its own tokens, in the encoder and in the decoder."""

    classes: Sequence[str] = ("MoonshineMultiHeadAttention",)
    backbones: Sequence[str] = ("MoonshineBackbone",)
    inner_layers: Sequence[str] = ("MoonshineEncoderBlock", "MoonshineDecoderBlock")
    hook = MoonshineHook

    def is_causal(self, parent: Any, layer: Any) -> bool:
        return bool(layer.use_causal_mask)

    def sizes(self, layer: Any) -> Sizes:
        return Sizes(
            num_heads=layer.num_heads,
            key_dim=layer.key_dim,
            value_dim=layer.value_dim,
            scale=scale_of(layer),
            dropout=layer.dropout,
            beyond_softmax=(DROPOUT,),
        )

    def rotated_by(
        self, layer: Any, inputs: Tensor, angles: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, t, N, H) of tokens (B, t, d), rotated by (t, R) angles."""
        query, key, value = self.projected(layer, inputs, 0)
        if angles is None:
            return query, key, value
        rotate = sys.modules[layer.plain_class.__module__]._apply_rotary_pos_emb
        return rotate(query, angles), rotate(key, angles), value

    def dropped(self, layer: Any, matrix: Tensor, training: bool | None) -> Tensor:
        return layer._dropout_layer(matrix, training=training)

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        return layer._output_dense(outputs)
