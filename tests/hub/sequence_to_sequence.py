"""Tiny models of two towers, of an encoder and a decoder or of images and texts; their inputs."""

import functools
from types import SimpleNamespace

import keras
import keras_hub
import numpy as np

from tests.hub.models import VOCABULARY, WIDTHS, bart, two_towers, vit, whisper

models = keras_hub.models
AUDIO = 2431  # samples that the convolutions of Moonshine make 5 frames of
LENGTHS = {"encoder_token_ids": 6, "encoder_input_values": AUDIO, "encoder_features": 6}


def parseq():
    return models.PARSeqBackbone(
        image_encoder=vit(use_class_token=False, name="encoder"),
        **{"vocabulary_size": VOCABULARY, "max_label_length": 9, "decoder_hidden_dim": 8},
        **{"num_decoder_layers": 2, "num_decoder_heads": 2, "decoder_mlp_dim": 16},
    )


edrec = functools.partial(
    models.EdRecBackbone,
    **{name: WIDTHS[name] for name in ("num_heads", "hidden_dim", "intermediate_dim")},
    **{"vocab_size": VOCABULARY, "num_layers_enc": 2, "num_layers_dec": 2},
)
t5 = functools.partial(
    models.T5Backbone,
    **{"num_layers": 2, "num_heads": 4, "hidden_dim": 16, "intermediate_dim": 16},
    **{"vocabulary_size": VOCABULARY, "key_value_dim": 6, "dropout": 0.0},
)


def t5_gemma(kind=models.T5GemmaBackbone, **options):
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
    tower = {"hidden_dim": 16, "intermediate_dim": 16, "num_layers": 2, **heads}
    kinds = ["full_attention", "sliding_attention"]
    towers = {f"{name}_{k}": v for name in ("encoder", "decoder") for k, v in tower.items()}
    return kind(
        vocabulary_size=VOCABULARY,
        **towers,
        encoder_layer_types=kinds,
        decoder_layer_types=kinds,
        sliding_window=3,
        tie_word_embeddings=False,
        **{"query_pre_attn_scalar": 9.0, "attn_logit_softcapping": 2.0, **options},
    )


moonshine = functools.partial(
    models.MoonshineBackbone,
    **{"vocabulary_size": VOCABULARY, "feedforward_expansion_factor": 1},
    **{"filter_dim": 24, "hidden_dim": 24, "intermediate_dim": 16},
    **{"encoder_num_layers": 2, "decoder_num_layers": 2},
    **{"encoder_num_heads": 4, "decoder_num_heads": 4},
    pad_head_dim_to_multiple_of=8,  # heads of 6 become heads of 8
)


MODELS = {
    "metaclip_2": functools.partial(two_towers, "MetaCLIP2", projection_dim=8),
    "parseq": parseq,
    "edrec": edrec,
    "bart": bart,
    "whisper": whisper,
    "t5": t5,
    "t5_gemma": t5_gemma,
    "t5_gemma_2": functools.partial(t5_gemma, models.T5Gemma2Backbone),
    "moonshine": moonshine,
}
REPRESENTATIVE = ("t5", "moonshine")  # a shared bias, and a rotation that the model hands on
WHERE = {"t5_gemma_2": "^encoder"}  # the matrix of its decoder is not square
TASKS = {
    "edrec": models.EdRecSeq2SeqLM,
    "bart": models.BartSeq2SeqLM,
    "t5": models.T5Seq2SeqLM,
    "t5_gemma": models.T5GemmaSeq2SeqLM,
    "t5_gemma_2": models.T5Gemma2Seq2SeqLM,
    "moonshine": models.MoonshineAudioToText,
}
DECODED = (*TASKS, "whisper")  # which have a cache
# With these, greedy tokens differ from each other.
SEEDS = {"edrec": 5, "t5": 3, "t5_gemma": 4, "t5_gemma_2": 4, "moonshine": 4}


def size_in_bart(variable):
    """The size of a weight's noise. Positions have to count, or all tokens agree."""
    if "position_embedding" in variable.path:
        return 2.0
    return 0.1 if len(variable.shape) < 2 else 0.4


def size_in_edrec(variable):
    """Gates multiply: where they are large, no digit lasts in half precision."""
    return 0.15 if "/mlp/" in variable.path else 0.4


SIZES = {"bart": size_in_bart, "edrec": size_in_edrec}


def task(name, backbone):
    """A task around a backbone; EdRec's has a head of its own."""
    model, inside = TASKS[name](backbone), {v.path for v in backbone.weights}
    generator = np.random.default_rng(0)
    for variable in model.weights:
        if variable.path not in inside:
            variable.assign(generator.standard_normal(tuple(variable.shape)).astype("float32"))
    return model


def parseq_task(backbone):
    """PARSeq's task without a preprocessor; its constructor asks one for the padding's number."""
    asked = SimpleNamespace(tokenizer=SimpleNamespace(pad_token_id=1))
    model = models.PARSeqCausalLM(preprocessor=asked, backbone=backbone)
    model.preprocessor = None
    return model


END_OF_TEXT = 2  # as MetaCLIP 2 counts


def inputs_of(model, length=7, real=(5, 7), seed=1):
    """Inputs by name: decoder tokens of `length`, of which the first `real` are not padding."""
    generator = np.random.default_rng(seed)
    wanted = model.input
    inputs = {}
    for name, tensor in wanted.items():
        if "mask" in name:
            continue
        size = LENGTHS.get(name, length)
        here = real if size == length else (size, size * 2 // 3)
        mask = np.arange(size)[None] < np.array(here)[:, None]
        if "token" in name:
            ids = generator.integers(2, VOCABULARY, mask.shape)
            inputs[name] = np.where(mask, ids, 1).astype("int32")
            if "images" in wanted:  # a text's vector is that of its end, or of its first token
                inputs[name][:, here[0] - 1] = END_OF_TEXT
        else:
            shape = tensor.shape[1:] if "images" in name else (size, *tensor.shape[2:])
            inputs[name] = generator.standard_normal((2, *shape)).astype("float32")
        of = {"encoder_input_values": "encoder_padding_mask"}
        padding = of.get(name, name.replace("token_ids", "padding_mask"))
        if padding in wanted and padding not in inputs:
            inputs[padding] = mask if tensor_is_boolean(wanted[padding]) else mask.astype("int32")
    return inputs


def tensor_is_boolean(tensor):
    return keras.backend.standardize_dtype(tensor.dtype) == "bool"


def prompts(model, length=12, given=(3, 5), seed=0):
    """Inputs whose decoder has `given` tokens on the left; the rest is to be generated."""
    inputs = inputs_of(model, length, given, seed)
    mask = inputs["decoder_padding_mask"].astype(bool)
    ids = np.where(mask, inputs["decoder_token_ids"], 0).astype("int32")
    return {**inputs, "decoder_token_ids": ids, "decoder_padding_mask": mask}
