"""The adapter of the attention of Gemma 3n's text decoder: heads before tokens, unscaled scores.

The hook is `_compute_attention(query, key, value, attention_mask, training)`, with tensors of shape
(B, N or Nkv, T, H), and keys and values in their own number of heads. Queries, keys and values have
norms. The layers of a window hide tokens themselves. The cache is [B, 2, Nkv, S, H] with rotated
keys, and `call` returns outputs, A and the cache; a converted layer returns `None` in the place of
A. Where `cache_update_mask` is false, the cache keeps what the first pass has written.

The last layers of the model borrow keys and values of an earlier layer. The model hands them the
cache of that layer, and none of their own, so a filter has no place to keep A V of past tokens:
these layers are refused by name.

KerasHub spreads a row that sees nothing over all tokens. Here it is zero. The audio tower attends
in blocks with a context before and after them, so that A is not square: it stays as it is.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import DecoderAdapter, joined_heads
from keras_graphattn.hub.adapters.encoder import in_heads
from keras_graphattn.hub.grouped_cache import in_all_heads
from keras_graphattn.hub.logits import DROPOUT

Tensor = Any


def heads_swapped(x: Tensor) -> Tensor:
    """A tensor (..., N, T, H) as (..., T, N, H), or back."""
    return ops.swapaxes(x, -3, -2)


class Gemma3nHook:
    """The methods of `Gemma3nTextAttention` that a converted one overrides."""

    attend: Any
    attend_cached: Any
    num_key_value_groups: int

    def _compute_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        training: bool | None = False,
    ) -> tuple[Tensor, None]:
        groups = self.num_key_value_groups
        key, value = (in_all_heads(heads_swapped(x), groups) for x in (key, value))
        return self.attend(heads_swapped(query), key, value, attention_mask, training), None

    def call(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        cache: Tensor | None = None,
        cache_update_index: Any = 0,
        cache_update_mask: Tensor | None = None,
        training: bool | None = False,
    ) -> Any:
        if cache is None:
            return super().call(  # type: ignore[misc]
                hidden_states, attention_mask, None, cache_update_index, None, training
            )
        outputs, cache = self.attend_cached(
            hidden_states,
            attention_mask,
            heads_swapped(cache),  # (B, slots, S, Nkv, H)
            cache_update_index,
            training,
            update=cache_update_mask,
        )
        return outputs, None, heads_swapped(cache)


class Gemma3nAdapter(DecoderAdapter):
    """For `Gemma3nTextAttention` with keys and values of its own."""

    classes: Sequence[str] = ("Gemma3nTextAttention",)
    backbones: Sequence[str] = ("Gemma3nBackbone",)
    inner_layers: Sequence[str] = (
        "Gemma3nMultimodalEmbeddingProcessor",
        "Gemma3nTextModel",
        "Gemma3nTextDecoderBlock",
    )
    hook: type = Gemma3nHook

    def refusal(self, layer: Any) -> str | None:
        if not layer.is_kv_shared_layer:
            return None
        return (
            f"{type(layer).__name__} with is_kv_shared_layer=True is given the cache of the layer "
            "whose keys and values it borrows, and no cache of its own: what a filter needs of "
            "past tokens cannot be kept while it decodes"
        )

    def sizes(self, layer: Any) -> Sizes:
        return Sizes(
            num_heads=layer.num_attention_heads,
            num_key_value_heads=layer.num_key_value_heads,
            key_dim=layer.head_dim,
            scale=1.0,
            dropout=layer.attention_dropout,
            beyond_softmax=(DROPOUT,),
        )

    def projections(self, layer: Any) -> dict[str, Any]:
        return {
            "query": layer.q_proj,
            "key": layer.k_proj,
            "value": layer.v_proj,
            "attention_output": layer.o_proj,
        }

    def window(self, layer: Any) -> tuple[int | None, int | None] | None:
        size = layer.sliding_window
        return None if size is None else (size - 1, size - 1)

    def dropped(self, layer: Any, matrix: Tensor, training: bool | None) -> Tensor:
        return layer.dropout(matrix, training=training) if training else matrix

    def projected(self, layer: Any, inputs: Tensor, index: Any) -> tuple[Tensor, Tensor, Tensor]:
        query = in_heads(layer.q_proj(inputs), layer.num_attention_heads)
        key = in_heads(layer.k_proj(inputs), layer.num_key_value_heads)
        value = in_heads(layer.v_proj(inputs), layer.num_key_value_heads)
        return (
            layer.rotary_embedding(layer.q_norm(query), start_index=index),
            layer.rotary_embedding(layer.k_norm(key), start_index=index),
            layer.v_norm(value),
        )

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        return layer.o_proj(joined_heads(outputs))
