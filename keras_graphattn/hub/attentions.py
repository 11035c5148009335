"""The attentions that `convert` knows by name, and what they can take the place of.

The adapters of `keras_graphattn.hub.adapters` hold them. A later attention is one call of
`register_attention`: the name that `convert` takes, the class that is replaced, the class that
takes its place.
"""

import inspect
from typing import Any

import keras

from keras_graphattn.checks import did_you_mean, plain_name
from keras_graphattn.hub.adapters import (
    ADAPTERS,
    StockAdapter,
    adapter_of,
    adapters_named,
    register_adapter,
    served_names,
)
from keras_graphattn.keras_internals import subclasses_of
from keras_graphattn.layers.conversion_mark import ConversionMark

# Names in papers and in other libraries, written as `plain_name` writes them.
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


def register_attention(attention: str, replaced: str, replacement: type) -> None:
    """Makes an attention known to `convert`.

    Args:
        attention: The name that `convert` takes.
        replaced: Name of the class of layers that are replaced: one that an adapter serves, such
            as `"MultiHeadAttention"` or `"LlamaAttention"`, or any subclass of
            `keras.layers.MultiHeadAttention`.
        replacement: The class that takes its place. For `keras.layers.MultiHeadAttention` and its
            subclasses, whose projections are kept: a subclass of this package's `AttentionLayer`
            that is called like the class it replaces. For other layers, which change their class:
            a subclass of `keras_graphattn.hub.adapters.ConvertedAttention`.

    Raises:
        ValueError: For invalid names, for a class that no adapter serves, and for a replacement
            that does not fit.

    Example:

    >>> from keras_graphattn.hub.adapters import ConvertedGraphFilter
    >>> from keras_graphattn.layers import GraphFilterAttention
    >>> register_attention("graph_filter", "MultiHeadAttention", GraphFilterAttention)
    >>> register_attention("graph_filter", "LlamaAttention", ConvertedGraphFilter)
    """
    for name, given in (("attention", attention), ("replaced", replaced)):
        if not isinstance(given, str):
            raise ValueError(f"`{name}` must be a name. Received: {name}={given!r}")
    adapter = next(iter(adapters_named(replaced)), None)
    if adapter is not None:
        adapter.check_replacement(replacement)
        adapter.attentions[attention] = replacement
        return
    known = [cls for cls in subclasses_of(keras.Layer) if cls.__name__ == replaced]
    if known and not any(issubclass(cls, keras.layers.MultiHeadAttention) for cls in known):
        raise ValueError(
            "`replaced` must be the name of a class that an adapter serves "
            f"({', '.join(served_names())}), or of a subclass of keras.layers.MultiHeadAttention. "
            f"Received: replaced={replaced!r}, which is {known[0].__module__}.{replaced}. Write an "
            "adapter for it, and call keras_graphattn.hub.register_adapter first."
        )
    adapter = StockAdapter((replaced,), {attention: replacement})
    adapter.check_replacement(replacement)
    register_adapter(adapter)


def attention_names() -> list[str]:
    """The names that `convert` takes."""
    return sorted({name for adapter in ADAPTERS for name in adapter.attentions})


def attention_name(attention: Any) -> str:
    """The name that an attention is registered under, from that name or from another one for it.

    Raises:
        ValueError: If there is no such attention. The message says what is meant, if it can.
    """
    names = attention_names()
    if attention in names:
        return str(attention)
    simple = plain_name(attention) if isinstance(attention, str) else ""
    known = {**ALIASES, **{plain_name(name): name for name in names}}
    if simple in known:
        return known[simple]
    hint = f" {HINTS[simple]}" if simple in HINTS else did_you_mean(attention, known)
    raise ValueError(
        f"`attention` must be one of {names}. Received: attention={attention!r}.{hint}"
    )


def is_reached(layer: Any) -> bool:
    """Whether some attention can take the place of this layer."""
    return not is_ours(layer) and adapter_of(layer) is not None


def is_ours(layer: Any) -> bool:
    """Whether this is attention of this package, made by `convert` or not."""
    return isinstance(layer, ConversionMark)


def is_attention(layer: Any) -> bool:
    """Whether this is an attention layer itself, in which no other is looked for."""
    is_stock = isinstance(layer, keras.layers.MultiHeadAttention)
    return is_stock or is_ours(layer) or is_reached(layer)


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
            stock.update(set(function.__code__.co_names) & set(served_names()))
            named = (function.__globals__.get(name) for name in function.__code__.co_names)
            made = [x for x in named if isinstance(x, type) and issubclass(x, keras.Layer)]
            waiting.extend(made)
            others.update(x.__name__ for x in made if "Attention" in x.__name__)
    return sorted(stock), sorted(others - stock)
