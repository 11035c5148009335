"""The three verbs: `convert`, `inspect`, `revert`; and `where`, which selects attention layers."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from keras_graphattn.checks import is_whole, plain
from keras_graphattn.hub.families import (
    attention_name,
    is_attention,
    is_ours,
    is_reached,
    served_names,
)
from keras_graphattn.hub.reach import reached_names
from keras_graphattn.hub.saving import (
    forget_conversions,
    is_reachable,
    settle_classes,
    settle_optimizer,
)
from keras_graphattn.hub.slots import (
    AttentionSlot,
    Request,
    added_variables,
    align_caches,
    attention_slots,
    convert_slots,
    direct_slots,
    is_backbone_class,
    is_task_class,
    parents_of,
)
from keras_graphattn.hub.table import Row, Table, coefficients_of, multiplier_of, note_on_optimizer
from keras_graphattn.keras_internals import (
    forget_compiled,
    fresh_optimizer,
    sublayers,
    track_again,
    walk,
)
from keras_graphattn.layers.base import OF_PROJECTIONS
from keras_graphattn.layers.token_layer import TokenLayer

Where = str | int | Sequence[int]  # what selects attention layers

GIVEN_BY_THE_MODEL = (
    *("num_heads", "key_dim", "value_dim", "use_bias", "output_shape", "attention_axes"),
    *("use_gate", "num_key_value_heads", "name", "dtype", "trainable"),
)
_EXPECTED = (
    '"all", "even", "odd", "first:<n>", "last:<n>", an index or a list of indices, or a regular '
    "expression that is searched for in the paths"
)


def convert(
    model: keras.Layer, attention: str = "graph_filter", where: Where = "all", **options: Any
) -> keras.Layer:
    """Replaces a model's self-attention by graph attention, in place.

    All weights keep their values and their places. With `"graph_filter"`, `"p_laplacian"` and
    `p=2`, or `"scaled_high_frequency"`, it starts with the outputs of the original. `"p_laplacian"`
    with other exponents, `"attentive_graph_filter"`, `"masked_kernel"` and `"contra_norm"` compute
    something else with the pretrained projections: the model has to be fine-tuned before it is of
    use.

    The model can be saved, loaded (where `keras_graphattn` and KerasHub are imported), cloned,
    copied, pickled, quantised and trained like any other. The same holds for models that are made
    later from its layers or tensors. `generate` decodes with a cache. Compiled functions are
    dropped, and an optimizer that has taken steps is replaced by a new one of the same settings.
    All errors are raised before anything has changed.

    Coefficients are numbers of the order of 1: at the rates of fine-tuning they would not leave
    their start. So a converted backbone or task trains them at 100 times the rate of its optimizer,
    however it is compiled. At a rate of 5e-5, they move by about 5e-3 in a step. Set
    `coefficient_learning_rate_multiplier` to 10, for a mask to 30, where the rate itself is 1e-3,
    as in training from scratch. Any other model that holds converted layers, such as one composed
    of a converted backbone's tensors, is compiled with
    `keras_graphattn.optimizers.with_coefficient_rates(optimizer)`. `inspect` shows the multiplier.

    Args:
        model: A KerasHub (KerasNLP) task or backbone, a KerasCV `TransformerEncoder`, or a model
            that has any of them in it. Models that hold `model` now carry the conversion too:
            they drop their compiled functions, and tell it when they are saved or cloned.
        attention: `"graph_filter"` (or `"gfsa"`), `"p_laplacian"` (`"p-lat"`),
            `"attentive_graph_filter"` (`"agf"`) or `"masked_kernel"`; for encoders such as BERT and
            ViT also `"scaled_high_frequency"` (`"attnscale"`) and `"contra_norm"`. For backbones
            with an attention class of their own, such as Llama, Mistral and Qwen: the first two.
            In a `TransformerDecoder`, AGF and masked kernels follow causality and padding. They
            refuse a `decoder_attention_mask`, and AGF also `use_causal_mask=False`.
        where: `"all"`; `"even"` (indices 0, 2, 4, ...) or `"odd"`; `"first:<n>"` or `"last:<n>"`;
            an index or a list of indices; or a regular expression that is searched for in the
            paths of the attention layers. `inspect` shows indices and paths.
        **options: Arguments of the new layers, such as `order=4`, `p=[1.5, 2.5]`, `dropout=0.0`,
            `bias`, an object of `keras_graphattn.biases` of which each layer gets its own,
            or `coefficient_learning_rate_multiplier`, 100 by default: how many times as fast as
            other weights their coefficients learn.

    Returns:
        The model itself.

    Raises:
        ValueError: If `where` matches no attention layer, one that is converted already, or one
            that cannot be, such as one whose matrix is not square; for models without
            self-attention that is reached; for an attention that cannot replace the
            model's layers; for options that the new layers refuse, or that are the model's to
            decide.

    Example:

    >>> import keras_hub
    >>> backbone = keras_hub.models.BertBackbone(
    ...     vocabulary_size=30, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> backbone = convert(backbone, "graph_filter", where="last:1", order=4)
    >>> print(inspect(backbone))
    index  path                                      class                 added  rate  values
        0  transformer_layer_0/self_attention_layer  MultiHeadAttention        0
        1  transformer_layer_1/self_attention_layer  GraphFilterAttention      6  x100
             identity_coefficient                                                 x100  0, 0
             linear_coefficient                                                   x100  1, 1
             power_coefficient                                                    x100  0, 0

    Sources: arXiv 2312.04234 (GFSA), 2311.03235 (p-LaT), 2505.08516 (AGF), 2107.07999 (masks).
    """
    name = attention_name(attention)
    kept = () if name == "attentive_graph_filter" else OF_PROJECTIONS  # AGF has one of its own
    given = (*GIVEN_BY_THE_MODEL, *kept)
    refused = [f"{option}={options[option]!r}" for option in options if option in given]
    if refused:
        raise ValueError(
            f"Received: {', '.join(refused)}. The layers that are replaced decide this: they keep "
            "their weights. Leave it out."
        )
    request = Request(name, dict(options))
    owners = _owners(model)
    slots = _slots_of(owners)
    if not slots:
        raise ValueError(_nothing_to_convert(model))
    paths = [slot.path for slot in slots]
    selected = select(where, paths)
    twice = [paths[index] for index in selected if slots[index].is_converted]
    if twice:
        raise ValueError(
            f"{twice} are converted already. Received: where={where!r}. Call "
            f"keras_graphattn.revert(model) first, or select others.\n{listing(paths)}"
        )
    _check_selected(slots, selected, where)
    parents = parents_of(model)
    for layer in (*walk(model), *parents):
        fresh_optimizer(layer)  # what it refuses, it refuses before anything has changed
    convert_slots([slots[index] for index in selected], request)
    _settle(model, owners, parents)
    return model


def revert(model: keras.Layer) -> keras.Layer:
    """Puts the original attention back, in place; all weights except the added ones are kept.

    Args:
        model: A model that `convert` was called on, or one loaded from what it was saved to.

    Returns:
        The model itself, with the classes it had. Without a converted layer nothing happens.

    Example:

    >>> import keras_hub
    >>> backbone = keras_hub.models.BertBackbone(
    ...     vocabulary_size=30, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> type(revert(convert(backbone))).__name__
    'BertBackbone'
    """
    owners = _owners(model, refuses=False)
    for slot in _slots_of(owners):
        if slot.is_converted:
            slot.revert()
    forget_conversions(model)
    _settle(model, owners, parents_of(model))
    return model


def inspect(model: keras.Layer) -> Table:
    """The self-attention that `convert` reaches, all layers of this package, their coefficients.

    Args:
        model: Any Keras model or layer.

    Returns:
        A list of rows, which prints as a table. First come the self-attention layers that
        `convert` reaches; then the other layers of this package, which have no `index`. A row has
        the fields:

        * `index`: the number that `where` of `convert` takes, or `None`;
        * `path`, `class_name`;
        * `parameters_added`: how many numbers `convert` has added, or those of the coefficients of
          a layer that was not converted;
        * `coefficient_learning_rate_multiplier`: that of its coefficients, or the layer's
          if they differ; `None` without coefficients;
        * `coefficients`: a dictionary from the name of each coefficient, or weight of a mask, to
          its `values`, a NumPy array, and the `multiplier` of its learning rate. The table prints
          more than 8 numbers as their shape, mean and range. Empty before the layer is built.

        The `note` of the table says so where the model is compiled with an optimizer that does
        not apply the multipliers.

    Raises:
        ValueError: For models without any of these layers.

    Example:

    >>> import keras_hub
    >>> encoder = keras_hub.layers.TransformerEncoder(16, num_heads=2, name="encoder")
    >>> outputs = encoder(keras.random.normal((2, 5, 8)))
    >>> inspect(encoder)[0].class_name
    'MultiHeadAttention'
    >>> layer = GraphFilterAttention(num_heads=2, key_dim=4)
    >>> outputs = layer(keras.random.normal((2, 5, 8)))
    >>> inspect(layer)[0].coefficients["linear_coefficient"].values.tolist()
    [1.0, 1.0]
    """
    slots = _slots_of(_owners(model, refuses=False))
    reached = {id(slot.layer) for slot in slots}
    others = [
        layer
        for layer in walk(model)
        if (is_ours(layer) or isinstance(layer, TokenLayer)) and id(layer) not in reached
    ]
    if not slots and not others:
        _owners(model)  # refuses attention that is not reached
        raise ValueError(_nothing_to_convert(model))
    rows = [
        _row(index, slot.path, slot.layer, added_variables(slot.layer) if slot.is_converted else [])
        for index, slot in enumerate(slots)
    ]
    rows += [_row(None, str(x.path or x.name), x, getattr(x, "coefficients", [])) for x in others]
    return Table(rows, note=note_on_optimizer(model, rows))


def _row(index: int | None, path: str, layer: keras.Layer, added: list[keras.Variable]) -> Row:
    count = sum(math.prod(int(length) for length in variable.shape) for variable in added)
    name = type(layer).__name__
    return Row(index, path, name, count, multiplier_of(layer), coefficients_of(layer))


def _slots_of(owners: Iterable[keras.Layer]) -> list[AttentionSlot]:
    return [slot for owner in owners for slot in attention_slots(owner)]


def _owners(model: keras.Layer, refuses: bool = True) -> list[keras.Layer]:
    """The outermost backbones and reached layers of a model, in the order of its graph.

    Each is saved as a whole. Attention that cannot be converted is refused, if it `refuses`.
    """
    if not isinstance(model, keras.Layer):
        raise ValueError(f"`model` must be a Keras model or layer. Received: {model!r}")
    owners: list[keras.Layer] = []
    seen: set[int] = set()

    def visit(layer: keras.Layer) -> None:
        if id(layer) in seen:
            return
        seen.add(id(layer))
        if is_reachable(layer) and not is_task_class(type(layer)):
            owners.append(layer)
            return
        if refuses and (
            is_backbone_class(type(layer)) or direct_slots(layer) or is_attention(layer)
        ):
            raise ValueError(_refusal(layer))
        for child in sublayers(layer):
            visit(child)

    visit(model)
    return owners


def _settle(model: keras.Layer, owners: list[keras.Layer], parents: list[keras.Layer]) -> None:
    """Updates caches, classes, compiled functions, optimizers and torch's lists.

    They belong to the model, to its layers, and to the models and layers that contain it.
    """
    for owner in owners:
        align_caches(owner, attention_slots(owner))
    layers = [*walk(model), *parents]
    settle_classes(layers)
    for layer in layers:
        if isinstance(layer, keras.Model):
            forget_compiled(layer)
            settle_optimizer(layer)
    for layer in (model, *parents):
        track_again(layer)


def _refusal(layer: keras.Layer) -> str:
    """The error for a layer that cannot be converted, with what can be."""
    name, reach = type(layer).__name__, "first call keras_graphattn.hub.reach(<its class>). "
    reach += f"These need no call: {', '.join(reached_names())}."
    if is_backbone_class(type(layer)):
        kinds = {type(x).__name__ for x in walk(layer)} - set(served_names())
        others = sorted(kind for kind in kinds if "Attention" in kind)
        own = f" It makes attention of class {', '.join(others)}." if others else ""
        return (
            f"{name} is not among the backbones that convert reaches.{own} For a backbone with "
            f"stock or cached multi-head attention, {reach}"
        )
    if is_ours(layer):
        return (
            f"{name} '{layer.name}' is a layer of the model itself and graph attention already: "
            "there is nothing to convert in it or to revert."
        )
    if is_attention(layer):
        return f"{name} '{layer.name}' is a layer of the model itself. {_instead()}"
    return (
        f"{name} '{layer.name}' holds multi-head attention, but is of no class that convert "
        f"knows. For a layer class of your own, {reach}"
    )


def _instead() -> str:
    """What to do with attention that convert does not reach."""
    return (
        "In your own model, use a layer of keras_graphattn.layers where the model is built: "
        "GraphFilterAttention takes the arguments of keras.layers.MultiHeadAttention and starts "
        "with its outputs. If a layer class of your own holds keras.layers.MultiHeadAttention in "
        "an attribute, call keras_graphattn.hub.reach(<the class>) first, and then convert. "
        "Without that call, convert replaces attention in these backbones and layers: "
        f"{', '.join(reached_names())}."
    )


def _nothing_to_convert(model: keras.Layer) -> str:
    """The error for a model without self-attention, with what to do instead."""
    name = f"{type(model).__name__} '{model.name}'"
    if not model.built or any(not layer.built for layer in walk(model)):
        return (
            f"{name} has no self-attention yet: it is not built, or a layer in it is not. Build "
            "it, or call it on data once, and then convert it."
        )
    return (
        f"{name} has no layer of keras_graphattn, and no self-attention that convert reaches. "
        f"{_instead()}"
    )


def _check_selected(slots: Sequence[AttentionSlot], selected: Sequence[int], where: Where) -> None:
    """Refuses selected slots of a model that cannot be converted, all of them in one error."""
    reasons = {i: reason for i in selected if (reason := slots[i].refusal_reason) is not None}
    if not reasons:
        return
    lines = [f"  {index:3d}  {slots[index].path}: {reason}" for index, reason in reasons.items()]
    plain = [index for index, slot in enumerate(slots) if is_reached(slot.layer)]
    others = [index for index in plain if slots[index].refusal_reason is None]
    hint = (
        f"Select others: where={others}." if others else "There is no other attention to convert."
    )
    listed = "\n".join(["Some of the selected layers cannot be converted.", *lines])
    raise ValueError(f"{listed}\nReceived: where={where!r}. {hint}")


def select(where: Where, paths: Sequence[str]) -> list[int]:
    """The indices, in order, of the paths that the `where` of `convert` selects.

    Example:

    >>> select("even", ["layer_0/attention", "layer_1/attention", "layer_2/attention"])
    [0, 2]
    >>> select("layer_[12]/", ["layer_0/attention", "layer_1/attention", "layer_2/attention"])
    [1, 2]
    """
    count, where = len(paths), plain(where)
    if isinstance(where, str):
        selected = _by_word(where, paths) if where else []
    else:
        indices: list[Any] = list(where) if isinstance(where, Sequence) else [where]
        if not all(map(is_whole, indices)):
            raise ValueError(f"`where` must be {_EXPECTED}. Received: where={where!r}")
        outside = [index for index in indices if not -count <= index < count]
        if outside:
            raise ValueError(
                f"The model has {count} attention layers. Received: where={where!r}, with "
                f"{outside} out of range.\n{listing(paths)}"
            )
        selected = sorted({int(index) % count for index in indices})
    if not selected:
        raise ValueError(
            f"No attention layer is selected by where={where!r}. Expected: {_EXPECTED}.\n"
            f"{listing(paths)}"
        )
    return selected


def listing(paths: Sequence[str]) -> str:
    """The paths, one in a line, with their indices."""
    lines = [f"  {index:3d}  {path}" for index, path in enumerate(paths)]
    return "\n".join(["The attention layers there are:", *(lines or ["  none"])])


def _by_word(where: str, paths: Sequence[str]) -> list[int]:
    everything = list(range(len(paths)))
    if where == "all":
        return everything
    if where in ("even", "odd"):
        return everything[where == "odd" :: 2]
    match = re.fullmatch(r"(first|last):(\d+)", where)
    if match is not None:
        number = int(match[2])
        if number > len(paths):
            raise ValueError(
                f"The model has {len(paths)} attention layers. Received: where={where!r}.\n"
                f"{listing(paths)}"
            )
        return everything[:number] if match[1] == "first" else everything[len(paths) - number :]
    try:
        pattern = re.compile(where)
    except re.error as error:
        raise ValueError(
            f"`where` is no regular expression ({error}). Received: where={where!r}. Expected: "
            f"{_EXPECTED}.\n{listing(paths)}"
        ) from error
    return [index for index in everything if pattern.search(paths[index])]
