"""The family of Keras' multi-head attention, and of KerasHub's `CachedMultiHeadAttention`.

The layer becomes an instance of a layer class of this package, `GraphFilterAttention` for example:
it stays the same object and gets the body of a new layer, made around its own projections. The new
layer keeps its old contents for `revert`.

KerasHub's cache of one layer is [B, 2, S, N, H]: keys and values. A polynomial filter needs A V
(and, of higher exact orders, A^2 V ...) of past tokens as well: one slot for each. The first pass,
which seeds the cache, adds the slots: a layer that gets two and needs three returns three. The
caches of all layers are stacked, so layers left as they were pass on slots that they do not use
(`widened`).
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, cast

import keras
from keras import ops

from keras_graphattn.coefficient_rate import FINE_TUNING_MULTIPLIER, NAME
from keras_graphattn.hub.converted import (
    AttentionFamily,
    Cache,
    CacheSlots,
    Heads,
    HeadSizes,
    Index,
    Mask,
    Options,
    Result,
    bias_of_layer,
    class_passing_slots,
    open_slots,
    refuse_paged_attention,
    step_mask,
)
from keras_graphattn.keras_internals import exchange, scale_of, scope_of
from keras_graphattn.layers.attentive_graph_filter import AttentiveGraphFilter
from keras_graphattn.layers.base import (
    AttentionLayer,
    Call,
    SoftmaxAttention,
    Tokens,
    input_shapes,
    projections_of,
)
from keras_graphattn.layers.graph_filter_attention import GraphFilterAttention
from keras_graphattn.layers.masked_kernel_attention import MaskedKernelAttention
from keras_graphattn.layers.p_laplacian_attention import PLaplacianAttention
from keras_graphattn.numerics.precision import at_least_float32, positions_of, zero_where_masked
from keras_graphattn.operators.cached import Cache as LayerCache
from keras_graphattn.operators.cached import CachedOperator
from keras_graphattn.operators.kernel import KernelOperator
from keras_graphattn.operators.operator import Visibility
from keras_graphattn.operators.singular import (
    SingularOperator,
    left_singular_vectors,
    right_singular_vectors,
)
from keras_graphattn.operators.singular_causal import causal_product
from keras_graphattn.operators.softmax import Logits
from keras_graphattn.types import Float, Tensor

Inputs = Float[Tensor, "..."]  # (B, T, d), or with further axes
Slot = Float[Tensor, "B S _ _"]  # one slot of a cache

DECODERS = ("TransformerDecoder", "EdRecDecoderBlock")  # parents that mask causally by themselves


class StockAttention(AttentionFamily):
    """`keras.layers.MultiHeadAttention`, and its subclasses with the same projections."""

    @classmethod
    def has_class(cls, plain: type, module: str) -> bool:
        return issubclass(plain, keras.layers.MultiHeadAttention)

    @classmethod
    def check_replacement(cls, replacement: object, classes: str) -> None:
        if not isinstance(replacement, type) or not issubclass(replacement, AttentionLayer):
            raise ValueError(
                "`replacement` must be a class of layers like those of keras_graphattn.layers. "
                f"Received: replacement={replacement!r}"
            )

    def head_sizes(self) -> HeadSizes:
        return HeadSizes(
            self.num_heads, self.num_heads, self.key_dim, self.value_dim, scale_of(self)
        )

    def projection_layers(self) -> dict[str, keras.Layer]:
        return projections_of(self)

    def sees_past_only(self, parent: keras.Layer) -> bool:
        """Whether tokens see only themselves and tokens before them, in this parent."""
        if any(base.__name__ in DECODERS for base in type(parent).__mro__):
            return True
        return bool(getattr(parent, "use_causal_mask", False))

    def added_variables(self) -> list[keras.Variable]:
        projections = self.projection_layers().values()
        kept = {id(variable) for layer in projections for variable in layer.weights}
        return [variable for variable in self.weights if id(variable) not in kept]

    def prepared_change(
        self, replacement: type, parent: keras.Layer, options: Options
    ) -> Callable[[keras.Layer], Callable[[keras.Layer], None]]:
        config = keras.layers.MultiHeadAttention.get_config(self)  # not a subclass's own
        config |= {"dtype": self.dtype_policy, "trainable": True, NAME: FINE_TUNING_MULTIPLIER}
        rank = len(input_shapes(self.projection_layers())[0])
        if rank == 3 and config.get("attention_axes") in (None, (1,), [1]):
            config["attention_axes"] = None
        if issubclass(replacement, AttentiveGraphFilter):
            config["causal"] = self.sees_past_only(parent)
            if config["causal"] and options.get("causal") is False:
                raise ValueError(
                    f"A {type(parent).__name__} attends to earlier tokens only. Received: "
                    "causal=False. Leave it out."
                )
        if "bias" in options and issubclass(replacement, SoftmaxAttention):
            options = {**options, "bias": bias_of_layer(options["bias"])}
        new = replacement(**{**config, **options})
        with scope_of(self):
            new.build_around(self)
        if not self.trainable and not self.has_lora():
            new.trainable = False

        def change(layer: keras.Layer) -> Callable[[keras.Layer], None]:
            exchange(layer, new)
            return lambda layer: exchange(layer, new)

        return change


def write_slot(slot: Slot, x: Heads, index: Index) -> Slot:
    """One slot of the cache (B, S, N, H) with x (B, t, N, H) written at `index`."""
    return ops.slice_update(slot, (0, index, 0, 0), ops.cast(x, slot.dtype))


def last_row(mask: Mask) -> Mask:
    """The last row of a mask (..., T, S), as (..., 1, S) even where T is not known."""
    return mask[..., -1, :][..., None, :]


class CachedCall(CacheSlots):
    """The call of `CachedMultiHeadAttention`, for a self-attention layer of this package.

    The cache is of keys and of signals: what the filter applies its operator to. The layer's own
    `operator_of_rows` makes the operator of new tokens.

    `of_decoder` has arguments of the decoder's call that the attention cannot follow, because it
    sees only the joined mask, with the only value that each may have.
    """

    of_decoder: ClassVar[dict[str, object]] = {}
    sliding_window: int | None

    def call(
        self,
        query: Inputs,
        value: Inputs,
        key: Inputs | None = None,
        attention_mask: Mask | None = None,
        cache: Cache | None = None,
        cache_update_index: Index | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Result:
        refuse_paged_attention(self)
        if cache is None:
            return super().call(  # type: ignore[misc]
                query,
                value,
                key,
                attention_mask=attention_mask,
                return_attention_scores=return_attention_scores,
                training=training,
            )
        if cache_update_index is None or return_attention_scores:
            raise ValueError(
                f"{type(self).__name__} decodes self-attention: with `cache` it needs "
                "`cache_update_index` and returns no attention scores. Received: "
                f"cache_update_index={cache_update_index}, "
                f"return_attention_scores={return_attention_scores}"
            )
        cache = open_slots(cache, max(self.cache_slots, self.needed_slots))
        mask = step_mask(attention_mask, query, cache, cache_update_index)
        if self.sliding_window is not None:
            rows = cache_update_index + positions_of(ops.shape(query)[1])
            near = Visibility(window=self.sliding_window).block(rows, positions_of(cache.shape[2]))
            mask = ops.logical_and(mask, near)
        key = value if key is None else key
        heads, cache = self._attend_cached(query, key, value, cache, mask, cache_update_index)
        return self._project_out(heads, query), cache

    def compute_output_spec(
        self,
        *tensors: keras.KerasTensor,
        cache: keras.KerasTensor | None = None,
        cache_update_index: Index | None = None,
        **arguments: Any,
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, ...]:
        outputs = super().compute_output_spec(*tensors, **arguments)  # type: ignore[misc]
        if cache is None:
            return outputs
        slots = max(self.cache_slots, self.needed_slots, cache.shape[1])
        shape = (cache.shape[0], slots, *cache.shape[2:])
        return outputs, keras.KerasTensor(shape, cache.dtype)

    def _attend_cached(
        self, query: Inputs, key: Inputs, value: Inputs, cache: Cache, mask: Mask, index: Index
    ) -> tuple[Heads, Cache]:
        """Outputs of the heads for new tokens, and the cache with their keys and values."""
        keys = write_slot(cache[:, 0], self.key_dense(key), index)
        queries, values = ops.cast(self.query_dense(query), keys.dtype), self.value_dense(value)
        signals, call = {"signals": cache[:, 1:]}, Call(Visibility())
        tokens, logits = Tokens(query, queries, keys, values), None
        if isinstance(self, SoftmaxAttention) and self.bias is not None:
            rows = index + positions_of(ops.shape(queries)[1])
            added = cast("Logits", self.logits(tokens, call))
            logits = added.formed(ops.shape(keys)[1], rows)
        operator = self.operator_of_rows(tokens, mask, signals, index, logits)
        outputs = operator.finished(self.attended(operator, values, call))
        return outputs, ops.concatenate([keys[:, None], operator.signals], axis=1)


@keras.saving.register_keras_serializable(package="keras_graphattn")
class CachedGraphFilterAttention(CachedCall, GraphFilterAttention):  # type: ignore[misc]
    """`GraphFilterAttention` that replaces KerasHub's `CachedMultiHeadAttention`."""


