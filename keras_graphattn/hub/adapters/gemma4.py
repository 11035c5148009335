"""The adapter of the attention of Gemma 4's text decoder: borrowed keys and values, two head sizes.

As in Gemma 3, queries and keys have norms; here values have one, too, and the scores are not
scaled. Some layers use their keys as values, before norm and rotation. Layers that see all tokens
may have another number and another size of heads than those with a window, and rotate part of the
features only. The window is in the mask of the decoder. The vision tower has an adapter of its
own. The audio tower attends in blocks with a context before and after them, so that A is not
square: it stays as it is.

The last layers of some models borrow keys and values: they get those of an earlier layer as
`shared_kv`, and have projections of queries only. Their A is a square matrix of the same tokens as
everywhere, from their own queries, and a filter of it is applied to the borrowed values. What the
filter keeps of past tokens, such as A V, is the layer's own, and is in the layer's own part of the
cache.

`Gemma4AssistantCausalLM` proposes tokens to another model and borrows keys and values of that
model's cache, in all of its layers. It has no cache of its own to keep A V in: its layers are
refused. The other model may be converted.

The cache of all layers is stacked: [B, 2, S, Nkv, H] with the largest number and size of heads,
whose first entries a layer uses. Where `cache_update_mask` is false, the cache keeps what the first
pass has written, as in Gemma 3.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.gemma import GemmaAdapter, GroupedHook
from keras_graphattn.hub.cached import open_slots

Tensor = Any


NO_CACHE = (
    "it belongs to an assistant, which borrows keys and values of another model's cache and has "
    "none of its own: what a filter needs of past tokens cannot be kept"
)


def is_of_assistant(layer: Any) -> bool:
    """Whether a layer borrows, but was made to have keys and values of its own."""
    return layer.is_kv_shared_layer and layer.key_dense is not None


class Gemma4Hook(GroupedHook):
    """The methods of `Gemma4TextAttention` that a converted one overrides."""

    adapter: Any
    check_index: Any
    effective_num_kv_heads: int
    head_dim: int
    is_kv_shared_layer: bool
    path: str

    def call(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        cache: Tensor | None = None,
        cache_update_index: Any = 0,
        cache_update_mask: Tensor | None = None,
        shared_kv: Tensor | None = None,
        training: bool | None = False,
        positions: Tensor | None = None,
    ) -> Any:
        if is_of_assistant(self):  # made of a backbone that was converted before
            raise ValueError(
                f"{type(self).__name__} '{self.path}' is converted, and {NO_CACHE}. "
                "Call keras_graphattn.revert on the assistant."
            )
        if cache is None or (self.is_kv_shared_layer and shared_kv is None):  # which it refuses
            return super().call(  # type: ignore[misc]
                x,
                attention_mask,
                cache,
                cache_update_index,
                cache_update_mask,
                shared_kv,
                training,
                positions,
            )
        self.check_index(cache_update_index)
        own = cache[:, :, :, : self.effective_num_kv_heads, : self.head_dim]
        if shared_kv is not None and self.is_kv_shared_layer:
            borrowed = shared_kv[:, :2, :, : self.effective_num_kv_heads, : self.head_dim]
            own = ops.concatenate([borrowed, own[:, 2:]], axis=1)
        outputs, own = self.attend_cached(
            x,
            attention_mask,
            own,
            cache_update_index,
            training,
            update=cache_update_mask,
            projected=self.adapter.projected_at(self, x, cache_update_index, positions, own),
        )
        whole = open_slots(cache, own.shape[1])
        return outputs, ops.slice_update(whole, (0, 0, 0, 0, 0), ops.cast(own, whole.dtype))


class Gemma4Adapter(GemmaAdapter):
    """For `Gemma4TextAttention`."""

    classes: Sequence[str] = ("Gemma4TextAttention",)
    backbones: Sequence[str] = ("Gemma4Backbone",)
    inner_layers: Sequence[str] = ("Gemma4TextDecoderBlock",)
    hook: type = Gemma4Hook

    def refusal(self, layer: Any) -> str | None:
        return NO_CACHE if is_of_assistant(layer) else None

    def is_causal(self, parent: Any, layer: Any) -> bool:
        return not layer.use_bidirectional_attention

    def sizes(self, layer: Any) -> Sizes:
        found = super().sizes(layer)
        return Sizes(
            num_heads=found.num_heads,
            num_key_value_heads=layer.effective_num_kv_heads,
            key_dim=found.key_dim,
            scale=found.scale,
            dropout=found.dropout,
            beyond_softmax=found.beyond_softmax,
        )

    def scale(self, layer: Any) -> float:
        return 1.0

    def window(self, layer: Any) -> tuple[int | None, int | None] | None:
        return None

    def projections(self, layer: Any) -> dict[str, Any]:
        found = {
            "query": layer.query_dense,
            "key": layer.key_dense,
            "value": layer.key_dense if layer.attention_k_eq_v else layer.value_dense,
            "attention_output": layer.output_dense,
        }
        return {name: projection for name, projection in found.items() if projection is not None}

    def projected_at(
        self, layer: Any, inputs: Tensor, index: Any, positions: Tensor | None, cache: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of new tokens, as they are cached.

        Args:
            layer: The layer.
            inputs: The new tokens, (B, t, d).
            index: The position of the first of them.
            positions: Optional positions of all of them, (B, t).
            cache: The cache, (B, slots, S, Nkv, H). It has the borrowed keys and values.
        """
        query = layer.query_norm(layer.query_dense(inputs))
        query = layer._apply_rope(query, index, positions=positions)
        if layer.is_kv_shared_layer:
            shape = (*ops.shape(inputs)[:2], layer.effective_num_kv_heads, layer.head_dim)
            start = (0, index, 0, 0)
            return query, ops.slice(cache[:, 0], start, shape), ops.slice(cache[:, 1], start, shape)
        key = layer.key_dense(inputs)
        value = key if layer.attention_k_eq_v else layer.value_dense(inputs)
        key = layer._apply_rope(layer.key_norm(key), index, positions=positions)
        return query, key, layer.value_norm(value)
