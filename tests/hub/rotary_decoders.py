"""Decoders with rotary embedding, each as a tiny random one with its task."""

import functools

import keras
import keras_hub
import numpy as np
import pytest

import keras_graphattn
from tests.hub.containers import moved
from tests.hub.models import VOCABULARY
from tests.numerics import BACKEND

models = keras_hub.models
WINDOW = 3
LAYERS = {"vocabulary_size": VOCABULARY, "num_layers": 2, "hidden_dim": 16, "intermediate_dim": 16}
HEADS = {"num_query_heads": 4, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 2, "top_k": 2}
SHORT, LONG = [1.0, 1.5], [2.0, 3.0]  # factors of Phi-3's frequencies
PRETRAINED = 128  # with more tokens than this, Phi-3 takes LONG
ROTATES = [True, False]  # the layers of SmolLM3

BACKBONES = {
    "mistral": functools.partial(models.MistralBackbone, head_dim=6, sliding_window=WINDOW),
    "mixtral": functools.partial(
        models.MixtralBackbone, **EXPERTS, sliding_window=WINDOW, router_aux_loss_coef=0.5
    ),
    "qwen": functools.partial(
        models.QwenBackbone, use_sliding_window_attention=True, sliding_window_size=WINDOW
    ),
    "qwen_moe": functools.partial(
        models.QwenMoeBackbone,
        **EXPERTS,
        moe_intermediate_dim=8,
        shared_expert_intermediate_dim=8,
        use_sliding_window_attention=True,
        sliding_window_size=WINDOW,
    ),
    "qwen3": functools.partial(models.Qwen3Backbone, head_dim=6, sliding_window_size=WINDOW),
    "qwen3_moe": functools.partial(
        models.Qwen3MoeBackbone,
        **EXPERTS,
        head_dim=6,
        moe_intermediate_dim=8,
        sliding_window_size=WINDOW,
    ),
    "phi3": functools.partial(
        models.Phi3Backbone,
        rope_scaling_type="su",
        rope_scaling_short_factor=SHORT,
        rope_scaling_long_factor=LONG,
        pretraining_sequence_length=PRETRAINED,
        max_sequence_length=2 * PRETRAINED,
    ),
    "smollm3": functools.partial(
        models.SmolLM3Backbone,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_bias=True,
        attention_dropout=0.0,
        rope_layer_enabled_list=ROTATES,
        layer_types=["attention", "attention"],
        mlp_bias=False,
        layer_norm_epsilon=1e-5,
        max_position_embeddings=128,
        rope_theta=10000.0,
        partial_rotary_factor=1.0,
    ),
}
TASKS = {
    "mistral": models.MistralCausalLM,
    "mixtral": models.MixtralCausalLM,
    "qwen": models.QwenCausalLM,
    "qwen_moe": models.QwenMoeCausalLM,
    "qwen3": models.Qwen3CausalLM,
    "qwen3_moe": models.Qwen3MoeCausalLM,
    "phi3": models.Phi3CausalLM,
    "smollm3": models.SmolLM3CausalLM,
}
REPRESENTATIVE = "qwen3"  # norms, a window, and heads of another size
EACH = [
    pytest.param(name, marks=[] if name == REPRESENTATIVE else [pytest.mark.slow])
    for name in BACKBONES
]
HEAD_SIZES = {"mistral": 6, "qwen3": 6, "qwen3_moe": 6}  # 4 for the others
# Options with which a converted decoder starts as the original.
START = {"graph_filter": {"order": 4}, "p_laplacian": {"p": 2.0}}


def window_of(name):
    """The window that KerasHub applies on this backend, on a CPU."""
    if name in ("mistral", "mixtral", "qwen_moe"):
        return WINDOW
    return WINDOW if name in ("qwen", "qwen3", "qwen3_moe") and BACKEND == "tensorflow" else None


def tiny(name, **options):
    """A tiny decoder whose weights are large enough that attention is not uniform."""
    heads = {} if name == "smollm3" else HEADS
    keras.utils.set_random_seed(0)
    backbone = BACKBONES[name](**{**LAYERS, **heads, **options})
    generator = np.random.default_rng(0)
    for variable in backbone.weights:
        if "inv_freq" in variable.path:
            continue  # SmolLM3 keeps the frequencies of its rotation as a weight
        noise = 0.3 * generator.standard_normal(tuple(variable.shape))
        variable.assign(keras.ops.convert_to_numpy(variable) + noise.astype("float32"))
    return backbone


def converted(name, attention="graph_filter", where="all", **options):
    """A converted one whose coefficients have moved."""
    given = {**({"order": 4} if attention == "graph_filter" else {}), **options}
    return moved(keras_graphattn.convert(tiny(name), attention, where, **given))


def attention_of(backbone, index=0):
    """The attention layer of a decoder layer."""
    layer = backbone.transformer_layers[index]
    found = (getattr(layer, x, None) for x in ("_self_attention_layer", "attention", "self_attn"))
    return next(x for x in found if x is not None)
