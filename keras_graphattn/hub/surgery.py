"""Converting the attention layers of several sites, or none of them, and back.

How a layer is converted, its adapter knows. In every case the projections stay the very same
sublayers with their variables, paths, quantisation and LoRA factors: no weight is copied.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from keras_graphattn.hub.adapters import adapter_of
from keras_graphattn.hub.cached import CacheSlots, widened
from keras_graphattn.hub.converted import ConvertedAttention
from keras_graphattn.hub.sites import Site
from keras_graphattn.hub.spec import Request
from keras_graphattn.keras_internals import (
    change_class,
    is_distributed,
    makes_distributed,
    walk,
)

GIVEN_BY_THE_MODEL = (
    *("num_heads", "key_dim", "value_dim", "use_bias", "output_shape", "attention_axes"),
    *("use_gate", "num_key_value_heads", "name", "dtype", "trainable"),
)


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
    """Converts the attention layers of all sites, or of none.

    What can be refused is refused before the first layer changes.

    Args:
        sites: Where; the layers there must not be ours already.
        requests: For each site, the attention and the options of the new layer.

    Raises:
        ValueError: Where a layer refuses its options; where a layer was built under a
            distribution that is not set now, or without one while one is set.
    """
    pairs = list(zip(sites, requests, strict=True))
    prepared = [_prepared(site, request) for site, request in pairs]
    done: list[Site] = []
    try:
        for site, each in zip(sites, prepared, strict=True):
            site.adapter.put(site, each)
            done.append(site)
    except BaseException:
        for site in done:
            site.adapter.revert(site)
        raise


def _prepared(site: Site, request: Request) -> Any:
    if site.layer.built:
        _check_devices(site)
    return site.adapter.prepared(site, request)


def _check_devices(site: Site) -> None:
    """Refuses a layer whose new weights would be on other devices than those it has."""
    query = site.adapter.projections(site.layer)["query"]
    weight = query.variables[0]  # `kernel` is a sum under LoRA
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


def revert_site(site: Site) -> None:
    """Takes the conversion of a layer back, with the projections as they are now."""
    site.adapter.revert(site)


def align_caches(owner: Any, sites: list[Site]) -> None:
    """Gives all decoder layers the same number of cache slots, converted or not.

    Args:
        owner: The backbone or layer that holds the sites.
        sites: All of them.
    """
    converted = [site.layer for site in sites if isinstance(site.layer, CacheSlots)]
    slots = max((layer.needed_slots for layer in converted), default=2)
    for layer in converted:
        layer.cache_slots = slots
    found = [(site.layer, adapter_of(site.layer)) for site in sites]
    for layer, adapter in found:
        if isinstance(layer, CacheSlots) or adapter is None or not adapter.has_cache:
            continue
        plain: Any = getattr(type(layer), "plain_class", type(layer))
        _with_slots(layer, widened(plain, adapter.cache_argument) if slots > 2 else plain, slots)
    for adapter in {adapter for _, adapter in found if adapter is not None}:
        for layer in walk(owner):
            new = adapter.class_beside(layer, slots)
            if new is not None:
                _with_slots(layer, new, slots)


def _with_slots(layer: Any, new: type, slots: int) -> None:
    """Changes the class of a layer that is not converted to one that passes on the slots."""
    change_class(layer, new)
    if slots > 2:
        layer.cache_slots = slots


def added_variables(layer: Any) -> list[Any]:
    """The weights of a converted layer that the replaced one did not have."""
    adapter = adapter_of(layer)
    if not layer.built or adapter is None:
        return []
    if isinstance(layer, ConvertedAttention):  # its class changed: further weights may be its own
        return layer.coefficients
    projections = adapter.projections(layer).values()
    kept = {id(variable) for projection in projections for variable in projection.weights}
    return [variable for variable in layer.weights if id(variable) not in kept]
