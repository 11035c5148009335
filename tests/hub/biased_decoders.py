"""Tiny decoders whose attention is more than a softmax of scaled scores, or has its own cache.

They are not in `tests.hub.models`: the cross products of that dictionary stay as they are.
"""

import functools

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

import keras_graphattn
from keras_graphattn.hub.saving import plain_class
from keras_graphattn.hub.slots import attention_slots
from tests.hub.models import VOCABULARY, WIDTHS, outputs
from tests.numerics import to_numpy

models = keras_hub.models
GROUPED = {"num_query_heads": 4, "num_key_value_heads": 2, "hidden_dim": 16, "head_dim": 4}
DEPTH = {name: WIDTHS[name] for name in ("num_layers", "intermediate_dim")}
WINDOW = 3


def made(kind, *settings, **options):
    merged = {"vocabulary_size": VOCABULARY, **DEPTH}
    for each in (*settings, options):
        merged |= each
    return kind(**merged)


WINDOWED = {"use_sliding_window_attention": True, "sliding_window_size": WINDOW}
gemma = functools.partial(made, models.GemmaBackbone, GROUPED)
gemma2 = functools.partial(
    gemma,
    WINDOWED,
    attention_logit_soft_cap=2.0,
    final_logit_soft_cap=5.0,
    use_post_ffw_norm=True,
    use_post_attention_norm=True,
)
gpt_neo_x = functools.partial(
    made, models.GPTNeoXBackbone, num_heads=4, hidden_dim=16, rotary_percentage=0.5
)
bloom = functools.partial(made, models.BloomBackbone, num_heads=4, hidden_dim=16)
falcon = functools.partial(made, models.FalconBackbone, num_attention_heads=4, hidden_dim=16)
gemma3 = functools.partial(made, models.Gemma3Backbone, GROUPED, WINDOWED, image_size=16)
embedding = functools.partial(gemma3, use_bidirectional_attention=True, sliding_window_size=4)
gpt_oss = functools.partial(
    made,
    models.GptOssBackbone,
    GROUPED,
    num_experts=2,
    top_k=2,
    sliding_window=WINDOW,
    rope_scaling_factor=4.0,
)

gemma4 = functools.partial(
    made,
    models.Gemma4Backbone,
    GROUPED,
    image_size=16,
    sliding_window_size=WINDOW,
    layer_types=["sliding_attention", "full_attention"],
)


def gemma3n(**options):
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
    given = {
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "intermediate_size": [16, 16, 16, 16],
        "sliding_window": WINDOW,
        **options,
    }
    return models.Gemma3nBackbone(
        text_vocab_size=VOCABULARY,
        text_hidden_size=16,
        pad_token_id=0,
        hidden_activation="gelu_approximate",
        rope_theta=10000.0,
        max_position_embeddings=128,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=4,
        altup_num_inputs=2,
        laurel_rank=2,
        **heads,
        **given,
    )


QWEN3_5 = {
    "layer_types": ["full_attention"] * 2,
    "partial_rotary_factor": 0.5,
    "sliding_window_size": WINDOW,
}
qwen3_5 = functools.partial(made, models.Qwen3_5Backbone, GROUPED, QWEN3_5)


def qwen3_5_moe(**options):
    given = {**GROUPED, **QWEN3_5, "num_layers": 2, "vocabulary_size": VOCABULARY}
    experts = {"num_experts": 2, "top_k": 2, "moe_intermediate_dim": 8}
    return models.Qwen3_5MoeBackbone(
        shared_expert_intermediate_size=8, **{**given, **experts, **options}
    )


KINDS = ["sliding_attention", "full_attention"] * 2
# As published: the last two layers borrow keys and values of the first two; and in Qwen3.5, the
# first layer is a recurrence, which stays as it is.
VARIANTS = {
    "gemma4_borrowing": {
        "num_layers": 4,
        "layer_types": KINDS,
        "num_kv_shared_layers": 2,
        "global_head_dim": 8,
        "num_global_key_value_heads": 1,  # these take their keys as values
        "global_rope_partial_rotary_factor": 0.5,
        "hidden_size_per_layer_input": 4,
        "use_double_wide_mlp": True,
    },
    "gemma3n_borrowing": {
        "num_hidden_layers": 4,
        "layer_types": KINDS,
        "num_kv_shared_layers": 2,
    },
    "qwen3_5_mixed": {
        "layer_types": ["linear_attention", "full_attention", "full_attention"],
        "num_layers": 3,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 4,
        "linear_value_head_dim": 4,
    },
}
WHERE = {"gemma3n_borrowing": "first:2"}  # the others of Gemma 3n are refused
DECODERS = {
    "gemma": gemma,
    "gemma2": gemma2,
    "gpt_neo_x": gpt_neo_x,
    "bloom": bloom,
    "falcon": falcon,
    "gemma3": gemma3,
    "gemma3_embedding": embedding,
    "gpt_oss": gpt_oss,
    "gemma3n": gemma3n,
    "gemma4": gemma4,
    "qwen3_5": qwen3_5,
    "qwen3_5_moe": qwen3_5_moe,
}
TASKS = {
    "gemma": models.GemmaCausalLM,
    "gemma2": models.GemmaCausalLM,
    "gpt_neo_x": models.GPTNeoXCausalLM,
    "bloom": models.BloomCausalLM,
    "falcon": models.FalconCausalLM,
    "gemma3": models.Gemma3CausalLM,
    "gpt_oss": models.GptOssCausalLM,
    "gemma3n": models.Gemma3nCausalLM,
    "gemma4": models.Gemma4CausalLM,
    "qwen3_5": models.Qwen3_5CausalLM,
    "qwen3_5_moe": models.Qwen3_5MoeCausalLM,
}
# The attention of Qwen3.5 with experts is that of Qwen3.5: in the fast suite, one stands for both.
LATER = ("qwen3_5_moe",)


