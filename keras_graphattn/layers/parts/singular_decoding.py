"""Decoding token by token with a state of fixed size, for the causal attentive graph filter."""

from typing import Any

from keras import ops

from keras_graphattn.layers.parts.multi_head import padding_of, without_padding
from keras_graphattn.ops.singular.attention import left_singular_vectors
from keras_graphattn.ops.singular.causal import causal_singular_value_attention
from keras_graphattn.ops.singular.running_sums import RunningSum, empty_running_sum

Tensor = Any


def initial_state(layer: Any, batch_size: int) -> RunningSum:
    """The state of an `AttentiveGraphFilter` before the first token."""
    _check_causal(layer, "get_initial_state")
    dtype = "float64" if layer.compute_dtype == "float64" else "float32"
    return empty_running_sum(batch_size, layer.num_heads, layer.key_dim, layer.value_dim, dtype)


def decode(
    layer: Any, tokens: Tensor, state: RunningSum, padding_mask: Tensor | None
) -> tuple[Tensor, RunningSum]:
    """Outputs (B, t, d) of new tokens of an `AttentiveGraphFilter`, and the state after them."""
    _check_causal(layer, "decode")
    layer._check_shapes(tokens.shape, tokens.shape, None)
    if not layer.built:
        layer.build(tuple(tokens.shape))
    padding_mask = padding_of(tokens, padding_mask)
    tokens = without_padding(ops.cast(tokens, layer.compute_dtype), padding_mask)
    left = left_singular_vectors(layer.query_dense(tokens), padding_mask)  # (B, t, N, H)
    filtered = layer._filtered(left, tokens)
    outputs, state = causal_singular_value_attention(
        filtered, layer.key_dense(tokens), layer.value_dense(tokens), padding_mask, state
    )
    return layer._project_out(outputs, tokens), state


def _check_causal(layer: Any, method: str) -> None:
    if not layer.causal:
        raise ValueError(
            f"`{method}` needs the causal form: without it, every token sees the whole "
            "sequence. Received: causal=False. Make the layer with causal=True."
        )
