"""The base of the layers that hold a mask of `keras_graphattn.masks`."""

import weakref
from typing import Any

from keras import ops

from keras_graphattn.keras_internals import move, walk
from keras_graphattn.layers.parts.multi_head import Masks, MultiHeadLayer
from keras_graphattn.masks.calls import check_heads
from keras_graphattn.masks.mask import Mask

Tensor = Any


class MaskLayer(MultiHeadLayer):
    """Base of the layers with a mask of factors.

    It builds the mask, adds `mask_inputs` (the tensors that the mask needs at each call) to the
    call of multi-head attention, and takes broken tokens out of the inputs.
    """

    mask: Mask | None

    def build(self, query_shape: Any, value_shape: Any = None, key_shape: Any = None) -> None:
        if self.mask is not None:
            self._build_mask(self.mask, (*query_shape[:2], self.num_heads, self.value_dim))
        super().build(query_shape, value_shape, key_shape)

    def _build_mask(self, mask: Mask, signal_shape: Any) -> None:
        """Makes the mask a part of this layer. It may be built already, by hand or from a file.

        Raises:
            ValueError: For a mask whose weights belong to another layer, or with other heads.
        """
        for part in walk(mask):
            if part.weights and part._holder is not None and part._holder() is not self:
                other = part._holder()
                raise ValueError(
                    "A mask with weights belongs to one layer. Received: the mask "
                    f"{type(part).__name__} '{part.name}' in '{self.path}'. It belongs to "
                    f"{'another layer' if other is None else repr(other.path)}. Give each layer a "
                    "mask of its own, such as mask.from_config(mask.get_config())."
                )
        if mask.built:
            check_heads(mask, signal_shape)
            move(mask, self)
        else:
            mask.build(signal_shape)
        for part in walk(mask):
            part._holder = weakref.ref(self)

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
        *,
        mask: Tensor | None = None,
    ) -> Any:
        masks = Masks(
            query_mask, value_mask, key_mask, attention_mask, use_causal_mask, mask_inputs
        )
        return self._call(query, value, key, masks, mask, return_attention_scores, training)

    def _without_broken(
        self, query: Tensor, value: Tensor, key: Tensor, masks: Masks
    ) -> tuple[Tensor, Tensor, Tensor, Masks]:
        """Returns the inputs with zeros for tokens that hold NaN or infinity, and marks these.

        A mask separates segments, components and the future by factors of 0, and 0 times NaN is
        NaN. So broken tokens are taken out here. Rows that see a broken token become NaN at the
        end.
        """
        if self.mask is None or not self.mask.hides_keys:
            return query, value, key, masks
        tensors = [query, *(x for x in (value, key) if x is not query)]
        finite = [ops.all(ops.isfinite(x), axis=-1, keepdims=True) for x in tensors]
        whole = finite[0]
        for other in finite[1:]:
            whole = ops.logical_and(whole, other)  # (B, T, 1)
        clean = {id(x): ops.where(whole, x, ops.cast(0.0, x.dtype)) for x in tensors}
        masks = masks._replace(broken=ops.logical_not(whole[..., 0]))  # (B, T)
        return clean[id(query)], clean[id(value)], clean[id(key)], masks

    def compute_output_spec(
        self, *args: Any, mask_inputs: dict[str, Tensor] | None = None, **kwargs: Any
    ) -> Any:
        return super().compute_output_spec(*args[:10], **kwargs)
