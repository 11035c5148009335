"""The adapter of T5's attention: unscaled scores, and a bias that the layers of a stack share.

`T5MultiHeadAttention` has no method that attends, so the hook is `call`. The first layer of a stack
makes the bias (B, N, t, S): a learned number for each head and each bucket of distances, and -1e9
more where the mask hides a token. It returns the bias, and the other layers take it from there. A
converted layer takes and returns the same, so that it can stand before or after one that is not
converted. It reads the mask off the bias.

`call` always returns three results, the last of which is the cache, [B, 2, S, N, H], or `None`. The
layer drops entries of A. Cross-attention is of the same class, and stays as it is.

KerasHub spreads a row that sees nothing over all tokens, padding too. Here it is zero, as in every
layer of this package. In T5 there are such rows only where all tokens of a text are padding, or
where the decoder's text starts with padding.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import DecoderAdapter, joined_heads
from keras_graphattn.hub.logits import BIAS, DROPOUT, Logits

Tensor = Any
HIDDEN = -1e9  # what KerasHub adds to the score of a pair that the mask hides


def seen(added: Tensor | None) -> Tensor | None:
    """The boolean mask that numbers to add to the scores, (..., t, S), stand for."""
    return None if added is None else added > 0.5 * HIDDEN


def masked_bias(layer: Any, mask: Tensor | None, new: Any, length: Any, index: Any) -> Tensor:
    """The bias (B or 1, N, t, S) that the first layer of a stack makes, with the mask in it.

    Args:
        layer: The layer. Those that are not the first of a stack have no bias of their own.
        mask: Optional mask, (B, 1 or t, S).
        new: Number t of queries.
        length: Number S of keys.
        index: Position of the first query.
    """
    if layer.use_relative_attention_bias:
        bias = layer.compute_bias(new, length, query_start_index=index)  # (1, N, t, S)
    else:
        bias = ops.zeros((1, layer.num_heads, new, length), layer.compute_dtype)
    if mask is None:
        return bias
    hidden = 1.0 - ops.cast(ops.expand_dims(mask, 1), bias.dtype)  # (B, 1, 1 or t, S)
    return bias + hidden * HIDDEN


class T5Hook:
    """The method of `T5MultiHeadAttention` that a converted one overrides."""

    attend_cached: Any
    attend_inputs: Any

    def call(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        cache: Tensor | None = None,
        cache_update_index: Any = None,
        training: bool | None = False,
    ) -> Any:
        if key_value_states is not None:
            raise ValueError(
                f"{type(self).__name__} attends to its own tokens only: the matrix of "
                "cross-attention is not square, and has no filter. Received: key_value_states of "
                f"shape {tuple(key_value_states.shape)}. Call keras_graphattn.revert first."
            )
        index = cache_update_index
        if position_bias is None:
            new = ops.shape(hidden_states)[1]
            length = new if cache is None else ops.shape(cache)[2]
            position_bias = masked_bias(self, mask, new, length, 0 if index is None else index)
        visible = seen(position_bias[:, 0])  # (B or 1, t, S), the same for all heads
        if cache is None:
            outputs = self.attend_inputs(hidden_states, visible, index, training, position_bias)
        else:
            outputs, cache = self.attend_cached(
                hidden_states, visible, cache, index, training, given=position_bias
            )
        return outputs, position_bias, cache


class T5Adapter(DecoderAdapter):
    """For `T5MultiHeadAttention` over its own tokens, in the encoder and in the decoder."""

    classes: Sequence[str] = ("T5MultiHeadAttention",)
    backbones: Sequence[str] = ("T5Backbone",)
    inner_layers: Sequence[str] = ("T5TransformerLayer",)
    hook = T5Hook

    def is_causal(self, parent: Any, layer: Any) -> bool:
        return bool(layer.is_decoder)

    def sizes(self, layer: Any) -> Sizes:
        return Sizes(
            num_heads=layer.num_heads,
            key_dim=layer.key_value_dim,
            scale=1.0,
            dropout=layer.dropout_layer.rate,
            beyond_softmax=(BIAS, DROPOUT),
        )

    def projections(self, layer: Any) -> dict[str, Any]:
        return {
            "query": layer.query_projector,
            "key": layer.key_projector,
            "value": layer.value_projector,
            "attention_output": layer.output_projector,
        }

    def projected(self, layer: Any, inputs: Tensor, index: Any) -> tuple[Tensor, Tensor, Tensor]:
        heads = (*ops.shape(inputs)[:2], layer.num_heads, layer.key_value_dim)  # (B, t, N, H)
        return (
            ops.reshape(layer.query_projector(inputs), heads),
            ops.reshape(layer.key_projector(inputs), heads),
            ops.reshape(layer.value_projector(inputs), heads),
        )

    def logits(self, layer: Any, length: Any, given: Any = None) -> Logits:
        return Logits(bias=given)  # (B or 1, N, t, S)

    def dropped(self, layer: Any, matrix: Tensor, training: bool | None) -> Tensor:
        return layer.dropout_layer(matrix, training=training)

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        return layer.output_projector(joined_heads(outputs))
