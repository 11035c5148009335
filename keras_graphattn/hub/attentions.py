"""The attentions that `convert` knows by name, and what they can take the place of.

A later attention, or a backbone with an attention class of its own, is one call of
`register_attention`: the name that `convert` takes, the class that is replaced, the class that
replaces it.
"""

from typing import Any

import keras

from keras_graphattn.hub.cached import (
    CachedAttentiveGraphFilter,
    CachedGraphFilterAttention,
    CachedPLaplacianAttention,
)
from keras_graphattn.hub.cached_kernel import CachedMaskedKernelAttention
from keras_graphattn.layers.attentive_graph_filter import AttentiveGraphFilter
from keras_graphattn.layers.graph_filter_attention import GraphFilterAttention
from keras_graphattn.layers.masked_kernel_attention import MaskedKernelAttention
from keras_graphattn.layers.multi_head import MultiHeadLayer
from keras_graphattn.layers.p_laplacian_attention import PLaplacianAttention

STOCK = "MultiHeadAttention"
CACHED = ("CachedMultiHeadAttention", "WhisperCachedMultiHeadAttention")

_ATTENTIONS: dict[tuple[str, str], type] = {}


def register_attention(attention: str, replaced: str, replacement: type) -> None:
    """Makes an attention known to `convert`.

    Args:
        attention: The name that `convert` takes.
        replaced: Name of the class of layers that are replaced, such as `"MultiHeadAttention"`:
            a class with the projections of `keras.layers.MultiHeadAttention`.
        replacement: The layer class: a subclass of this package's `MultiHeadLayer` that is called
            like the class it replaces.

    Raises:
        ValueError: For names that are none, and for another class.

    Example:

    >>> from keras_graphattn.layers import GraphFilterAttention
    >>> register_attention("graph_filter", "MultiHeadAttention", GraphFilterAttention)
    """
    for name, given in (("attention", attention), ("replaced", replaced)):
        if not isinstance(given, str):
            raise ValueError(f"`{name}` must be a name. Received: {name}={given!r}")
    if not isinstance(replacement, type) or not issubclass(replacement, MultiHeadLayer):
        raise ValueError(
            "`replacement` must be a class of layers like those of keras_graphattn.layers. "
            f"Received: replacement={replacement!r}"
        )
    _ATTENTIONS[attention, replaced] = replacement


def attention_names() -> list[str]:
    """The names that `convert` takes."""
    return sorted({attention for attention, _ in _ATTENTIONS})


def is_reached(layer: Any) -> bool:
    """Whether some attention can take the place of this layer."""
    replaced = {name for _, name in _ATTENTIONS}
    return isinstance(layer, keras.layers.MultiHeadAttention) and type(layer).__name__ in replaced


def replacement_for(attention: str, layer: Any) -> type:
    """The class that takes the place of `layer`.

    Raises:
        ValueError: If there is no attention of this name, or none for this class of layer.
    """
    if attention not in attention_names():
        raise ValueError(
            f"`attention` must be one of {attention_names()}. Received: attention={attention!r}"
        )
    found = _ATTENTIONS.get((attention, type(layer).__name__))
    if found is None:
        raise ValueError(
            f"attention={attention!r} cannot take the place of {type(layer).__name__}. Register "
            "a layer class that can with keras_graphattn.hub.register_attention."
        )
    return found


register_attention("graph_filter", STOCK, GraphFilterAttention)
register_attention("p_laplacian", STOCK, PLaplacianAttention)
register_attention("attentive_graph_filter", STOCK, AttentiveGraphFilter)
register_attention("masked_kernel", STOCK, MaskedKernelAttention)
for _name in CACHED:
    register_attention("graph_filter", _name, CachedGraphFilterAttention)
    register_attention("p_laplacian", _name, CachedPLaplacianAttention)
    register_attention("attentive_graph_filter", _name, CachedAttentiveGraphFilter)
    register_attention("masked_kernel", _name, CachedMaskedKernelAttention)
