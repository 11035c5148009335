"""Putting one attention layer in the place of another, and back.

The new layer takes the projections of the old one as they are: the very same sublayers with
their variables, paths, quantisation and LoRA factors. No weight is copied, so there are never two
sets of them, and the old layer, kept as a shell around the same projections, goes back as it was.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_graphattn.hub.attentions import replacement_for
from keras_graphattn.hub.cached import CachedCall, widened
from keras_graphattn.hub.internals import (
    change_class,
    is_distributed,
    makes_distributed,
    replace_sublayer,
    scope_of,
)
from keras_graphattn.hub.sites import Site
from keras_graphattn.hub.spec import Request
from keras_graphattn.layers.attentive_graph_filter import AttentiveGraphFilter
from keras_graphattn.layers.parts.projections import build_around, projections_of
from keras_graphattn.optimizers import FINE_TUNING_MULTIPLIER

GIVEN_BY_THE_MODEL = (
    *("num_heads", "key_dim", "value_dim", "use_bias", "output_shape", "attention_axes"),
    *("use_gate", "num_key_value_heads", "name", "dtype", "trainable"),
)


class Shell:
    """The layer that was replaced, and what asked for it. Keras does not track what is in here."""

    def __init__(self, layer: Any, request: Request) -> None:
        self.layer = layer
        self.request = request


def check_options(options: Mapping[str, Any]) -> None:
    """Refuses options that the replaced layers decide."""
    refused = [name for name in options if name in GIVEN_BY_THE_MODEL]
    if refused:
        raise ValueError(
            f"{refused} are taken from the layers that are replaced: their weights would not fit "
            f"otherwise. Received: {', '.join(f'{name}={options[name]!r}' for name in refused)}. "
            "Leave them out."
        )


def convert_sites(sites: Sequence[Site], requests: Sequence[Request]) -> None:
    """Replaces the attention layers of all sites, or of none.

    All new layers are built before the first one takes its place.

    Args:
        sites: Where; the layers there must not be ours already.
        requests: For each site, the attention and the options of the new layer.

    Raises:
        ValueError: Where a new layer refuses its options; where a layer was built under a
            distribution that is not set now, or without one while one is set.
    """
    new = [_new_layer(site, request) for site, request in zip(sites, requests, strict=True)]
    old = [site.layer for site in sites]
    done: list[int] = []
    try:
        for index, site in enumerate(sites):
            replace_sublayer(site.parent, site.attribute, new[index])
            done.append(index)
    except BaseException:
        for index in done:
            replace_sublayer(sites[index].parent, sites[index].attribute, old[index])
        raise


def _new_layer(site: Site, request: Request) -> Any:
    """The layer for a site, built if the one that is there is."""
    source = site.layer
    if source.built:
        _check_devices(site)
    new = _unbuilt_layer(site, request)
    if source.built:
        with scope_of(source):
            build_around(new, source)
        has_lora = any(getattr(p, "lora_enabled", False) for p in projections_of(source).values())
        if not source.trainable and not has_lora:
            new.trainable = False
    new.converted_from = Shell(source, request)
    return new


def _check_devices(site: Site) -> None:
    """Refuses a layer whose new weights would be on other devices than those it has."""
    weight = projections_of(site.layer)["query"].variables[0]  # `kernel` is a sum under LoRA
    if is_distributed(weight) and not makes_distributed():
        raise ValueError(
            f"'{site.path}' was built under a distribution over devices, and none is set now: new "
            "weights would be on one device, and training would fail. Convert within the scope "
            "of that distribution (keras.distribution, or a tf.distribute strategy)."
        )
    if makes_distributed() and not is_distributed(weight):
        raise ValueError(
            f"'{site.path}' was built on one device, and a distribution over devices is set now: "
            "new weights would be on all of them, and training would fail. Build the model within "
            "the distribution's scope; or convert it before the distribution is set, and then "
            "call keras_graphattn.distribution.distribute(model) (jax)."
        )


def _unbuilt_layer(site: Site, request: Request) -> Any:
    source = site.layer
    replacement: Any = replacement_for(request.attention, source)
    config = source.get_config()
    config.update(dtype=source.dtype_policy, trainable=True)
    config["coefficient_learning_rate_multiplier"] = FINE_TUNING_MULTIPLIER
    if config.get("attention_axes") in (None, (1,), [1]):
        config["attention_axes"] = None
    if issubclass(replacement, AttentiveGraphFilter):
        config["causal"] = site.is_causal
    # Each layer gets objects of its own: a mask with weights is not shared between layers.
    own = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(dict(request.options))
    )
    return replacement(**{**config, **own})


def revert_site(site: Site) -> None:
    """Puts the layer that was replaced back, with the projections as they are now."""
    layer, shell = site.layer, site.layer.converted_from.layer
    if layer.built and not shell.built:
        found = projections_of(layer)
        with scope_of(layer):
            shell.build(
                *((None, None, found[n].kernel.shape[0]) for n in ("query", "value", "key"))
            )
        for name, projection in projections_of(shell).items():
            for old, now in zip(projection.weights, found[name].weights, strict=True):
                old.assign(now)
    replace_sublayer(site.parent, site.attribute, shell)


def align_caches(sites: list[Site]) -> None:
    """Gives all decoder layers the same number of cache slots, converted or not."""
    converted = [site.layer for site in sites if isinstance(site.layer, CachedCall)]
    slots = max((layer.needed_slots for layer in converted), default=2)
    for layer in converted:
        layer.cache_slots = slots
    for site in sites:
        layer = site.layer
        if isinstance(layer, CachedCall) or "Cached" not in type(layer).__name__:
            continue
        plain: Any = getattr(type(layer), "plain_class", type(layer))
        change_class(layer, widened(plain) if slots > 2 else plain)
        if slots > 2:
            layer.cache_slots = slots


def added_variables(layer: Any) -> list[Any]:
    """The weights of a converted layer that the replaced one did not have."""
    if not layer.built:
        return []
    kept = {id(v) for projection in projections_of(layer).values() for v in projection.weights}
    return [variable for variable in layer.weights if id(variable) not in kept]
