"""Masked kernel attention with the call and the cache of KerasHub's `CachedMultiHeadAttention`."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_graphattn.hub.cached import CachedSelfAttention, last_row
from keras_graphattn.layers.masked_kernel_attention import MaskedKernelAttention
from keras_graphattn.layers.parts.kernel_features import key_features, query_features
from keras_graphattn.layers.parts.mask_forms import mask_form
from keras_graphattn.layers.parts.multi_head import Masks
from keras_graphattn.ops.softmax.caching import Cache, CachedOperator

Tensor = Any


class _Rows(NamedTuple):
    """Rows of A that are normalised already, as an operator that knows which of them are 0."""

    apply: CachedOperator
    seen: Tensor  # (B, t, N, 1)
    broken: None = None  # NaN in a cache stays where it is

    def __call__(self, x: Tensor) -> Tensor:
        return self.apply(x)


@keras.saving.register_keras_serializable(package="keras_graphattn")
class CachedMaskedKernelAttention(CachedSelfAttention, MaskedKernelAttention):  # type: ignore[misc]
    """`MaskedKernelAttention` that replaces KerasHub's `CachedMultiHeadAttention`.

    The decoder's mask joins padding and causality: as `use_causal_mask` and a mask of keys they
    keep the mask's own path, without pairs of positions. Decoding forms the rows of new tokens
    against the cached keys, O(length) for each token.
    """

    @property
    def needed_slots(self) -> int:
        return 1 + self._num_applications

    def _attend(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor,
        masks: Masks,
        return_attention_scores: bool,
        training: bool | None,
    ) -> tuple[Tensor, Tensor | None]:
        if masks.attention is not None and masks.attention.shape[-2] != 1:
            masks = masks._replace(attention=last_row(masks.attention), causal=True)
        return super()._attend(query, value, key, masks, return_attention_scores, training)

    def _decode_rows(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, cache: Cache, index: Any
    ) -> tuple[Tensor, Tensor]:
        phi_query = query_features(self, query, None, fixed_scale=True)
        phi_key = key_features(self, key, None, fixed_scale=True)
        rows = index + ops.arange(ops.shape(query)[1], dtype="int32")
        form: Any = mask_form(self, causal=True)
        factors = form.rows(rows, key.shape[1])
        matrix = ops.einsum("btnm,bsnm->bnts", phi_query, phi_key)
        matrix = matrix * ops.cast(factors, matrix.dtype)
        matrix = ops.where(mask, matrix, ops.cast(0.0, matrix.dtype))
        total = ops.sum(matrix, axis=-1, keepdims=True)
        matrix = matrix / ops.where(total == 0.0, ops.cast(1.0, total.dtype), total)
        signals = cache["signals"]
        applied = CachedOperator(ops.cast(matrix, signals.dtype), signals, index)
        operator: Any = _Rows(applied, ops.transpose(total != 0.0, (0, 2, 1, 3)))
        return self._outputs(operator, value), applied.signals
