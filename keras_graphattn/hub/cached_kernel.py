"""Masked kernel attention with the call and the cache of KerasHub's `CachedMultiHeadAttention`."""

from typing import Any

import keras
from keras import ops

from keras_graphattn.hub.cached import CachedSelfAttention, last_row
from keras_graphattn.layers.base import Call, Tokens
from keras_graphattn.layers.masked_kernel_attention import MaskedKernelAttention
from keras_graphattn.operators.cached import Cache, CachedOperator
from keras_graphattn.operators.kernel import KernelOperator

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class CachedMaskedKernelAttention(CachedSelfAttention, MaskedKernelAttention):  # type: ignore[misc]
    """`MaskedKernelAttention` that replaces KerasHub's `CachedMultiHeadAttention`.

    The decoder's mask joins padding and causality: as `use_causal_mask` and a mask of keys they
    keep the mask's own path, without pairs of positions. Decoding forms the rows of new tokens
    against the cached keys, O(length) for each token.
    """

    @property
    def num_signals(self) -> int:
        """How often A is applied: the signals of past tokens that the cache keeps."""
        return 1 if self.filter is None else self.filter.num_applications

    def operator(self, tokens: Tokens, call: Call) -> KernelOperator:
        entries = call.visibility.entries
        if entries is not None and entries.shape[-2] != 1:
            visibility = call.visibility._replace(entries=last_row(entries), causal=True)
            call = call._replace(visibility=visibility)
        return super().operator(tokens, call)

    def operator_of_rows(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, cache: Cache, index: Any
    ) -> CachedOperator:
        phi_query, phi_key = self.features(query, key, None, None, fixed_scale=True)
        rows = index + ops.arange(ops.shape(query)[1], dtype="int32")
        form: Any = self.joined_mask(causal=True)
        factors = form.rows(rows, key.shape[1])
        matrix = ops.einsum("btnm,bsnm->bnts", phi_query, phi_key)
        matrix = matrix * ops.cast(factors, matrix.dtype)
        matrix = ops.where(mask, matrix, ops.cast(0.0, matrix.dtype))
        total = ops.sum(matrix, axis=-1, keepdims=True)
        matrix = matrix / ops.where(total == 0.0, ops.cast(1.0, total.dtype), total)
        signals = cache["signals"]
        return CachedOperator(ops.cast(matrix, signals.dtype), signals, index, total != 0.0)
