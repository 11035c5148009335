"""Tiny backbones composed of others: an image tower with a decoder of masks, depths or texts."""

import functools

import keras_hub
import numpy as np

from tests.hub import vision_models
from tests.hub.biased_decoders import GROUPED, WINDOWED
from tests.hub.models import VOCABULARY, WIDTHS, made, random_inputs, wanted_by

models = keras_hub.models


VIT = {
    **{"image_size": 8, "vit_patch_size": 4, "vit_num_heads": 2, "vit_hidden_dim": 8},
    **{"vit_num_layers": 1, "vit_intermediate_dim": 16},
}
pali_gemma = functools.partial(made, models.PaliGemmaBackbone, GROUPED, VIT)


def blip2(kind="opt"):
    """Three learned tokens look at the patches of an image, and stand before the text.

    The text is that of OPT, or of an encoder and a decoder of T5.
    """
    queries = 3
    vision = models.BLIP2VisionEncoder(
        **dict.fromkeys(("use_patch_bias", "use_class_token"), True),
        **dict.fromkeys(("use_mha_bias", "use_mlp_bias"), True),
        **{"image_size": 8, "patch_size": 4, "dropout_rate": 0.0, "layer_norm_epsilon": 1e-6},
        **{"initializer_range": 0.02, **WIDTHS},
    )
    reader = models.BLIP2QFormer(
        **{"num_query_tokens": queries, "vision_dim": 8, "cross_attention_frequency": 2},
        **{"dropout": 0.0, "layer_norm_epsilon": 1e-6, **WIDTHS},
    )
    words = {"vocabulary_size": VOCABULARY, "num_query_tokens": queries, "dropout": 0.0, **WIDTHS}
    if kind == "opt":
        writer = models.BLIP2CustomOPT(max_sequence_length=24, qformer_hidden_dim=8, **words)
    else:
        writer = models.BLIP2FlanT5(qformer_hidden_dim=8, key_value_dim=4, **words)
    return models.BLIP2Backbone(vision, reader, writer)


COMPOSED = {
    "pali_gemma": pali_gemma,
    "blip2": blip2,
    "segformer": vision_models.segformer_backbone,
    "sam": vision_models.sam_backbone,
    "depth_anything": vision_models.depth_anything_backbone,
}
VARIANTS = {
    "pali_gemma2": functools.partial(
        pali_gemma, **WINDOWED, attention_logit_soft_cap=2.0, vit_num_layers=2
    ),
    "blip2_t5": functools.partial(blip2, "t5"),
}
WHERE = {"segformer": vision_models.WHERE["mit"]}
TASKS = {name: vision_models.TASKS[name] for name in ("segformer", "sam", "depth_anything")}


def inputs_of(backbone):
    """Random inputs by name."""
    if not any("token" in name for name in wanted_by(backbone)):
        return vision_models.images(backbone)
    found = random_inputs(backbone)
    if "response_mask" in found:  # what follows the prompt
        length = found["token_ids"].shape[1]
        found["response_mask"] = found["padding_mask"] * (np.arange(length) >= length // 2)
    return found
