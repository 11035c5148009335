"""The adapter of the attention of Gemma 4's vision tower: groups of heads, norms, two rotations.

The hook is `_compute_attention(q, k, v, attention_mask)`. Queries and keys have norms and are
rotated by row and by column before it; values have a norm, too. The scores are not scaled, and may
be capped. The layer drops entries of A. The mask (B, S) hides the patches that fill an image up.
The rows of those patches stay, as in the original: the tower puts zeros there after each block. An
image of such patches only is an exception: the original answers with the mean of their values, and
a converted layer with zeros.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.encoder import EncoderAdapter
from keras_graphattn.hub.grouped_cache import in_all_heads
from keras_graphattn.hub.logits import DROPOUT, SOFT_CAP, Logits

Tensor = Any


class Gemma4VisionHook:
    """The method of `Gemma4VisionAttention` that a converted one overrides."""

    attend: Any
    sizes: Sizes

    def _compute_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attention_mask: Tensor | None,
        training: bool | None = False,
    ) -> Tensor:
        k, v = (in_all_heads(x, self.sizes.groups) for x in (k, v))  # (B, T, N, H)
        if attention_mask is not None:
            attention_mask = ops.expand_dims(attention_mask, 1)  # (B, 1, S)
        return self.attend(q, k, v, attention_mask, training)


class Gemma4VisionAdapter(EncoderAdapter):
    """For `Gemma4VisionAttention`."""

    classes: Sequence[str] = ("Gemma4VisionAttention",)
    inner_layers: Sequence[str] = (
        *("Gemma4VisionEncoder", "Gemma4VisionEncoderBlock", "Gemma4VisionDecoderBlock"),
    )
    hook = Gemma4VisionHook

    def sizes(self, layer: Any) -> Sizes:
        soft_cap = () if layer.logit_soft_cap is None else (SOFT_CAP,)
        return Sizes(
            num_heads=layer.num_query_heads,
            num_key_value_heads=layer.num_key_value_heads,
            key_dim=layer.head_dim,
            scale=1.0,
            dropout=layer.dropout,
            beyond_softmax=(*soft_cap, DROPOUT),
        )

    def logits(self, layer: Any, length: Any, given: Tensor | None = None) -> Logits:
        return Logits(soft_cap=layer.logit_soft_cap)

    def dropped(self, layer: Any, matrix: Tensor, training: bool | None) -> Tensor:
        return layer.dropout_layer(matrix, training=training)
