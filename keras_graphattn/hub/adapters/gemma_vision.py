"""The adapter of the attention of the vision towers of PaliGemma and Gemma 3.

Both have the same class under two names, without a method that attends, so the hook is `call`. The
patches of an image see each other. The layer drops entries of A. A mask of the call is added to the
scores; the towers give none. The original always returns A beside its outputs; a converted layer
does so with `return_attention_scores` only, and it is the matrix that the filter is one of.

With `pooling="map"`, which KerasHub 0.32 fails to build, PaliGemma's tower pools its tokens by a
learned probe, which looks at other tokens than itself. That attention stays as it is.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import joined_heads
from keras_graphattn.hub.adapters.encoder import EncoderAdapter, in_heads
from keras_graphattn.hub.converted_filter import attention_matrix
from keras_graphattn.hub.logits import DROPOUT, Logits

Tensor = Any


class GemmaVisionHook:
    """The method of `PaliGemmaVitAttention` that a converted one overrides."""

    adapter: Any
    attend: Any
    sizes: Sizes

    def call(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool | None = None,
        training: bool | None = False,
    ) -> tuple[Tensor, Tensor | None]:
        query, key, value = self.adapter.projected(self, x, 0)
        heads = self.attend(query, key, value, training=training, given=attention_mask)
        outputs = self.adapter.output(self, heads, training)
        if not return_attention_scores:
            return outputs, None
        logits = self.adapter.logits(self, ops.shape(key)[1], attention_mask)
        return outputs, attention_matrix(query, key, None, self.sizes.scale, logits)


class GemmaVisionAdapter(EncoderAdapter):
    """For `PaliGemmaVitAttention` and `Gemma3VisionAttention`."""

    classes: Sequence[str] = ("PaliGemmaVitAttention", "Gemma3VisionAttention")
    inner_layers: Sequence[str] = (
        *("PaliGemmaVit", "PaliGemmaVitEncoder", "PaliGemmaVitEncoderBlock"),
        *("Gemma3VisionEncoder", "Gemma3VisionEncoderBlock", "Gemma3VisionEncoderLayer"),
    )
    hook = GemmaVisionHook

    def sizes(self, layer: Any) -> Sizes:
        return Sizes(
            num_heads=layer.num_heads,
            key_dim=layer.head_dim,
            scale=layer.scale,
            dropout=layer.dropout,
            beyond_softmax=(DROPOUT,),
        )

    def projections(self, layer: Any) -> dict[str, Any]:
        return {
            "query": layer.query_proj,
            "key": layer.key_proj,
            "value": layer.value_proj,
            "attention_output": layer.out_proj,
        }

    def logits(self, layer: Any, length: Any, given: Tensor | None = None) -> Logits:
        if given is None:
            return Logits()
        while len(given.shape) < 4:  # aligned from the right, as the original adds it
            given = given[None]
        return Logits(bias=given)

    def projected(self, layer: Any, inputs: Tensor, index: Any) -> tuple[Tensor, Tensor, Tensor]:
        return (
            in_heads(layer.query_proj(inputs), layer.num_heads),
            in_heads(layer.key_proj(inputs), layer.num_heads),
            in_heads(layer.value_proj(inputs), layer.num_heads),
        )

    def dropped(self, layer: Any, matrix: Tensor, training: bool | None) -> Tensor:
        return layer.dropout_layer(matrix, training=training)

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        return layer.out_proj(joined_heads(outputs))
