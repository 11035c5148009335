"""Our attentions with the call and the cache of KerasHub's `CachedMultiHeadAttention`.

KerasHub's cache of one layer is [B, 2, S, N, H]: keys and values. A polynomial filter needs
A V (and, of higher exact orders, A^2 V ...) of past tokens as well: one slot for each. The slots
open by themselves in the first pass, which seeds the cache: a layer that is given two and wants
three returns three. The caches of all layers are stacked, so layers left as they were pass on
slots that they do not use (`widened`).
"""

import functools
import inspect
from typing import Any

import keras
from keras import ops

from keras_graphattn.hub.paged import refuse_paged_attention
from keras_graphattn.layers.attentive_graph_filter import AttentiveGraphFilter
from keras_graphattn.layers.base import Call, Tokens
from keras_graphattn.layers.graph_filter_attention import GraphFilterAttention
from keras_graphattn.layers.p_laplacian_attention import PLaplacianAttention
from keras_graphattn.numerics.precision import at_least_float32, pad, zero_where_masked
from keras_graphattn.operators.operator import Visibility
from keras_graphattn.operators.singular import (
    SingularOperator,
    left_singular_vectors,
    right_singular_vectors,
)
from keras_graphattn.operators.singular_causal import causal_product

Tensor = Any


def open_slots(cache: Tensor, slots: int) -> Tensor:
    """The cache [B, ., S, N, H] with `slots` slots: empty ones added where it has fewer."""
    missing = slots - cache.shape[1]
    if missing <= 0:
        return cache
    return pad(cache, [[0, 0], [0, missing], [0, 0], [0, 0], [0, 0]])


def write_slot(slot: Tensor, x: Tensor, index: Any) -> Tensor:
    """One slot of the cache (B, S, N, H) with x (B, t, N, H) written at `index`."""
    return ops.slice_update(slot, (0, index, 0, 0), ops.cast(x, slot.dtype))


def last_row(mask: Tensor) -> Tensor:
    """The last row of a mask (..., T, S), as (..., 1, S) even where T is not known."""
    return mask[..., -1, :][..., None, :]


class CacheSlots:
    """What decoding layers tell of their cache to the others, whose caches are stacked with it."""

    cache_slots: int = 2  # of all layers of the model: the widest counts

    @property
    def needed_slots(self) -> int:
        """Slots that this layer itself needs: keys, values and what the filter keeps."""
        return 2


