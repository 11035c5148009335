"""p-Laplacian attention in a converted layer (p-LaT)."""

from collections.abc import Mapping, Sequence
from typing import Any

from keras import ops

from keras_graphattn.checks import is_list, whole
from keras_graphattn.hub.converted import ConvertedAttention
from keras_graphattn.hub.grouped_cache import Step, in_all_heads
from keras_graphattn.hub.logits import DROPOUT, Logits
from keras_graphattn.layers.p_laplacian_attention import apply_weights, check_distances, exponents
from keras_graphattn.numerics.blocks import map_query_blocks
from keras_graphattn.numerics.precision import pad, zero_where_masked
from keras_graphattn.ops.softmax.attention import scaled
from keras_graphattn.ops.softmax.masks import (
    AttentionMask,
    block_mask,
    split_mask,
    zero_blind_rows,
    zero_masked_rows,
)
from keras_graphattn.ops.softmax.p_laplacian import p_laplacian_attention, scores_of
from keras_graphattn.ops.softmax.re_weighting import p_laplacian_weights

Tensor = Any


class ConvertedPLaplacian(ConvertedAttention):
    """The layer's own attention, re-weighted by the distances between values. It adds no weight.

    Decoding needs keys and values only: the cache stays as it is. A layer with dropout of its
    attention matrix drops entries of the re-weighted one, and forms it for all rows at once.
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
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        training: bool | None = None,
        given: Any = None,
    ) -> Tensor:
        reasons = self.mask_of(query, mask)
        logits = self.adapter.logits(self, ops.shape(key)[1], given)
        if logits.is_plain and DROPOUT not in self.sizes.beyond_softmax:
            return p_laplacian_attention(
                query,
                key,
                value,
                self.settings.exponents,
                reasons,
                epsilon=self.settings.epsilon,
                drop_diagonal=self.settings.drop_diagonal,
                scale=self.sizes.scale,
                block_size=self.settings.block_size,
            )
        query = scaled(query, self.sizes.scale)
        outputs = self._by_blocks(query, key, value, reasons, logits, training)
        return zero_blind_rows(outputs, reasons, self.settings.block_size)

    def _by_blocks(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: AttentionMask,
        logits: Logits,
        training: bool | None,
    ) -> Tensor:
        """Outputs (B, T, N, H) of scaled queries, formed for some rows at a time."""
        length = ops.shape(query)[1]
        is_dropped = DROPOUT in self.sizes.beyond_softmax
        by_row, shared = split_mask(mask)
        by_row |= {"query": query, "row_values": value}
        shared |= {"key": key, "values": value, "columns": ops.arange(length, dtype="int32")}
        if logits.bias is not None:
            bias = ops.transpose(logits.bias, (0, 2, 1, 3))  # (B, T, N, S)
            (shared if bias.shape[1] == 1 else by_row)["bias"] = bias
        if logits.sink is not None:
            shared["sink"] = ops.convert_to_tensor(logits.sink)

        def rows_of_block(rows: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
            bias = tensors.get("bias")
            if bias is not None:
                bias = ops.transpose(bias, (0, 2, 1, 3))
            weights = self._weights(
                tensors["query"],
                tensors["key"],
                (tensors["row_values"], tensors["values"]),
                block_mask(mask, tensors, rows, tensors["columns"]),
                rows,
                logits._replace(bias=bias, sink=tensors.get("sink")),
            )
            if is_dropped:
                weights = self.adapter.dropped(self, weights, training)
            return apply_weights(weights, tensors["values"])

        if is_dropped:  # a block would draw other numbers in the backward pass
            return rows_of_block(ops.arange(length, dtype="int32"), {**by_row, **shared})
        return map_query_blocks(rows_of_block, by_row, shared, length, self.settings.block_size)

    def attend_rows(
        self, query: Tensor, value: Tensor, cache: Tensor, step: Step, logits: Logits
    ) -> tuple[Tensor, Tensor]:
        sizes = self.sizes
        key = in_all_heads(
            self.adapter.cached_keys(self, cache[:, 0]), sizes.groups
        )  # (B, S, N, H)
        seen = ops.any(step.mask, axis=(1, 2))[..., None, None]  # (B, S, 1, 1)
        values = zero_where_masked(in_all_heads(cache[:, 1], sizes.groups), seen)
        weights = self._weights(
            scaled(query, sizes.scale),
            key,
            (ops.cast(value, values.dtype), values),
            step.mask,
            step.index + ops.arange(ops.shape(query)[1], dtype="int32"),
            logits,
        )  # (B, N, t, S)
        return zero_masked_rows(apply_weights(weights, values), step.mask), cache

    def _weights(
        self,
        query: Tensor,
        key: Tensor,
        values: tuple[Tensor, Tensor],
        mask: Tensor | None,
        rows: Tensor,
        logits: Logits,
    ) -> Tensor:
        """The re-weighted matrix (B, N, t, S) of scaled queries at the positions `rows`."""
        row_values, column_values = values
        same = rows[:, None] == ops.arange(ops.shape(key)[1], dtype="int32")[None, :]  # (t, S)
        if logits.sink is not None:  # a column whose weight counts in the softmax only
            column_values = pad(column_values, ((0, 0), (0, 1), (0, 0), (0, 0)))
        weights = p_laplacian_weights(
            logits.of(scores_of(query, key)),
            (row_values, column_values),
            self.settings.exponents,
            logits.with_sink(mask),
            logits.with_sink(same),
            epsilon=self.settings.epsilon,
            drop_diagonal=self.settings.drop_diagonal,
        )
        return logits.without_sink(weights)
