"""The masks that masked kernel attention accepts, and what they become in one call."""

from typing import Any, NamedTuple

from keras import ops

from keras_graphattn.checks import is_one_of
from keras_graphattn.layers.parts.mask_forms import mask_form
from keras_graphattn.layers.parts.multi_head import Masks
from keras_graphattn.masks import get
from keras_graphattn.masks.mask import Mask
from keras_graphattn.ops.softmax.masks import all_of

Tensor = Any


class KernelMask(NamedTuple):
    """The masks of one call of kernel attention."""

    mask: Mask | None
    inputs: dict[str, Tensor]  # the tensors that `mask` needs
    queries: Tensor | None  # (B, T), False in padding
    keys: Tensor | None  # (B, S), False in padding

    def sighted_rows(self) -> Tensor | None:
        """Which rows see a key that is not padding, by padding and causality only: (B, T, 1)."""
        sighted = None
        if self.keys is not None:
            counts = ops.cast(self.keys, "int32")
            if self.mask is not None and self.mask.is_causal:
                counts = ops.cumsum(counts, axis=1)  # (B, T)
            else:
                counts = ops.sum(counts, axis=1, keepdims=True)  # (B, 1)
            sighted = (counts > 0)[:, :, None]
        return all_of(sighted, None if self.queries is None else self.queries[:, :, None])


def checked_mask(mask: Any, path: str) -> Mask | None:
    """The mask for a layer's arguments `mask` and `path`.

    Raises:
        ValueError: For an invalid mask, and for a path that the mask does not have.
    """
    found = None if mask is None else get(mask)
    paths = ("auto", "dense") if found is None else ("auto", *found.paths)
    if not is_one_of(path, paths):
        kind = "Without a mask" if found is None else f"With the mask {type(found).__name__}"
        raise ValueError(f"{kind}, `path` must be one of {list(paths)}. Received: path={path!r}")
    return found


def kernel_mask(layer: Any, masks: Masks) -> KernelMask:
    """The layer's mask, joined with causality and with the `attention_mask` of the call."""
    mask, inputs = layer.mask, dict(masks.inputs or {})
    if mask is None and inputs:
        raise ValueError(
            "`mask_inputs` are for a mask, and this layer has no mask. Received: "
            f"mask_inputs with {sorted(inputs)}. Set `mask`."
        )
    if masks.causal:
        mask = mask_form(layer, causal=True)
    queries, entries = all_of(masks.query), masks.attention
    if entries is None:
        return KernelMask(mask, inputs, queries, all_of(masks.value, masks.key))
    if is_key_mask(entries.shape):
        keys = ops.reshape(entries, (-1, ops.shape(entries)[-1]))  # (B, S)
        return KernelMask(mask, inputs, queries, all_of(masks.value, masks.key, keys))
    if layer.attention_path not in ("auto", *Mask.paths):
        raise ValueError(
            "An `attention_mask` for each pair of positions needs a path that forms the pairs. "
            f"Received: attention_mask.shape={tuple(entries.shape)}, path="
            f"{layer.attention_path!r}. "
            'Use path="auto", "dense" or "blockwise", or a `mask`.'
        )
    mask = mask_form(layer, causal=masks.causal, entries=True)
    inputs["entries"] = ops.cast(entries, "bool")
    return KernelMask(mask, inputs, queries, all_of(masks.value, masks.key))


def is_key_mask(shape: Any) -> bool:
    """Whether the shape is (B, 1, S) or (B, 1, 1, S)."""
    return len(shape) in (3, 4) and all(size == 1 for size in shape[1:-1])
