"""Every backbone of KerasHub is either reached by `convert` or listed here with the reason."""

import pkgutil
import re
from importlib import import_module

import keras
import keras_hub
import pytest

from keras_graphattn.hub.families import names_of, served_names
from keras_graphattn.keras_internals import subclasses_of
from tests.hub.families import FAMILIES, family

NO_SELF_ATTENTION = (
    *("BASNetBackbone", "CSPNetBackbone", "DeepLabV3Backbone", "DenseNetBackbone"),
    *("EfficientNetBackbone", "FNetBackbone", "HGNetV2Backbone", "MobileNetBackbone"),
    *("RWKV7Backbone", "ResNetBackbone", "RetinaNetBackbone", "VGGBackbone", "XceptionBackbone"),
)
AROUND_OTHERS = ("FeaturePyramidBackbone",)  # those are converted
# KerasHub 0.32 hands the mask of SAM 3's prompts, (B, S), on as one of shape (T, S). So the model
# answers only for as many examples as prompts, and then hides the prompts of other examples.
WITH_A_WRONG_MASK = ("SAM3PromptableConceptBackbone",)
RECTANGULAR = ("MobileNetV5Backbone",)
# Their attention is no layer with projections of its own, which could change its class. In Stable
# Diffusion 3 the block itself attends, once or twice, over text and image; in Flux a layer without
# weights is given the queries, keys and values of both.
ATTENTION_WITHOUT_A_LAYER = ("FluxBackbone", "StableDiffusion3Backbone")
# Classes of attention of no family, by the reason.
NO_SQUARE_MATRIX = (
    *("Attention2d", "MultiQueryAttention2d"),  # MobileNetV5: at keys of a smaller map
    # Gemma 3n and Gemma 4: blocks of sound look at their surroundings.
    *("Gemma3nAudioAttention", "Gemma4AudioAttention"),
    "DFineMultiscaleDeformableAttention",  # at some points of an image
    *("TwoWayMultiHeadAttention", "MultiHeadAttentionWithDownsampling"),  # SAM's prompts and image
    # A learned probe at the patches.
    *("MultiHeadAttentionPooling", "SigLIPMultiHeadAttentionPooling"),
)
AROUND_AN_ATTENTION_LAYER = (
    *("DINOV2Attention", "DisentangledAttentionEncoder", "QFormerAttention", "MobileAttention"),
    *("Gemma3nAudioConformerAttention", "Gemma4AudioConformerAttention"),
)
NO_ATTENTION = ("ComputeAttentionMask", "XLNetAttentionMaskLayer")
OF_NOT_REACHED = (  # Stable Diffusion 3, Flux, SAM 3
    *("Conv2DMultiHeadAttention", "FluxRoPEAttention", "SAM3Attention", "SAM3RoPEAttention"),
    "SelfAttention",
)
NOT_SERVED = {*NO_SQUARE_MATRIX, *AROUND_AN_ATTENTION_LAYER, *NO_ATTENTION, *OF_NOT_REACHED}
NOT_REACHED = {
    *(*NO_SELF_ATTENTION, *AROUND_OTHERS, *WITH_A_WRONG_MASK),
    *(*RECTANGULAR, *ATTENTION_WITHOUT_A_LAYER),
}


def backbones():
    """The names of the classes of backbones, but for those within others that are reached.

    A second name of a class is left out.
    """
    base = keras_hub.models.Backbone
    public = [cls for cls in vars(keras_hub.models).values() if isinstance(cls, type)]
    inner = set(names_of("inner_layers"))
    return {cls.__name__ for cls in public if issubclass(cls, base) and cls is not base} - inner


def test_a_new_backbone_is_noticed():
    new = backbones() - set(names_of("backbones")) - NOT_REACHED
    assert not new, (
        f"new backbone: name it in a row of families.py, or list it here with a reason: {new}"
    )
    gone = NOT_REACHED - backbones()
    assert not gone, f"KerasHub has no such backbone any more: {gone}"
    both = NOT_REACHED & set(names_of("backbones"))
    assert not both, f"listed as not reached, but a row of families.py names it: {both}"


def test_a_new_class_of_attention_is_noticed():
    """Where a backbone is reached, each of its parts is, or there is a reason."""
    for module in pkgutil.walk_packages(keras_hub.src.models.__path__, "keras_hub.src.models."):
        import_module(module.name)
    known = subclasses_of(keras.Layer)
    found = {
        cls.__name__
        for cls in known
        if cls.__module__.startswith("keras_hub.src.models.")
        and re.search("Attention|Attn", cls.__name__)
    }
    served = set(served_names())
    new = found - served - NOT_SERVED
    assert not new, (
        f"new attention: name it in a row of families.py, or list it here with a reason: {new}"
    )
    gone = NOT_SERVED - found
    assert not gone, f"KerasHub has no such attention any more: {gone}"
    both = NOT_SERVED & served
    assert not both, f"listed as not served, but a row of families.py names it: {both}"


@pytest.mark.slow_on("jax", "tensorflow")
def test_each_reached_backbone_is_in_the_table_of_reach():
    missing = set(names_of("backbones")) - {family(name).kind.__name__ for name in FAMILIES}
    assert not missing, f"no tiny model in tests/hub/families.py: {missing}"


@pytest.mark.parametrize("name", sorted(names_of("backbones")))
def test_what_the_rows_name_exists(name):
    assert name in backbones()
