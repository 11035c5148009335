"""Every backbone of KerasHub is either reached by `convert` or listed here with the reason."""

import keras_hub
import pytest

from keras_graphattn.hub.adapters import ADAPTERS
from keras_graphattn.hub.reach import backbone_names

NO_SELF_ATTENTION = (
    *("BASNetBackbone", "CSPNetBackbone", "DeepLabV3Backbone", "DenseNetBackbone"),
    *("EfficientNetBackbone", "FNetBackbone", "HGNetV2Backbone", "MobileNetBackbone"),
    *("RWKV7Backbone", "ResNetBackbone", "RetinaNetBackbone", "VGGBackbone", "XceptionBackbone"),
)
# a composition around other backbones: those are converted
AROUND_OTHERS = (*("BLIP2Backbone", "FeaturePyramidBackbone", "SAM3PromptableConceptBackbone"),)
RECTANGULAR = ("MobileNetV5Backbone",)
# Their attention is no layer with projections of its own, which could change its class. In Stable
# Diffusion 3 the block itself attends, once or twice, over text and image; in Flux a layer without
# weights is given the queries, keys and values of both.
ATTENTION_WITHOUT_A_LAYER = ("FluxBackbone", "StableDiffusion3Backbone")
NOT_REACHED = {*NO_SELF_ATTENTION, *AROUND_OTHERS, *RECTANGULAR, *ATTENTION_WITHOUT_A_LAYER}


def backbones():
    """The names of the classes of backbones, but for those within others that are reached.

    A second name of a class is left out.
    """
    base = keras_hub.models.Backbone
    public = [cls for cls in vars(keras_hub.models).values() if isinstance(cls, type)]
    inner = {name for adapter in ADAPTERS for name in adapter.inner_layers}
    return {cls.__name__ for cls in public if issubclass(cls, base) and cls is not base} - inner


def test_a_new_backbone_is_noticed():
    new = backbones() - set(backbone_names()) - NOT_REACHED
    assert not new, f"new backbone: reach it with an adapter, or list it here with a reason: {new}"
    gone = NOT_REACHED - backbones()
    assert not gone, f"KerasHub has no such backbone any more: {gone}"
    both = NOT_REACHED & set(backbone_names())
    assert not both, f"listed as not reached, but an adapter names it: {both}"


@pytest.mark.parametrize("name", sorted(backbone_names()))
def test_what_adapters_name_exists(name):
    assert name in backbones()