class CachedCall(CacheSlots):
    """The call of `CachedMultiHeadAttention`, for a self-attention layer of this package.

    Subclasses say in `_attend_cached` what the new tokens make of the cache.
    """

    _project_out: Any

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Tensor | None = None,
        cache_update_index: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        refuse_paged_attention(self)
        if cache is None:
            outputs: Any = super().call(  # type: ignore[misc]
                query,
                value,
                key,
                attention_mask=attention_mask,
                return_attention_scores=return_attention_scores,
                training=training,
            )
            return outputs
        if cache_update_index is None or return_attention_scores:
            raise ValueError(
                f"{type(self).__name__} decodes self-attention: with `cache` it needs "
                "`cache_update_index` and returns no attention scores. Received: "
                f"cache_update_index={cache_update_index}, "
                f"return_attention_scores={return_attention_scores}"
            )
        cache = open_slots(cache, max(self.cache_slots, self.needed_slots))
        mask = step_mask(attention_mask, query, cache, cache_update_index)
        outputs, cache = self._attend_cached(query, value, key, cache, mask, cache_update_index)
        return self._project_out(outputs, query), cache

    def compute_output_spec(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Tensor | None = None,
        cache_update_index: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        outputs = super().compute_output_spec(  # type: ignore[misc]
            query, value, key, return_attention_scores=return_attention_scores
        )
        if cache is None:
            return outputs
        slots = max(self.cache_slots, self.needed_slots, cache.shape[1])
        shape = (cache.shape[0], slots, *cache.shape[2:])
        return outputs, keras.KerasTensor(shape, cache.dtype)

    def _attend_cached(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None,
        cache: Tensor,
        mask: Tensor,
        index: Any,
    ) -> tuple[Tensor, Tensor]:
        """Per-head outputs of the new tokens, and the cache with theirs written."""
        raise NotImplementedError


def step_mask(mask: Tensor | None, query: Tensor, cache: Tensor, index: Any) -> Tensor:
    """The mask of the new tokens against the whole cache, (B or 1, 1, t, S)."""
    if mask is None:
        rows = index + ops.arange(ops.shape(query)[1], dtype="int32")
        mask = (rows[:, None] >= ops.arange(cache.shape[2], dtype="int32")[None])[None]
    mask = ops.cast(mask, "bool")
    return mask[:, None] if len(mask.shape) == 3 else mask


class CachedSelfAttention(CachedCall):
    """Decoding with a cache of keys and of signals: what the filter applies its operator to.

    Subclasses have the `operator_of_rows` of this package's self-attention layers.
    """

    query_dense: Any
    key_dense: Any
    value_dense: Any
    operator_of_rows: Any
    apply: Any
    num_signals: Any

    @property
    def needed_slots(self) -> int:
        return 1 + int(self.num_signals)

    def _attend_cached(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None,
        cache: Tensor,
        mask: Tensor,
        index: Any,
    ) -> tuple[Tensor, Tensor]:
        keys = write_slot(cache[:, 0], self.key_dense(value if key is None else key), index)
        queries, values = ops.cast(self.query_dense(query), keys.dtype), self.value_dense(value)
        signals = {"signals": cache[:, 1:]}
        operator = self.operator_of_rows(queries, keys, values, mask, signals, index)
        outputs = operator.finished(self.apply(operator, values, Call(Visibility())))
        return outputs, ops.concatenate([keys[:, None], operator.signals], axis=1)


@keras.saving.register_keras_serializable(package="keras_graphattn")
class CachedGraphFilterAttention(CachedSelfAttention, GraphFilterAttention):  # type: ignore[misc]
    """`GraphFilterAttention` that replaces KerasHub's `CachedMultiHeadAttention`."""


@keras.saving.register_keras_serializable(package="keras_graphattn")
class CachedPLaplacianAttention(CachedSelfAttention, PLaplacianAttention):  # type: ignore[misc]
    """`PLaplacianAttention` that replaces KerasHub's `CachedMultiHeadAttention`."""


@keras.saving.register_keras_serializable(package="keras_graphattn")
class CachedAttentiveGraphFilter(CachedCall, AttentiveGraphFilter):  # type: ignore[misc]
    """`AttentiveGraphFilter` that replaces KerasHub's `CachedMultiHeadAttention`.

    The decoder's mask joins padding and causality; the causal form knows the second by itself,
    and reads the first off the mask's last row, which sees all tokens but padding.

    KerasHub's cache holds one row for each token, and rows are written again where prompts differ
    in length. So it cannot hold a running sum. The row of one new token is formed against the
    cache instead, at O(length) like plain attention, without a sum of size H x D.
    """

    def operator(self, tokens: Tokens, call: Call) -> SingularOperator:
        entries = call.visibility.entries
        if self.causal and entries is not None:
            visibility = call.visibility._replace(entries=last_row(entries))
            call = call._replace(visibility=visibility)
        return super().operator(tokens, call)

    def _attend_cached(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None,
        cache: Tensor,
        mask: Tensor,
        index: Any,
    ) -> tuple[Tensor, Tensor]:
        logits, values = self.key_dense(value if key is None else key), self.value_dense(value)
        filtered = self._filtered_left(left_singular_vectors(self.query_dense(query)), query)
        all_logits = write_slot(cache[:, 0], logits, index)
        all_values = write_slot(cache[:, 1], values, index)
        slots = ops.stack([all_logits, all_values], axis=1)
        updated = ops.concatenate([slots, cache[:, 2:]], axis=1)
        if query.shape[1] == 1:
            return self._row(filtered, all_logits, all_values, mask, index), updated
        past = ops.arange(cache.shape[2], dtype="int32")[None] < index
        past = ops.logical_and(past, mask[:, 0, 0])
        past = ops.broadcast_to(past, (ops.shape(query)[0], cache.shape[2]))
        _, state = causal_product(ops.zeros_like(cache[:, 0]), cache[:, 0], cache[:, 1], past)
        outputs, _ = causal_product(filtered, logits, values, None, state)
        return outputs, updated

    def _row(
        self, filtered: Tensor, logits: Tensor, values: Tensor, mask: Tensor, index: Any
    ) -> Tensor:
        """The output (B, 1, N, D) of the token at `index`, from all logits and values (B, S, N, .).

        One row of (U * g(S)) V^T, V the softmax over the tokens up to this one.
        """
        columns = ops.arange(logits.shape[1], dtype="int32")
        seen = ops.logical_and(mask[:, 0, 0], columns[None] <= index)  # (B, S)
        seen = ops.broadcast_to(seen, ops.shape(logits)[:2])
        right = right_singular_vectors(logits, seen)
        row = ops.einsum("btnh,bsnh->bnts", filtered, right)  # (B, N, 1, S)
        values = zero_where_masked(at_least_float32(values), seen[:, :, None, None])
        outputs = ops.einsum("bnts,bsnd->btnd", ops.cast(row, values.dtype), values)
        return ops.cast(outputs, self.compute_dtype)


@functools.cache
def widened(plain: type, argument: str = "cache") -> type:
    """A class of attention with a cache, which passes on the cache slots that it does not use.

    Args:
        plain: The class.
        argument: The name of the argument of its `call` that is the cache.
    """
    plain_call: Any = plain.call  # type: ignore[attr-defined]
    signature = inspect.signature(plain_call)

    @functools.wraps(plain_call)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs)
        is_named = argument in signature.parameters  # else it is one of `**kwargs`
        arguments = given.arguments if is_named else given.arguments.get("kwargs", {})
        cache = arguments.get(argument)
        if cache is None:
            return plain_call(self, *args, **kwargs)
        arguments[argument] = cache[:, :2]
        results = plain_call(*given.args, **given.kwargs)
        rest = open_slots(cache, self.cache_slots)[:, 2:]
        return (*results[:-1], ops.concatenate([results[-1], rest], axis=1))

    namespace = {
        "call": call,
        "cache_slots": 2,
        "plain_class": plain,
        "__module__": plain.__module__,
    }
    return type(plain.__name__, (plain,), namespace)