def fast_for(names):
    """Cases of which the fast suite leaves some out."""
    return [pytest.param(n, marks=pytest.mark.slow) if n in LATER else n for n in names]


# With these, greedy tokens differ from each other.
SEEDS = {"gemma": 1, "bloom": 2, "falcon": 1, "gemma4": 1}
# A is a softmax of the scores
PLAIN = (
    *("gemma", "gpt_neo_x", "gemma3", "gemma3_embedding", "gemma3n", "gemma4"),
    *("qwen3_5", "qwen3_5_moe"),
)
# How many more arguments `_build_cache` has than the tokens.
FURTHER = {"gemma3": 4, "gemma3n": 8, "gemma4": 4, "qwen3_5": 1, "qwen3_5_moe": 1}


def random_decoder(name, **options):
    """A tiny backbone whose weights are large enough that attention is not uniform.

    They are the same on all backends: matrices are random, norms and biases near their start.
    """
    options = {**VARIANTS.get(name, {}), **options}
    name = name.removesuffix("_borrowing").removesuffix("_mixed")
    backbone = DECODERS[name](**options)
    generator = np.random.default_rng(SEEDS.get(name, 0))
    for variable in backbone.weights:
        shape = tuple(variable.shape)
        start = 0.0 if len(shape) > 1 or "sinks" in variable.path else to_numpy(variable)
        variable.assign(start + 0.4 * generator.standard_normal(shape).astype("float32"))
    return backbone


def task_of(name, backbone):
    name = name.removesuffix("_borrowing").removesuffix("_mixed")
    if name in ("gemma3", "gemma3n", "gemma4"):
        return TASKS[name](preprocessor=None, backbone=backbone)
    return TASKS[name](backbone)


def converted(name, attention="graph_filter", where="all", **options):
    """A converted backbone; the coefficients of its filter are away from their start."""
    if attention == "graph_filter":
        options = {"order": 4, **options}
    return moved(keras_graphattn.convert(random_decoder(name), attention, where, **options))


def moved(model):
    generator = np.random.default_rng(3)
    for variable in model.weights:
        if "coefficient" in variable.path or "theta" in variable.path:
            noise = 0.5 * generator.standard_normal(tuple(variable.shape))
            variable.assign(variable + noise.astype("float32"))
    return model


def attentions_of(model):
    return [site.layer for site in attention_slots(model)]


def variables(model):
    return {v.path: v for v in model.weights}


def prompts(length=12, given=(3, 5), seed=0):
    """Tokens on the left, as many as `given`; the rest is to be generated."""
    generator = np.random.default_rng(seed)
    mask = np.arange(length)[None] < np.array(given)[:, None]
    ids = np.where(mask, generator.integers(2, VOCABULARY, mask.shape), 0)
    return {"token_ids": ids.astype("int32"), "padding_mask": mask}


def greedy(model, inputs):
    """The tokens of `generate`, which decodes with a cache."""
    given = {name: value.copy() for name, value in inputs.items()}
    if isinstance(model, models.Gemma3CausalLM):  # it returns them, and cannot return `None`
        given["images"] = np.zeros((len(inputs["token_ids"]), 0, 16, 16, 3), "float32")
    model.compile(sampler="greedy", run_eagerly=keras.backend.backend() == "tensorflow")
    found = model.generate(given, stop_token_ids=None)
    return np.asarray(ops.convert_to_numpy(found["token_ids"]))


def logits(model, ids):
    """Of a full pass over tokens without padding."""
    (found,) = outputs(model, {"token_ids": ids, "padding_mask": np.ones(ids.shape, "int32")})
    return found


def greedy_without_cache(model, inputs):
    """The next token is the argmax of the logits of a full pass, token by token."""
    ids, mask = inputs["token_ids"].copy(), inputs["padding_mask"]
    for index in range(int(mask.sum(axis=1).min()), ids.shape[1]):
        chosen = np.argmax(logits(model, ids)[:, index - 1], axis=-1)
        ids[:, index] = np.where(mask[:, index], ids[:, index], chosen)
    return ids


def seeded_cache(model, ids):
    """The cache after a first pass over `ids`."""
    further = {TASKS[name]: count for name, count in FURTHER.items()}
    return model._build_cache(ids, *(None,) * further.get(plain_class(type(model)), 0))[1]


def decoded(model, ids):
    """Logits of every position, from a cache that is filled one token at a time."""
    ids = ops.convert_to_tensor(ids)
    cache = seeded_cache(model, ops.zeros_like(ids))
    found = []
    for index in range(ids.shape[1]):
        place = ops.convert_to_tensor(index, "int32")  # SmolLM3 takes no number
        step, _, cache = model.call_with_cache(ids[:, index : index + 1], cache, place)
        found.append(np.asarray(ops.convert_to_numpy(step), "float64"))
    return np.concatenate(found, axis=1)
