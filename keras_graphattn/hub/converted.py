"""What an attention layer of another package becomes: the base of the classes it changes to.

A converted layer is an instance of a subclass of its own class. `InPlaceAdapter` makes that
subclass of three: a class of this kind, which attends; the adapter's hook, which says where the
original attends; and the original.
"""

from types import SimpleNamespace
from typing import Any, ClassVar

import keras
from keras import ops

from keras_graphattn.coefficient_rate import NAME, CoefficientRate
from keras_graphattn.hub.cached import CacheSlots, open_slots, step_mask
from keras_graphattn.hub.grouped_cache import Step, in_all_heads
from keras_graphattn.hub.logits import Logits
from keras_graphattn.hub.paged import refuse_paged_attention
from keras_graphattn.keras_internals import remove_attribute
from keras_graphattn.layers.conversion_mark import ConversionMark
from keras_graphattn.operators.operator import Visibility, all_of, four_dimensional

Tensor = Any


class ConvertedAttention(CoefficientRate, ConversionMark, CacheSlots):
    """Base of the classes that attend in a converted layer.

    A subclass writes `settings_from`, `attend` and `attend_rows`; `add_coefficients` where it has
    weights; and `num_signals` where it keeps more than the values of past tokens.
    """

    adapter: ClassVar[Any]
    plain_class: ClassVar[type]
    settings: Any

    @classmethod
    def settings_from(cls, sizes: Any, **options: Any) -> dict[str, Any]:
        """The settings of a layer, from the options of `convert`. Its keywords are the options.

        Args:
            sizes: The `Sizes` of the layer.
            **options: What `convert` was given.

        Raises:
            ValueError: For options that cannot be used.
        """
        raise NotImplementedError

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        training: bool | None = None,
        given: Any = None,
    ) -> Tensor:
        """Outputs (B, T, N, H) of all tokens.

        Args:
            query: Tensor of shape (B, T, N, H).
            key: Tensor of shape (B, T, N, H).
            value: Tensor of shape (B, T, N, H).
            mask: Optional mask of shape (T, T), (B, T, T) or (B, N, T, T); true is visible.
            training: Whether to apply dropout.
            given: What the adapter's `logits` needs of the arguments of the call, if anything.
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

    def mask_of(self, query: Tensor, mask: Tensor | None, index: Any = 0) -> Visibility:
        """A mask, and what the layer itself hides, for queries (B, t, N, H) from `index` on.

        Args:
            query: The queries.
            mask: Optional mask; with an `index` it must be given, with all S columns.
            index: Position of the first query.
        """
        entries = None if mask is None else four_dimensional(mask)  # (B, 1, t, S)
        window = self.adapter.window(self)
        if window is not None:
            rows = index + ops.arange(ops.shape(query)[1], dtype="int32")
            length = ops.shape(query)[1] if mask is None else ops.shape(mask)[-1]
            columns = ops.arange(length, dtype="int32")
            behind = rows[:, None] - columns[None, :]  # (t, S)
            before, after = window
            seen = all_of(
                None if before is None else behind <= before,
                None if after is None else behind >= -after,
            )
            entries = all_of(entries, four_dimensional(seen))
        return Visibility(entries=entries)

    def add_coefficients(self) -> None:
        """Makes the weights of the layer that the original does not have."""

    @property
    def num_signals(self) -> int:
        """How many signals of past tokens the layer keeps, their values among them."""
        return 1

    @property
    def sizes(self) -> Any:
        """The `Sizes` of the layer."""
        return self.adapter.sizes(self)

    @property
    def needed_slots(self) -> int:
        """Keys and values, and Nq / Nkv slots for each further signal: those are per query head."""
        return 2 + (self.num_signals - 1) * int(self.sizes.groups)

    def _is_told_by_weights(self, store: Any) -> bool:
        return bool(self.coefficients)

    def start(self, settings: dict[str, Any], multiplier: float) -> None:
        """Gives the layer its settings and its new weights; its class has changed already."""
        self._multiplier = multiplier
        self.settings = SimpleNamespace(**settings)
        self.add_coefficients()

    def stop(self) -> None:
        """Takes settings and new weights away again."""
        added = {id(variable) for variable in self.coefficients}
        ours = ("settings", "converted_from", "cache_slots", "_multiplier", "_coefficient_names")
        for name, held in list(vars(self).items()):
            if name in ours or id(held) in added:
                remove_attribute(self, name)

    def attend_inputs(
        self,
        inputs: Tensor,
        mask: Tensor | None,
        index: Any = None,
        training: bool | None = None,
        given: Any = None,
    ) -> Tensor:
        """The layer's result for all tokens, (B, T, d), where only its `call` can be a hook.

        Args:
            inputs: The tokens, (B, T, d).
            mask: Optional mask of shape (B, T, T).
            index: `cache_update_index`, which needs a cache: it must be `None`.
            training: Whether to apply dropout.
            given: What the adapter's `logits` needs of the arguments of the call, if anything.
        """
        if index is not None:
            raise ValueError(
                "`cache_update_index` needs a `cache`. Received: cache=None, "
                f"cache_update_index={index}"
            )
        query, key, value = self.adapter.projected(self, inputs, 0)
        key = self.adapter.cached_keys(self, key)
        key, value = (in_all_heads(x, self.sizes.groups) for x in (key, value))
        outputs = self.attend(query, key, value, mask, training, given)
        return self.adapter.output(self, outputs, training)

    def attend_cached(
        self,
        inputs: Tensor,
        mask: Tensor | None,
        cache: Tensor,
        index: Any,
        training: bool | None,
        *,
        given: Any = None,
        update: Tensor | None = None,
        projected: tuple[Tensor, Tensor, Tensor] | None = None,
        gate: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The layer's result for new tokens, (B, t, d), and the next cache.

        Args:
            inputs: The new tokens, (B, t, d).
            mask: Optional mask of shape (B, t, S) against the whole cache.
            cache: The cache, (B, slots, S, Nkv, H): keys, values, further signals.
            index: Position of the first new token.
            training: Whether to apply dropout.
            given: What the adapter's `logits` needs of the arguments of the call, if anything.
            update: Optional mask of shape (B, t): the tokens whose cache is written.
            projected: Optional queries, keys and values of the new tokens, where `projected` of the
                adapter cannot make them of `inputs` and `index` only.
            gate: Optional factors of the outputs of the heads, (B, t, N, H).
        """
        refuse_paged_attention(self)
        self.check_index(index)
        cache = open_slots(cache, max(self.cache_slots, self.needed_slots))
        query, key, value = projected or self.adapter.projected(self, inputs, index)
        reasons = self.mask_of(query, step_mask(mask, inputs, cache, index), index)
        step = Step(index, reasons.entries, update)
        cache = step.write(cache, ops.stack([key, value], axis=1), 0)
        if update is not None:
            start = (0, 1, index, 0, 0)
            value = ops.slice(cache, start, ops.shape(value[:, None]))[:, 0]
        value = in_all_heads(value, self.sizes.groups)
        logits = self.adapter.logits(self, ops.shape(cache)[2], given)
        outputs, cache = self.attend_rows(query, value, cache, step, logits)
        outputs = outputs if gate is None else outputs * gate
        return self.adapter.output(self, outputs, training), cache

    def check_index(self, index: Any) -> None:
        """Refuses a cache without the position of the first new token."""
        if index is None:
            raise ValueError(
                f"{type(self).__name__} decodes self-attention: with `cache` it needs "
                "`cache_update_index`. Received: cache_update_index=None"
            )

    def get_config(self) -> dict[str, Any]:
        """What the layer is; to look at, since a converted layer is not made from it."""
        config = keras.Layer.get_config(self)
        options = self.converted_from.request.options
        serialized = keras.saving.serialize_keras_object(options)
        return {**config, NAME: self._multiplier, **serialized}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        raise ValueError(
            f"{cls.__name__} is made by keras_graphattn.convert from a built "
            f"{cls.plain_class.__name__} only. Received: config={config!r}. Save and load the "
            "model or the backbone that it is in."
        )
