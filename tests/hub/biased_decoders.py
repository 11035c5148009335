"""Tiny decoders whose attention is more than a softmax of scaled scores, or has its own cache."""

import functools

import keras_hub
import numpy as np

from tests.hub.models import HEADS, VOCABULARY, made

models = keras_hub.models
GROUPED = {**HEADS, "head_dim": 4}
WINDOW = 3
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


gemma3n = functools.partial(
    models.Gemma3nBackbone,
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4},
    **{"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
    **{"intermediate_size": [16, 16, 16, 16], "sliding_window": WINDOW},
    **{"text_vocab_size": VOCABULARY, "text_hidden_size": 16, "pad_token_id": 0},
    **{"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 4},
    **{"max_position_embeddings": 128, "rope_theta": 10000.0, "laurel_rank": 2},
    **{"hidden_activation": "gelu_approximate", "altup_num_inputs": 2},
)
QWEN3_5 = {
    "layer_types": ["full_attention"] * 2,
    "partial_rotary_factor": 0.5,
    "sliding_window_size": WINDOW,
}
qwen3_5 = functools.partial(made, models.Qwen3_5Backbone, GROUPED, QWEN3_5)


qwen3_5_moe = functools.partial(
    models.Qwen3_5MoeBackbone,
    **{**GROUPED, **QWEN3_5, "num_layers": 2, "vocabulary_size": VOCABULARY},
    **{"num_experts": 2, "top_k": 2, "moe_intermediate_dim": 8},
    shared_expert_intermediate_size=8,
)
KINDS = ["sliding_attention", "full_attention"] * 2
# As published: the last two layers borrow keys and values of the first two; and in Qwen3.5, the
# first layer is a recurrence, which stays as it is.
VARIANTS = {
    "gemma4_borrowing": functools.partial(
        gemma4,
        num_layers=4,
        layer_types=KINDS,
        num_kv_shared_layers=2,
        global_head_dim=8,
        num_global_key_value_heads=1,  # these take their keys as values
        global_rope_partial_rotary_factor=0.5,
        hidden_size_per_layer_input=4,
        use_double_wide_mlp=True,
    ),
    "gemma3n_borrowing": functools.partial(
        gemma3n, num_hidden_layers=4, layer_types=KINDS, num_kv_shared_layers=2
    ),
    "qwen3_5_mixed": functools.partial(
        qwen3_5,
        layer_types=["linear_attention", "full_attention", "full_attention"],
        num_layers=3,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=4,
        linear_value_head_dim=4,
    ),
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
GENERATING = tuple(name for name in DECODERS if name != "gemma3_embedding")
# With these, greedy tokens differ from each other.
SEEDS = {"gemma": 1, "bloom": 1, "falcon": 7, "gemma4": 1}


def prompts(length=12, given=(3, 5), seed=0):
    """Tokens on the left, as many as `given`; the rest is to be generated."""
    generator = np.random.default_rng(seed)
    mask = np.arange(length)[None] < np.array(given)[:, None]
    ids = np.where(mask, generator.integers(2, VOCABULARY, mask.shape), 0)
    return {"token_ids": ids.astype("int32"), "padding_mask": mask}
