"""The call of the layers that hold a mask of `keras_graphattn.masks`."""

from typing import Any

from keras_graphattn.layers.multi_head import Masks

Tensor = Any


class MaskCall:
    """Multi-head attention's call, and `mask_inputs`: what the mask needs at each call."""

    _call: Any

    def call(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        mask_inputs: dict[str, Tensor] | None = None,
    ) -> Any:
        masks = Masks(
            query_mask, value_mask, key_mask, attention_mask, use_causal_mask, mask_inputs
        )
        return self._call(query, value, key, masks, return_attention_scores, training)

    def compute_output_spec(
        self, *args: Any, mask_inputs: dict[str, Tensor] | None = None, **kwargs: Any
    ) -> Any:
        return super().compute_output_spec(*args[:10], **kwargs)  # type: ignore[misc]
