"""A layer's mask, joined with causality and with the entries of a call; made once per layer."""

from typing import Any

from keras_graphattn.masks.chunked import Causal
from keras_graphattn.masks.entries import Entries
from keras_graphattn.masks.mask import Mask
from keras_graphattn.masks.product import Product
from keras_graphattn.numerics.custom_gradient import kept_with


def mask_form(layer: Any, *, causal: bool = False, entries: bool = False) -> Mask | None:
    """The mask of a layer, times a causal mask and times the entries of a call if asked for.

    The form shares the weights of the layer's mask. It is made once and kept with the layer.

    Args:
        layer: A layer with a `mask`, which may be `None`.
        causal: Whether each position sees only itself and those before it.
        entries: Whether the call has a matrix of factors, under the name `entries`.
    """
    mask: Mask | None = layer.mask
    if entries:
        mask = kept_with(layer, _causal_with_entries if causal else _with_entries)
    elif causal and (mask is None or not mask.is_causal):
        mask = kept_with(layer, _causal)
    return mask


def _causal(layer: Any) -> Mask:
    return Causal() if layer.mask is None else Product([Causal(), layer.mask])


def _with_entries(layer: Any) -> Mask:
    return Entries() if layer.mask is None else Product([layer.mask, Entries()])


def _causal_with_entries(layer: Any) -> Mask:
    causal: Any = mask_form(layer, causal=True)
    return Product([causal, Entries()])
