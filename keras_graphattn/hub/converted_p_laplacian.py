"""p-Laplacian attention in a converted layer (p-LaT)."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_graphattn.checks import whole
from keras_graphattn.hub.converted import ConvertedAttention
from keras_graphattn.hub.grouped_cache import Step, in_all_heads
from keras_graphattn.hub.logits import DROPOUT, Logits
from keras_graphattn.layers.p_laplacian_attention import re_weighting
from keras_graphattn.operators.operator import Operator
from keras_graphattn.operators.p_laplacian import CachedPLaplacianOperator, PLaplacianOperator

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
        return {
            "numbers": re_weighting(p, epsilon, diagonal, sizes.num_heads),
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
        sizes = self.sizes
        is_dropped = DROPOUT in sizes.beyond_softmax
        operator = PLaplacianOperator(
            query,
            key,
            value,
            self.settings.numbers,
            self.mask_of(query, mask),
            scale=sizes.scale,
            logits=self.adapter.logits(self, ops.shape(key)[1], given),
            block_size=self.settings.block_size,
            dropout=(lambda x: self.adapter.dropped(self, x, training)) if is_dropped else None,
        )
        return operator.finished(self.apply(operator, value))

    def apply(self, operator: Operator, values: Tensor) -> Tensor:
        """The operator applied to the values."""
        return operator(values)

    def attend_rows(
        self, query: Tensor, value: Tensor, cache: Tensor, step: Step, logits: Logits
    ) -> tuple[Tensor, Tensor]:
        sizes = self.sizes
        keys, values = (
            in_all_heads(x, sizes.groups)
            for x in (self.adapter.cached_keys(self, cache[:, 0]), cache[:, 1])
        )
        operator = CachedPLaplacianOperator(
            query,
            keys,
            value,
            self.settings.numbers,
            values[:, None],
            step.index,
            step.mask,
            sizes.scale,
            logits,
        )
        return operator.finished(operator(value)), cache
