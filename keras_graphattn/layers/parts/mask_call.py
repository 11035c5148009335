"""The call of the layers that hold a mask of `keras_graphattn.masks`."""

from typing import Any

from keras import ops

from keras_graphattn.layers.parts.multi_head import Masks

Tensor = Any


class MaskCall:
    """Multi-head attention's call, and `mask_inputs`: what the mask needs at each call."""

    _call: Any
    mask: Any

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

    def _without_broken(
        self, query: Tensor, value: Tensor, key: Tensor, masks: Masks
    ) -> tuple[Tensor, Tensor, Tensor, Masks]:
        """The inputs with zeros for tokens that hold NaN or infinity, and which these are.

        A mask keeps segments, components and the future apart by factors of 0, and 0 times NaN is
        NaN. So broken tokens are taken out here, and the rows that see one become NaN at the end.
        """
        if self.mask is None or not self.mask.hides_keys:
            return query, value, key, masks
        tensors = [query, *(x for x in (value, key) if x is not query)]
        finite = [ops.all(ops.isfinite(x), axis=-1, keepdims=True) for x in tensors]
        whole = finite[0]
        for other in finite[1:]:
            whole = ops.logical_and(whole, other)  # (B, T, 1)
        clean = {id(x): ops.where(whole, x, ops.cast(0.0, x.dtype)) for x in tensors}
        masks = masks._replace(broken=ops.logical_not(whole[..., 0]))
        return clean[id(query)], clean[id(value)], clean[id(key)], masks

    def compute_output_spec(
        self, *args: Any, mask_inputs: dict[str, Tensor] | None = None, **kwargs: Any
    ) -> Any:
        return super().compute_output_spec(*args[:10], **kwargs)  # type: ignore[misc]
