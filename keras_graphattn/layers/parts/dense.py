"""The dense path: attention whose matrix is formed, with all masks joined into one.

Layers that override Keras' extension point `_compute_attention` use it.
"""

from typing import Any

from keras import ops

from keras_graphattn.layers.parts.multi_head import Masks
from keras_graphattn.ops.softmax.masks import AttentionMask, all_of, joined_mask

Tensor = Any
Projected = tuple[Tensor, Tensor, Tensor]  # queries, keys and values


def attend_densely(
    layer: Any,
    query: Tensor,
    projected: Projected,
    masks: Masks,
    return_attention_scores: bool,
    training: bool | None,
) -> tuple[Tensor, Tensor | None]:
    """Calls `_compute_attention` of a layer with attention over one axis.

    Args:
        layer: A layer with `_compute_attention`.
        query: The layer's input (B, ..., d).
        projected: Queries, keys and values of all heads, (B, ..., N, H) each.
        masks: The masks of the call.
        return_attention_scores: Whether the caller asked for the scores.
        training: Whether to apply dropout.

    Returns:
        Per-head outputs (B, ..., N, H) and attention scores in the layout of Keras.
    """
    axes = layer._axes_of(query)
    queries, keys, values = (axes.joined(x) for x in projected)  # (B, T, N, H)
    mask = joined(mask_of_call(layer, query, masks), keys)
    outputs, scores = layer._compute_attention(
        queries, keys, values, mask, training, return_attention_scores
    )
    return axes.apart(outputs), axes.scores_apart(scores)  # (B, ..., N, H), Keras' layout


def mask_of_call(layer: Any, query: Tensor, masks: Masks) -> AttentionMask:
    """The masks of one call in pieces, the sliding window among them, for (B, T, N, H)."""
    axes, window = layer._axes_of(query), layer.sliding_window
    entries = masks.attention
    if entries is not None:
        entries = axes.joined_entries(entries)
    tokens = (masks.query, masks.value, masks.key)
    is_positional = masks.causal or window is not None or any(m is not None for m in tokens)
    if is_positional and axes.axes != (len(query.shape) - 2,):
        raise ValueError(
            "Token masks, `use_causal_mask` and `sliding_window` are defined for attention "
            "over one axis, the last before the features. Received: attention_axes="
            f"{layer.attention_axes}. Pass one `attention_mask` instead."
        )
    if not is_positional:
        return AttentionMask(entries)
    queries, values, keys = (axes.joined_tokens(mask) for mask in tokens)
    return AttentionMask(entries, queries, all_of(values, keys), masks.causal, window)


def joined(mask: AttentionMask, key: Tensor) -> Tensor | None:
    """The pieces of a mask as one that broadcasts to (B, N, T, T), for keys (B, T, N, H)."""
    positions = ops.arange(ops.shape(key)[1], dtype="int32")
    return joined_mask(mask, positions, positions)


def with_causal(
    layer: Any, mask: Tensor | None, key: Tensor, use_causal_mask: bool
) -> Tensor | None:
    """The mask given to `_compute_attention`, joined with the causal mask if asked for.

    `call` joins the two before. This is for callers of `_compute_attention` itself.
    """
    if use_causal_mask and len(layer.attention_axes) != 1:
        raise ValueError(
            "`use_causal_mask` is defined for attention over one axis. Received: "
            f"attention_axes={layer.attention_axes}. Pass one `attention_mask` instead."
        )
    return joined(AttentionMask(mask, causal=use_causal_mask), key)


def check_same_length(layer: Any, query_shape: Any, value_shape: Any) -> None:
    """Raises a `ValueError` unless query and value have the same shape but for batch and features.

    A size of `None` is not known yet and passes.
    """
    if len(query_shape) != len(value_shape) or any(
        None not in (t, s) and t != s
        for t, s in zip(query_shape[1:-1], value_shape[1:-1], strict=True)
    ):
        raise ValueError(
            f"{type(layer).__name__} is a self-attention layer: it needs a square attention "
            "matrix, so query and value must have the same length. Received: "
            f"query.shape={tuple(query_shape)}, value.shape={tuple(value_shape)}. "
            "Use keras.layers.MultiHeadAttention for cross-attention."
        )
