"""What attends in a converted layer of another package: a graph filter, or p-Laplacian attention.

`ConvertedAttention` is the base. A layer becomes an instance of one of its subclasses, of its
family and of its own class, and keeps its weights, paths, quantisation and LoRA factors.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import keras
from keras import ops

from keras_graphattn import filters
from keras_graphattn.checks import is_one_of, whole
from keras_graphattn.coefficient_rate import NAME, CoefficientRate, Filtered
from keras_graphattn.hub.family import (
    DROPOUT,
    AttentionFamily,
    CacheSlots,
    HeadSizes,
    Step,
    attention_matrix,
    in_all_heads,
)
from keras_graphattn.keras_internals import remove_attribute
from keras_graphattn.layers.conversion_mark import ConversionMark
from keras_graphattn.layers.p_laplacian_attention import re_weighting
from keras_graphattn.operators.blockwise import BlockwiseOperator
from keras_graphattn.operators.fused import FusedOperator
from keras_graphattn.operators.operator import Operator, Visibility
from keras_graphattn.operators.p_laplacian import CachedPLaplacianOperator, PLaplacianOperator
from keras_graphattn.operators.softmax import Logits, SoftmaxOperator, scores_of, zero_hidden_rows
from keras_graphattn.types import Float, Tensor

PATHS = ("dense", "blockwise", "fused")


class ConvertedAttention(CoefficientRate, ConversionMark, CacheSlots, AttentionFamily):
    """Base of the classes that attend in a converted layer.

    A subclass writes `settings_from`, `attend` and `attend_rows`; `add_coefficients` where it has
    weights; and `num_signals` where it keeps more than the values of past tokens.

    Attributes:
        settings: What `settings_from` returned, and `sizes`, the `HeadSizes` of the layer.
        converted_from: What `revert` and a saved file need, a `ConversionRecord`.
    """

    plain_class: ClassVar[type]
    converted_from: Any

    def settings_from(self, **options: Any) -> dict[str, Any]:
        """The settings of a layer, from the options of `convert`: its keywords are the options.

        It is called before the layer changes, on a view that shows the layer with this class.

        Raises:
            ValueError: For options that cannot be used.
        """
        raise NotImplementedError

    def attend(
        self,
        query: Float[Tensor, "B T N H"],
        key: Float[Tensor, "B T N H"],
        value: Float[Tensor, "B T N D"],
        mask: Tensor | None = None,
        training: bool | None = None,
        term: Any = None,
    ) -> Float[Tensor, "B T N D"]:
        """Outputs of all tokens.

        Args:
            query: Queries of all heads; keys and values are repeated to as many.
            key: Keys.
            value: Values.
            mask: Optional mask of shape (T, T), (B, T, T) or (B, N, T, T); true is visible.
            training: Whether to apply dropout.
            term: What `score_logits` needs of the arguments of the call, if anything.
        """
        raise NotImplementedError

    def attend_rows(
        self, query: Tensor, value: Tensor, cache: Tensor, step: Step, logits: Logits
    ) -> tuple[Tensor, Tensor]:
        """Outputs (B, t, N, H) of new tokens, and the cache with their further signals.

        Args:
            query: Tensor of shape (B, t, N, H).
            value: The new tokens' values, (B, t, N, H).
            cache: The cache (B, slots, S, Nkv, H), the new keys and values in it.
            step: Where the new tokens are, and what they see.
            logits: How the layer makes logits of its scores.
        """
        raise NotImplementedError

    def add_coefficients(self) -> None:
        """Makes the weights of the layer that the original does not have."""

    @property
    def num_signals(self) -> int:
        """How many signals of past tokens the layer keeps, their values among them."""
        return 1

    @property
    def needed_slots(self) -> int:
        """Keys and values, and Nq / Nkv slots for each further signal: those are per query head."""
        return 2 + (self.num_signals - 1) * int(self.settings.sizes.groups)

    def _is_told_by_weights(self, store: Any) -> bool:
        return bool(self.coefficients)

    def start(self, settings: dict[str, Any], multiplier: float) -> None:
        """Gives the layer its settings and its new weights; its class has changed already."""
        self._multiplier = multiplier
        self.settings = SimpleNamespace(**settings, sizes=self.head_sizes())
        self.add_coefficients()

    def stop(self) -> None:
        """Takes settings and new weights away again."""
        added = {id(variable) for variable in self.coefficients}
        ours = ("settings", "converted_from", "cache_slots", "_multiplier", "_coefficient_names")
        for name, value in list(vars(self).items()):
            if name in ours or id(value) in added:
                remove_attribute(self, name)

    def get_config(self) -> dict[str, Any]:
        """What the layer is; to look at, since a converted layer is not made from it."""
        config = keras.Layer.get_config(self)
        options = self.converted_from.request.options
        return {**config, NAME: self._multiplier, **keras.saving.serialize_keras_object(options)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        raise ValueError(
            f"{cls.__name__} is made by keras_graphattn.convert from a built "
            f"{cls.plain_class.__name__} only. Received: config={config!r}. Save and load the "
            "model or the backbone that it is in."
        )


class GroupedOperator:
    """The rows of A for new tokens, as an operator that keeps what it is applied to.

    Query heads share keys and values in the cache [B, slots, S, Nkv, H]. What a filter keeps beyond
    the values, such as A V, is one signal for each query head, and takes Nq / Nkv slots.

    The first call must be to the values, which the cache holds already. Each further call writes
    the new tokens' signal into the next slots and applies the rows to the whole signal. Calls must
    come in the same order at each step, as a filter makes them.
    """

    def __init__(
        self,
        matrix: Float[Tensor, "B N T S"],
        values: Float[Tensor, "B T N H"],
        cache: Tensor,
        step: Step,
        groups: int,
    ) -> None:
        batch, _, new, length = ops.shape(matrix)
        self.heads = cache.shape[3]
        self.grouped = ops.reshape(matrix, (batch, self.heads, groups, new, length))
        self.values = values
        self.cache = cache
        self.step = step
        self.groups = groups
        self.calls = 0

    def __call__(self, x: Float[Tensor, "B T N H"]) -> Float[Tensor, "B T N H"]:
        if self.calls == 0:
            if x is not self.values:
                raise ValueError(
                    "The cache of grouped attention holds the values once for all query heads: "
                    "the first application of a filter's operator must be to the values "
                    "themselves. Received: another signal."
                )
            signal = self.cache[:, 1]  # (B, S, Nkv, H)
            outputs = ops.einsum("bkgts,bskh->btkgh", self.grouped, signal)
        else:
            outputs = ops.einsum("bkgts,bgskh->btkgh", self.grouped, self._written(x))
        self.calls += 1
        return ops.reshape(outputs, ops.shape(x))

    def _written(self, x: Tensor) -> Tensor:
        """The whole signal (B, groups, S, Nkv, H), that of the new tokens written into it."""
        first = 2 + (self.calls - 1) * self.groups
        batch, new, _, size = ops.shape(x)
        slots = ops.reshape(x, (batch, new, self.heads, self.groups, size))
        slots = ops.transpose(slots, (0, 3, 1, 2, 4))  # (B, groups, t, Nkv, H)
        self.cache = self.step.write(self.cache, slots, first)
        return self.cache[:, first : first + self.groups]


class ConvertedGraphFilter(Filtered, ConvertedAttention):
    """A filter of `keras_graphattn.filters` over the layer's own attention matrix (GFSA)."""

    def settings_from(  # type: ignore[override]
        self,
        *,
        filter: Any = "first_order",
        order: int | None = None,
        attention_path: str | None = None,
        block_size: int = 512,
    ) -> dict[str, Any]:
        if attention_path is not None and not is_one_of(attention_path, PATHS):
            raise ValueError(
                f"`attention_path` must be one of {list(PATHS)}, or None. Received: "
                f"attention_path={attention_path!r}"
            )
        if attention_path not in (None, "dense") and (terms := self.beyond_softmax()):
            raise ValueError(
                f"These layers have a {' and a '.join(terms)}, which only the dense path keeps. "
                f'Received: attention_path={attention_path!r}. Use attention_path="dense".'
            )
        polynomial = filters.get(filter, order)
        polynomial.coefficients(self.head_sizes().num_heads)  # refuses start values for others
        return {
            "filter": polynomial,
            "attention_path": attention_path,
            "block_size": whole()("block_size", block_size, {}),
        }

    def add_coefficients(self) -> None:
        self.add_filter_weights(self.settings.filter, self.settings.sizes.num_heads)

    @property
    def num_signals(self) -> int:
        return int(self.settings.filter.num_applications)

    @property
    def attention_path(self) -> str:
        """The path of the full pass.

        By default, `"fused"` where the original calls a fused kernel of this device, or `"dense"`.
        """
        if self.settings.attention_path is not None:
            return str(self.settings.attention_path)
        return "fused" if self.calls_kernel() and not self.beyond_softmax() else "dense"

    def attend(
        self,
        query: Float[Tensor, "B T N H"],
        key: Float[Tensor, "B T N H"],
        value: Float[Tensor, "B T N D"],
        mask: Tensor | None = None,
        training: bool | None = None,
        term: Any = None,
    ) -> Float[Tensor, "B T N D"]:
        operator = self._operator(query, key, self.visible_pairs(query, mask), training, term)
        return operator.finished(self.apply(operator, value))

    def apply(self, operator: Operator, values: Tensor) -> Tensor:
        """The filter of the operator, applied to the values."""
        return self.filtered(self.settings.filter, operator, values)

    def _operator(
        self,
        query: Tensor,
        key: Tensor,
        visible: Tensor | None,
        training: bool | None,
        term: Any,
    ) -> Operator:
        scale, path = self.settings.sizes.scale, self.attention_path
        logits, visibility = self.score_logits(ops.shape(key)[1], term), Visibility(visible)
        if path != "dense" and not logits.is_plain:
            raise ValueError(
                f"{type(self).__name__} was given a bias of its scores, which only the dense path "
                f'keeps. Received: attention_path="{path}". Convert with attention_path="dense".'
            )
        if path == "blockwise":
            return BlockwiseOperator(query, key, visibility, scale, self.settings.block_size)
        if path == "fused":
            flash = keras.config.is_flash_attention_enabled()
            return FusedOperator(query, key, visibility, scale, flash)
        return SoftmaxOperator(
            scores_of(query, key, scale),
            visibility.joined(ops.shape(key)[1]),
            dtype=query.dtype,
            logits=logits,
            dropout=lambda matrix: self.dropped_matrix(matrix, training),
        )

    def attend_rows(
        self, query: Tensor, value: Tensor, cache: Tensor, step: Step, logits: Logits
    ) -> tuple[Tensor, Tensor]:
        sizes: HeadSizes = self.settings.sizes
        key = in_all_heads(self.cached_keys(cache[:, 0]), sizes.groups)  # (B, S, N, H)
        matrix = attention_matrix(query, key, step.mask, sizes.scale, logits)  # (B, N, t, S)
        operator = GroupedOperator(matrix, value, cache, step, sizes.groups)
        outputs = self.filtered(self.settings.filter, operator, value)
        return zero_hidden_rows(outputs, step.mask), operator.cache


