"""p-Laplacian attention in a converted layer (p-LaT)."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_graphattn.checks.arguments import is_list, whole
from keras_graphattn.hub.converted import ConvertedAttention
from keras_graphattn.hub.grouped_cache import in_all_heads
from keras_graphattn.layers.p_laplacian_attention import apply_weights, check_distances, exponents
from keras_graphattn.ops.precision.float32 import zero_where_masked
from keras_graphattn.ops.softmax.attention import scaled
from keras_graphattn.ops.softmax.masks import AttentionMask, four_dimensional
from keras_graphattn.ops.softmax.p_laplacian import p_laplacian_attention, scores_of
from keras_graphattn.ops.softmax.re_weighting import p_laplacian_weights

Tensor = Any


class ConvertedPLaplacian(ConvertedAttention):
    """The layer's own attention, re-weighted by the distances between values. It adds no weight.

    Decoding needs keys and values only: the cache stays as it is.
    """

    @classmethod
    def settings_from(  # type: ignore[override]
        cls,
        sizes: Any,
        *,
        p: float | Sequence[float] | None = None,
        epsilon: float = 0.1,
        diagonal: str = "smooth",
        block_size: int = 512,
    ) -> dict[str, Any]:
        check_distances(epsilon, diagonal)
        return {
            "exponents": exponents(list(p) if is_list(p) else p, sizes.num_heads),
            "epsilon": float(epsilon),
            "drop_diagonal": diagonal == "drop",
            "block_size": whole()("block_size", block_size, {}),
        }

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        entries = None if mask is None else four_dimensional(mask)  # (B, 1, T, T)
        return p_laplacian_attention(
            query,
            key,
            value,
            self.settings.exponents,
            AttentionMask(entries=entries),
            epsilon=self.settings.epsilon,
            drop_diagonal=self.settings.drop_diagonal,
            scale=self.sizes.scale,
            block_size=self.settings.block_size,
        )

    def attend_rows(
        self, query: Tensor, value: Tensor, cache: Tensor, mask: Tensor, index: Any
    ) -> tuple[Tensor, Tensor]:
        sizes = self.sizes
        key = in_all_heads(cache[:, 0], sizes.groups)  # (B, S, N, H)
        seen = ops.any(mask, axis=(1, 2))[..., None, None]  # (B, S, 1, 1)
        values = zero_where_masked(in_all_heads(cache[:, 1], sizes.groups), seen)
        rows = index + ops.arange(ops.shape(query)[1])
        weights = p_laplacian_weights(
            scores_of(scaled(query, sizes.scale), key),
            (ops.cast(value, values.dtype), values),
            self.settings.exponents,
            mask,
            rows[:, None] == ops.arange(ops.shape(key)[1])[None, :],
            epsilon=self.settings.epsilon,
            drop_diagonal=self.settings.drop_diagonal,
        )  # (B, N, t, S)
        return apply_weights(weights, values), cache
