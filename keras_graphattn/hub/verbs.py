"""The three verbs: `convert`, `inspect`, `revert`."""

import math
from typing import Any, NamedTuple

import keras

from keras_graphattn.hub.attentions import attention_name, is_attention, is_ours
from keras_graphattn.hub.carriers import class_now, forget_conversions, make_carriers
from keras_graphattn.hub.compiling import settle_optimizer
from keras_graphattn.hub.holders import holders_of
from keras_graphattn.hub.reach import is_reachable
from keras_graphattn.hub.refusals import (
    check_registered,
    check_selected,
    nothing_to_convert,
    refusal,
)
from keras_graphattn.hub.selection import listing, select
from keras_graphattn.hub.sites import Site, attention_sites, direct_sites, is_backbone, is_task
from keras_graphattn.hub.spec import Request
from keras_graphattn.hub.surgery import (
    added_variables,
    align_caches,
    check_options,
    convert_sites,
    revert_site,
)
from keras_graphattn.hub.table import Row, Table, coefficients_of, multiplier_of, note_on_optimizer
from keras_graphattn.keras_internals import (
    change_class,
    forget_compiled,
    forget_slots,
    fresh_optimizer,
    sublayers,
    track_again,
    walk,
)
from keras_graphattn.layers.token_layer import TokenLayer


class Owner(NamedTuple):
    """A backbone, or a layer of your own model, with its self-attention layers."""

    layer: Any
    sites: list[Site]


def convert(model: Any, attention: str = "graph_filter", where: Any = "all", **options: Any) -> Any:
    """Replaces a model's self-attention by graph attention, in place.

    All weights stay what and where they are. With `"graph_filter"`, and with `"p_laplacian"` and
    `p=2`, the converted model starts with the outputs of the original. `"p_laplacian"` with other
    exponents, `"attentive_graph_filter"` and `"masked_kernel"` compute something else with the
    pretrained projections: the model has to be fine-tuned before it is of use.

    The model can be saved, loaded (where `keras_graphattn` and KerasHub are imported), cloned,
    copied, pickled, quantised and trained like any other, and so can models that are made of its
    layers or of its tensors later; `generate` decodes with a cache. Compiled functions are
    dropped, and an optimizer that has taken steps is replaced by a new one of the same settings.
    What is refused, is refused before anything has changed.

    Coefficients are numbers of the order of 1: at the rates of fine-tuning they would not leave
    their start. So a converted backbone or task, however it is compiled, trains them at 100 times
    the rate of its optimizer, whichever that is: at 5e-5, by about 5e-3 in a step. Set
    `coefficient_learning_rate_multiplier` to 10, for a mask to 30, where the rate itself is 1e-3,
    as in training from scratch. Any other model that holds converted layers, such as one composed
    of a converted backbone's tensors, is compiled with
    `keras_graphattn.optimizers.with_coefficient_rates(optimizer)`. `inspect` shows the multiplier.

    Args:
        model: A KerasHub (KerasNLP) task or backbone, a KerasCV `TransformerEncoder`, or a model
            that has any of them in it. Models that hold `model` now carry the conversion too:
            they drop their compiled functions, and tell it when they are saved or cloned.
        attention: `"graph_filter"` (or `"gfsa"`), `"p_laplacian"` (`"p-lat"`),
            `"attentive_graph_filter"` (`"agf"`) or `"masked_kernel"`. For backbones with an
            attention class of their own, such as Llama, Mistral and Qwen: the first two.
        where: `"all"`; `"even"` (indices 0, 2, 4, ...) or `"odd"`; `"first:<n>"` or `"last:<n>"`;
            an index or a list of indices; or a regular expression that is searched for in the
            paths of the attention layers. `inspect` shows indices and paths.
        **options: Arguments of the new layers, such as `order=4`, `p=[1.5, 2.5]`, `dropout=0.0`,
            or `coefficient_learning_rate_multiplier`, 100 by default: how many times as fast as
            other weights their coefficients learn.

    Returns:
        The model itself.

    Raises:
        ValueError: If `where` matches no attention layer, one that is converted already, or one
            that cannot be, such as one whose matrix is not square; for models without
            self-attention that is reached; for an attention that cannot take the place of the
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
    check_options(options)
    request = Request(attention_name(attention), dict(options))
    owners = _owners(model)
    sites = [site for owner in owners for site in owner.sites]
    if not sites:
        raise ValueError(nothing_to_convert(model))
    paths = [site.path for site in sites]
    selected = select(where, paths)
    twice = [paths[index] for index in selected if sites[index].is_converted]
    if twice:
        raise ValueError(
            f"{twice} are converted already. Received: where={where!r}. Call "
            f"keras_graphattn.revert(model) first, or select others.\n{listing(paths)}"
        )
    check_selected(sites, selected, where)
    holders = holders_of(model)
    make_carriers([*walk(model), *holders])
    for layer in (*walk(model), *holders):
        fresh_optimizer(layer)  # what it refuses, it refuses before anything has changed
    convert_sites([sites[index] for index in selected], [request] * len(selected))
    _settle(model, owners, holders)
    return model


def revert(model: Any) -> Any:
    """Puts the original attention back, in place; all weights but the added ones are kept.

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
    owners = _owners(model)
    converted = [site for owner in owners for site in owner.sites if site.is_converted]
    for site in converted:
        revert_site(site)
    forget_conversions(model)
    _settle(model, owners, holders_of(model))
    return model


