"""Decoders with rotary embedding, each as a tiny one."""

import functools

import keras_hub

from tests.hub.models import HEADS, made
from tests.numerics import BACKEND

models = keras_hub.models
WINDOW = 3
WINDOWED = {"use_sliding_window_attention": True, "sliding_window_size": WINDOW}
EXPERTS = {"num_experts": 2, "top_k": 2}
SHORT, LONG = [1.0, 1.5], [2.0, 3.0]  # factors of Phi-3's frequencies
PRETRAINED = 128  # with more tokens than this, Phi-3 takes LONG
ROTATES = [True, False]  # the layers of SmolLM3
QWEN_EXPERTS = {**EXPERTS, "moe_intermediate_dim": 8}
BACKBONES = {
    "mistral": functools.partial(
        made, models.MistralBackbone, HEADS, head_dim=6, sliding_window=WINDOW
    ),
    "mixtral": functools.partial(
        made,
        models.MixtralBackbone,
        HEADS,
        EXPERTS,
        sliding_window=WINDOW,
        router_aux_loss_coef=0.5,
    ),
    "qwen": functools.partial(made, models.QwenBackbone, HEADS, WINDOWED),
    "qwen_moe": functools.partial(
        made,
        models.QwenMoeBackbone,
        HEADS,
        QWEN_EXPERTS,
        WINDOWED,
        shared_expert_intermediate_dim=8,
    ),
    "qwen3": functools.partial(
        made, models.Qwen3Backbone, HEADS, head_dim=6, sliding_window_size=WINDOW
    ),
    "qwen3_moe": functools.partial(
        made, models.Qwen3MoeBackbone, HEADS, QWEN_EXPERTS, head_dim=6, sliding_window_size=WINDOW
    ),
    "phi3": functools.partial(
        made,
        models.Phi3Backbone,
        HEADS,
        rope_scaling_type="su",
        rope_scaling_short_factor=SHORT,
        rope_scaling_long_factor=LONG,
        pretraining_sequence_length=PRETRAINED,
        max_sequence_length=2 * PRETRAINED,
    ),
    "smollm3": functools.partial(
        made,
        models.SmolLM3Backbone,
        {"hidden_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2},
        {"attention_bias": True, "attention_dropout": 0.0, "mlp_bias": False},
        {"layer_types": ["attention", "attention"], "rope_layer_enabled_list": ROTATES},
        {"max_position_embeddings": 128, "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        layer_norm_epsilon=1e-5,
    ),
}
REPRESENTATIVE = "qwen3"  # norms, a window, and heads of another size


def window_of(name):
    """The window that KerasHub applies on this backend, on a CPU."""
    if name in ("mistral", "mixtral", "qwen_moe"):
        return WINDOW
    return WINDOW if name in ("qwen", "qwen3", "qwen3_moe") and BACKEND == "tensorflow" else None