@keras.saving.register_keras_serializable(package="keras_graphattn")
class CachedPLaplacianAttention(CachedCall, PLaplacianAttention):  # type: ignore[misc]
    """`PLaplacianAttention` that replaces KerasHub's `CachedMultiHeadAttention`."""


@keras.saving.register_keras_serializable(package="keras_graphattn")
class CachedAttentiveGraphFilter(CachedCall, AttentiveGraphFilter):  # type: ignore[misc]
    """`AttentiveGraphFilter` that replaces KerasHub's `CachedMultiHeadAttention`.

    The decoder's mask joins padding and causality; the causal form needs no mask for the second,
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

    num_signals = 1
    of_decoder: ClassVar[dict[str, object]] = {
        "decoder_attention_mask": None,
        "use_causal_mask": True,
    }

    def _attend_cached(
        self, query: Inputs, key: Inputs, value: Inputs, cache: Cache, mask: Mask, index: Index
    ) -> tuple[Heads, Cache]:
        logits, values = self.key_dense(key), self.value_dense(value)
        filtered = self._filtered_left(left_singular_vectors(self.query_dense(query)), query)
        all_logits = write_slot(cache[:, 0], logits, index)
        all_values = write_slot(cache[:, 1], values, index)
        slots = ops.stack([all_logits, all_values], axis=1)
        updated = ops.concatenate([slots, cache[:, 2:]], axis=1)
        if query.shape[1] == 1:
            return self._row(filtered, all_logits, all_values, mask, index), updated
        past = positions_of(cache.shape[2])[None] < index
        past = ops.logical_and(past, mask[:, 0, 0])
        past = ops.broadcast_to(past, (ops.shape(query)[0], cache.shape[2]))
        _, state = causal_product(ops.zeros_like(cache[:, 0]), cache[:, 0], cache[:, 1], past)
        outputs, _ = causal_product(filtered, logits, values, None, state)
        return outputs, updated

    def _row(
        self, filtered: Heads, logits: Slot, values: Slot, mask: Mask, index: Index
    ) -> Float[Tensor, "B 1 N D"]:
        """One row of (U * g(S)) V^T, V the softmax over the tokens up to that at `index`."""
        columns = positions_of(logits.shape[1])
        seen = ops.logical_and(mask[:, 0, 0], columns[None] <= index)  # (B, S)
        seen = ops.broadcast_to(seen, ops.shape(logits)[:2])
        right = right_singular_vectors(logits, seen)
        row = ops.einsum("btnh,bsnh->bnts", filtered, right)  # (B, N, 1, S)
        values = zero_where_masked(at_least_float32(values), seen[:, :, None, None])
        outputs = ops.einsum("bnts,bsnd->btnd", ops.cast(row, values.dtype), values)
        return ops.cast(outputs, self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_graphattn")
class CachedMaskedKernelAttention(CachedCall, MaskedKernelAttention):  # type: ignore[misc]
    """`MaskedKernelAttention` that replaces KerasHub's `CachedMultiHeadAttention`.

    The decoder's mask joins padding and causality: as `use_causal_mask` and a mask of keys they
    keep the mask's own path, without pairs of positions. Decoding forms the rows of new tokens
    against the cached keys, O(length) for each token.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.mask is not None and self.mask.reads_tokens:
            raise ValueError(
                f"The mask {type(self.mask).__name__} reads the tokens, and KerasHub's cache has "
                "no place for what it has read. Received: an attention layer with a cache. Use a "
                "mask that does not read tokens, or build the model with MaskedKernelAttention."
            )

    of_decoder: ClassVar[dict[str, object]] = {"decoder_attention_mask": None}

    def operator(self, tokens: Tokens, call: Call) -> KernelOperator:
        entries = call.visibility.entries
        if entries is not None and entries.shape[-2] != 1:
            visibility = call.visibility._replace(entries=last_row(entries), causal=True)
            call = call._replace(visibility=visibility)
        return super().operator(tokens, call)

    def operator_of_rows(
        self,
        tokens: Tokens,
        mask: Mask,
        cache: LayerCache,
        index: Index,
        logits: Logits | None = None,
    ) -> CachedOperator:
        _, query, key, _ = tokens
        phi_query, phi_key = self.features(query, key, None, None, fixed_scale=True)
        rows = index + positions_of(ops.shape(query)[1])
        factors = self.joined_mask(causal=True).rows(rows, key.shape[1])
        matrix = ops.einsum("btnm,bsnm->bnts", phi_query, phi_key)
        matrix = matrix * ops.cast(factors, matrix.dtype)
        matrix = ops.where(mask, matrix, ops.cast(0.0, matrix.dtype))
        total = ops.sum(matrix, axis=-1, keepdims=True)
        matrix = matrix / ops.where(total == 0.0, ops.cast(1.0, total.dtype), total)
        signals = cache["signals"]
        return CachedOperator(ops.cast(matrix, signals.dtype), signals, index, total != 0.0)


@functools.cache
def widened(plain: type, argument: str = "cache") -> type:
    """A class of attention whose `call` passes on the cache slots that it does not use.

    The name of the argument that is the cache is `argument`.
    """
    plain_call = plain.call  # type: ignore[attr-defined]
    signature = inspect.signature(plain_call)

    @functools.wraps(plain_call)
    def call(self: keras.Layer, *args: Any, **kwargs: Any) -> Result:
        bound = signature.bind(self, *args, **kwargs)
        is_named = argument in signature.parameters  # else it is one of `**kwargs`
        arguments = bound.arguments if is_named else bound.arguments.get("kwargs", {})
        cache = arguments.get(argument)
        if cache is None:
            return plain_call(self, *args, **kwargs)
        arguments[argument] = cache[:, :2]
        results = plain_call(*bound.args, **bound.kwargs)
        rest = open_slots(cache, self.cache_slots)[:, 2:]
        return (*results[:-1], ops.concatenate([results[-1], rest], axis=1))

    return class_passing_slots(plain, call=call)
