"""The adapter of D-FINE's attention: of image features in the encoder, of queries in the decoder.

`DFineMultiheadAttention` has no method that attends, so the hook is `call`. Position embeddings
are added before queries and keys are projected. In both places the layer is self-attention, and A
is square. With `output_attentions` it also returns A: the matrix that the filter is one of. The
deformable cross-attention of the decoder stays as it is. The layer drops entries of A.

KerasHub 0.32 adds the mask of the denoising queries to the scores as it is: 1 where a query is to
be hidden. So does a converted layer.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import joined_heads
from keras_graphattn.hub.adapters.encoder import EncoderAdapter
from keras_graphattn.hub.converted_filter import attention_matrix
from keras_graphattn.hub.logits import BIAS, DROPOUT, Logits

Tensor = Any


class DFineHook:
    """The method of `DFineMultiheadAttention` that a converted one overrides."""

    adapter: Any
    attend: Any
    q_proj: Any
    k_proj: Any
    v_proj: Any
    scaling: float

    def call(
        self,
        hidden_states: Tensor,
        position_embeddings: Tensor | None = None,
        attention_mask: Tensor | None = None,
        output_attentions: bool = False,
        training: bool | None = None,
    ) -> Any:
        placed = hidden_states
        if position_embeddings is not None:
            placed = hidden_states + position_embeddings
        query, key, value = self.q_proj(placed), self.k_proj(placed), self.v_proj(hidden_states)
        heads = self.attend(query, key, value, training=training, given=attention_mask)
        outputs = self.adapter.output(self, heads, training)
        if not output_attentions:
            return outputs
        logits = self.adapter.logits(self, ops.shape(key)[1], attention_mask)
        return outputs, attention_matrix(query, key, None, self.scaling, logits)


class DFineAdapter(EncoderAdapter):
    """For `DFineMultiheadAttention`."""

    classes: Sequence[str] = ("DFineMultiheadAttention",)
    backbones: Sequence[str] = ("DFineBackbone",)
    inner_layers: Sequence[str] = (
        *("DFineHybridEncoder", "DFineEncoder", "DFineEncoderLayer"),
        *("DFineDecoder", "DFineDecoderLayer"),
    )
    hook = DFineHook

    def sizes(self, layer: Any) -> Sizes:
        return Sizes(
            num_heads=layer.num_heads,
            key_dim=layer.head_dim,
            scale=layer.scaling,
            dropout=layer.dropout_rate,
            beyond_softmax=(BIAS, DROPOUT),
        )

    def projections(self, layer: Any) -> dict[str, Any]:
        return {
            "query": layer.q_proj,
            "key": layer.k_proj,
            "value": layer.v_proj,
            "attention_output": layer.out_proj,
        }

    def logits(self, layer: Any, length: Any, given: Any = None) -> Logits:
        if given is None:
            return Logits()
        mask = given[None] if len(given.shape) == 2 else given  # (B or 1, T, T)
        return Logits(bias=ops.expand_dims(mask, 1))

    def dropped(self, layer: Any, matrix: Tensor, training: bool | None) -> Tensor:
        return layer.dropout(matrix, training=training)

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        return layer.out_proj(joined_heads(outputs))