class ConvertedPLaplacian(ConvertedAttention):
    """The layer's own attention, re-weighted by the distances between values (p-LaT).

    It adds no weight. Decoding needs keys and values only: the cache stays as it is. A layer with
    dropout of its attention matrix drops entries of the re-weighted one, and forms it for all rows
    at once.
    """

    def settings_from(  # type: ignore[override]
        self,
        *,
        p: float | Sequence[float] | None = None,
        epsilon: float = 0.1,
        diagonal: str = "smooth",
        block_size: int = 512,
    ) -> dict[str, Any]:
        return {
            "numbers": re_weighting(p, epsilon, diagonal, self.head_sizes().num_heads),
            "block_size": whole()("block_size", block_size, {}),
        }

    def attend(
        self,
        query: Float[Tensor, "B T N H"],
        key: Float[Tensor, "B T N H"],
        value: Float[Tensor, "B T N D"],
        mask: Tensor | None = None,
        training: bool | None = None,
        term: Any = None,
    ) -> Float[Tensor, "B T N D"]:
        is_dropped = DROPOUT in self.beyond_softmax()
        operator = PLaplacianOperator(
            query,
            key,
            value,
            self.settings.numbers,
            Visibility(self.visible_pairs(query, mask)),
            scale=self.settings.sizes.scale,
            logits=self.score_logits(ops.shape(key)[1], term),
            block_size=self.settings.block_size,
            dropout=(lambda x: self.dropped_matrix(x, training)) if is_dropped else None,
        )
        return operator.finished(self.apply(operator, value))

    def apply(self, operator: Operator, values: Tensor) -> Tensor:
        """The operator applied to the values."""
        return operator(values)

    def attend_rows(
        self, query: Tensor, value: Tensor, cache: Tensor, step: Step, logits: Logits
    ) -> tuple[Tensor, Tensor]:
        sizes: HeadSizes = self.settings.sizes
        key, values = (
            in_all_heads(x, sizes.groups) for x in (self.cached_keys(cache[:, 0]), cache[:, 1])
        )
        operator = CachedPLaplacianOperator(
            query,
            key,
            value,
            self.settings.numbers,
            values[:, None],
            step.index,
            step.mask,
            sizes.scale,
            logits,
        )
        return operator.finished(operator(value)), cache