def inspect(model: Any) -> Table:
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
    sites = [site for owner in _owners(model, refuses=False) for site in owner.sites]
    reached = {id(site.layer) for site in sites}
    others = [
        layer
        for layer in walk(model)
        if (is_ours(layer) or isinstance(layer, TokenLayer)) and id(layer) not in reached
    ]
    if not sites and not others:
        _owners(model)  # refuses attention that is not reached
        raise ValueError(nothing_to_convert(model))
    rows = [
        _row(index, site.path, site.layer, added_variables(site.layer) if site.is_converted else [])
        for index, site in enumerate(sites)
    ]
    rows += [_row(None, str(x.path or x.name), x, getattr(x, "coefficients", [])) for x in others]
    return Table(rows, note=note_on_optimizer(model, rows))


def _row(index: int | None, path: str, layer: Any, added: list[Any]) -> Row:
    count = sum(math.prod(int(length) for length in variable.shape) for variable in added)
    name = type(layer).__name__
    return Row(index, path, name, count, multiplier_of(layer), coefficients_of(layer))


def _owners(model: Any, refuses: bool = True) -> list[Owner]:
    """The outermost backbones and reached layers of a model, in the order of its graph.

    Args:
        model: Whatever `convert` accepts.
        refuses: Whether to raise a `ValueError` for attention that cannot be converted.
    """
    if not isinstance(model, keras.Layer):
        raise ValueError(f"`model` must be a Keras model or layer. Received: {model!r}")
    owners: list[Owner] = []
    seen: set[int] = set()

    def visit(layer: Any) -> None:
        if id(layer) in seen:
            return
        seen.add(id(layer))
        if is_reachable(layer) and not is_task(layer):
            owners.append(Owner(layer, attention_sites(layer)))
            return
        if refuses and (is_backbone(layer) or direct_sites(layer) or is_attention(layer)):
            raise ValueError(refusal(layer))
        for child in sublayers(layer):
            visit(child)

    if refuses:
        check_registered(model)
    visit(model)
    return owners


def _settle(model: Any, owners: list[Owner], holders: list[Any]) -> None:
    """Brings caches, classes, compiled functions, optimizers and torch's lists up to date.

    Those of the model, of all layers in it, and of the models and layers that hold it.
    """
    for owner in owners:
        align_caches(owner.layer, owner.sites)
    for layer in (*walk(model), *holders):
        change_class(layer, class_now(layer))
        if isinstance(layer, keras.Model):
            forget_compiled(layer)
            forget_slots(layer)
            settle_optimizer(layer)
    for layer in (model, *holders):
        track_again(layer)
