"""The attentions that `convert` knows by name, and what they can take the place of.

A later attention, or a backbone with an attention class of its own, is one call of
`register_attention`: the name that `convert` takes, the class that is replaced, the class that
replaces it.
"""

import difflib
import inspect
from typing import Any

import keras

from keras_graphattn.hub.cached import (
    CachedAttentiveGraphFilter,
    CachedGraphFilterAttention,
    CachedPLaplacianAttention,
)
from keras_graphattn.hub.cached_kernel import CachedMaskedKernelAttention
from keras_graphattn.hub.internals import subclasses_of
from keras_graphattn.layers.attentive_graph_filter import AttentiveGraphFilter
from keras_graphattn.layers.graph_filter_attention import GraphFilterAttention
from keras_graphattn.layers.masked_kernel_attention import MaskedKernelAttention
from keras_graphattn.layers.p_laplacian_attention import PLaplacianAttention
from keras_graphattn.layers.parts.multi_head import MultiHeadLayer

STOCK = "MultiHeadAttention"
CACHED = ("CachedMultiHeadAttention", "WhisperCachedMultiHeadAttention")

_ATTENTIONS: dict[tuple[str, str], type] = {}

# Names in papers and in other libraries, written as `_simple` writes them.
ALIASES = {
    **dict.fromkeys(("gfsa", "graphfilterattention"), "graph_filter"),
    **dict.fromkeys(("plat", "plaplacianattention"), "p_laplacian"),
    **dict.fromkeys(("agf", "attentivegraphfilterattention"), "attentive_graph_filter"),
    **dict.fromkeys(("maskedkernelattention",), "masked_kernel"),
}
HINTS = {
    **dict.fromkeys(
        ("performer", "favor", "favor+"), 'Use attention="masked_kernel" with feature_map="favor".'
    ),
    **dict.fromkeys(
        ("gkat", "graphkernel", "graphkernelattention"),
        "GKAT needs the graph of the tokens: build the model with "
        'keras_graphattn.layers.GraphKernelAttention, or use attention="masked_kernel".',
    ),
    **dict.fromkeys(
        ("softmax", "multiheadattention"),
        "For the model's own attention call keras_graphattn.revert(model).",
    ),
}


def _simple(name: str) -> str:
    """A name without what writers differ in: case, spaces, hyphens and underscores."""
    return "".join(letter for letter in name.lower() if letter not in " -_")


def register_attention(attention: str, replaced: str, replacement: type) -> None:
    """Makes an attention known to `convert`.

    Args:
        attention: The name that `convert` takes.
        replaced: Name of the class of layers that are replaced, such as `"MultiHeadAttention"`:
            a subclass of `keras.layers.MultiHeadAttention`, since its projections are kept.
        replacement: The layer class: a subclass of this package's `MultiHeadLayer` that is called
            like the class it replaces.

    Raises:
        ValueError: For names that are none, for a replaced class without the projections of
            `keras.layers.MultiHeadAttention`, and for another replacement.

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
    known = [cls for cls in subclasses_of(keras.Layer) if cls.__name__ == replaced]
    if known and not any(issubclass(cls, keras.layers.MultiHeadAttention) for cls in known):
        raise ValueError(
            "`replaced` must be the name of a subclass of keras.layers.MultiHeadAttention: its "
            f"projections are kept as they are. Received: replaced={replaced!r}, which is "
            f"{known[0].__module__}.{replaced}. Use layers of keras_graphattn.layers where such a "
            "model is built."
        )
    _ATTENTIONS[attention, replaced] = replacement


def attention_names() -> list[str]:
    """The names that `convert` takes."""
    return sorted({attention for attention, _ in _ATTENTIONS})


def attention_name(attention: Any) -> str:
    """The name that an attention is registered under, from that name or from another one for it.

    Raises:
        ValueError: If there is no such attention. The message says what is meant, if it can.
    """
    names = attention_names()
    if attention in names:
        return str(attention)
    simple = _simple(attention) if isinstance(attention, str) else ""
    known = {**ALIASES, **{_simple(name): name for name in names}}
    if simple in known:
        return known[simple]
    close = difflib.get_close_matches(simple, known, n=1)
    hint = f"Did you mean {known[close[0]]!r}?" if close else ""
    message = f"`attention` must be one of {names}. Received: attention={attention!r}. "
    raise ValueError((message + HINTS.get(simple, hint)).strip())


def replaced_names() -> list[str]:
    """The names of the classes of layers that some attention can take the place of."""
    return sorted({name for _, name in _ATTENTIONS})


def is_reached(layer: Any) -> bool:
    """Whether some attention can take the place of this layer."""
    is_stock = isinstance(layer, keras.layers.MultiHeadAttention)
    return is_stock and type(layer).__name__ in replaced_names()


def attentions_made_by(cls: type) -> tuple[list[str], list[str]]:
    """The classes of attention that the code of a class of layers names, and of those it makes.

    Returns:
        The names of classes that an attention can take the place of, and the names of other
        classes with "Attention" in their names. Code that gets its attention from elsewhere
        has neither.
    """
    stock: set[str] = set()
    others: set[str] = set()
    seen: set[type] = set()
    waiting = [cls]
    while waiting:
        current = waiting.pop()
        if current in seen or current.__module__.startswith("keras."):
            continue
        seen.add(current)
        waiting.extend(base for base in current.__bases__ if issubclass(base, keras.Layer))
        for function in filter(inspect.isfunction, vars(current).values()):
            function = inspect.unwrap(function)
            stock.update(set(function.__code__.co_names) & set(replaced_names()))
            named = (function.__globals__.get(name) for name in function.__code__.co_names)
            made = [x for x in named if isinstance(x, type) and issubclass(x, keras.Layer)]
            waiting.extend(made)
            others.update(x.__name__ for x in made if "Attention" in x.__name__)
    return sorted(stock), sorted(others - stock)


def replacement_for(attention: str, layer: Any) -> type:
    """The class that takes the place of `layer`.

    Raises:
        ValueError: If there is no attention of this name, or none for this class of layer.
    """
    found = _ATTENTIONS.get((attention_name(attention), type(layer).__name__))
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
