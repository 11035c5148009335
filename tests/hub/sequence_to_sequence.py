"""Tiny models of two towers, of an encoder and a decoder or of images and text, with their inputs.

They are not in `tests.hub.models`: the cross products of that dictionary stay as they are.
"""

import functools
from types import SimpleNamespace

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

import keras_graphattn
from keras_graphattn.hub.families import view
from keras_graphattn.hub.slots import attention_slots
from tests.hub.biased_decoders import moved
from tests.hub.models import IMAGE, VOCABULARY, WIDTHS, outputs
from tests.numerics import BACKEND, to_numpy

models = keras_hub.models
AUDIO = 2431  # samples that the convolutions of Moonshine make 5 frames of
LENGTHS = {"encoder_token_ids": 6, "encoder_input_values": AUDIO, "encoder_features": 6}


def metaclip_2():
    vision = {**WIDTHS, "patch_size": 4, "image_shape": IMAGE, "name": "vision_encoder"}
    words = {"vocabulary_size": VOCABULARY, "embedding_dim": 8, "name": "text_encoder"}
    return models.MetaCLIP2Backbone(
        models.MetaCLIP2VisionEncoder(**vision),
        models.MetaCLIP2TextEncoder(**words, **WIDTHS, max_sequence_length=24),
        projection_dim=8,
    )


def parseq(**options):
    encoder = models.ViTBackbone(
        image_shape=IMAGE,
        patch_size=(4, 4),
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        mlp_dim=16,
        use_class_token=False,
        name="encoder",
    )
    return models.PARSeqBackbone(
        image_encoder=encoder,
        vocabulary_size=VOCABULARY,
        max_label_length=9,
        decoder_hidden_dim=8,
        num_decoder_layers=2,
        num_decoder_heads=2,
        decoder_mlp_dim=16,
        **options,
    )


def edrec(**options):
    widths = {name: WIDTHS[name] for name in ("num_heads", "hidden_dim", "intermediate_dim")}
    return models.EdRecBackbone(
        vocab_size=VOCABULARY, num_layers_enc=2, num_layers_dec=2, **widths, **options
    )


def bart():
    widths = {**WIDTHS, "num_heads": 4, "hidden_dim": 16}
    return models.BartBackbone(vocabulary_size=VOCABULARY, max_sequence_length=72, **widths)


def whisper():
    return models.WhisperBackbone(
        vocabulary_size=VOCABULARY,
        num_mels=4,
        max_encoder_sequence_length=6,
        max_decoder_sequence_length=72,
        **WIDTHS,
    )


def t5(**options):
    widths = {"num_layers": 2, "num_heads": 4, "hidden_dim": 16, "intermediate_dim": 16}
    given = {"vocabulary_size": VOCABULARY, "key_value_dim": 6, "dropout": 0.0, **options}
    return models.T5Backbone(**{**widths, **given})


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


def moonshine(**options):
    return models.MoonshineBackbone(
        vocabulary_size=VOCABULARY,
        filter_dim=24,
        encoder_num_layers=2,
        decoder_num_layers=2,
        hidden_dim=24,
        intermediate_dim=16,
        encoder_num_heads=4,
        decoder_num_heads=4,
        feedforward_expansion_factor=1,
        pad_head_dim_to_multiple_of=8,  # heads of 6 become heads of 8
        **options,
    )


MODELS = {
    "metaclip_2": metaclip_2,
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


def fast_for(names, chosen=REPRESENTATIVE):
    """Cases of which only the chosen ones are in the fast suite."""
    return [n if n in chosen else pytest.param(n, marks=pytest.mark.slow) for n in names]


EACH = fast_for(MODELS)
WHERE = {"t5_gemma_2": "^encoder"}  # the matrix of its decoder is not square
SITES = {"parseq": 2}  # two towers of two for the others
CLASSES = {  # of their own
    "t5": "T5MultiHeadAttention",
    "t5_gemma": "T5GemmaAttention",
    "t5_gemma_2": "T5Gemma2Attention",
    "moonshine": "MoonshineMultiHeadAttention",
}
# What else than a softmax makes A.
BEYOND = {
    "t5": ("bias of the scores",),
    "t5_gemma": ("soft cap of the scores",),
    "t5_gemma_2": ("soft cap of the scores",),
    "moonshine": (),
}
TASKS = {
    "edrec": models.EdRecSeq2SeqLM,
    "bart": models.BartSeq2SeqLM,
    "t5": models.T5Seq2SeqLM,
    "t5_gemma": models.T5GemmaSeq2SeqLM,
    "t5_gemma_2": models.T5Gemma2Seq2SeqLM,
    "moonshine": models.MoonshineAudioToText,
}
DECODED = (*TASKS, "whisper")  # which have a cache
SEEDS = {
    "edrec": 5,
    "t5": 3,
    "t5_gemma": 4,
    "t5_gemma_2": 4,
    "moonshine": 4,
}  # with these, greedy tokens differ from each other


def random_model(name, **options):
    """A tiny backbone whose weights are large enough that attention is not uniform."""
    backbone = MODELS[name](**options)
    generator = np.random.default_rng(SEEDS.get(name, 0))
    for variable in backbone.weights:
        if "inv_freq" in variable.path:
            continue  # Moonshine keeps the frequencies of its rotation as a weight
        shape = tuple(variable.shape)
        start = 0.0 if len(shape) > 1 else to_numpy(variable)
        noise = spread(name, variable) * generator.standard_normal(shape)
        variable.assign(start + noise.astype("float32"))
    return backbone


def spread(name, variable):
    """The size of the noise of a weight. In BART positions have to count, or all tokens agree."""
    if name == "bart" and "position_embedding" in variable.path:
        return 2.0
    if name == "edrec" and "/mlp/" in variable.path:
        return 0.15  # gates multiply: where they are large, no digit lasts in half precision
    return 0.1 if name == "bart" and len(variable.shape) < 2 else 0.4


def reached(name, where="all"):
    """Which layers to convert: those that can be, where the model has others."""
    return WHERE.get(name, where)


def converted(name, attention="graph_filter", **options):
    """A converted backbone; the coefficients of its filter are away from their start."""
    if attention == "graph_filter":
        options = {"order": 4, **options}
    return moved(keras_graphattn.convert(random_model(name), attention, reached(name), **options))


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


def attentions_of(model):
    """The attention layers that can be converted, or are."""
    layers = [site.layer for site in attention_slots(model)]
    return [layer for layer in layers if view(layer).refusal_reason() is None]


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


def logits(model, inputs, ids):
    """Of a full pass over decoder tokens without padding."""
    mask = np.ones_like(inputs["decoder_padding_mask"])[:, :1].repeat(ids.shape[1], axis=1)
    found = outputs(model, {**inputs, "decoder_token_ids": ids, "decoder_padding_mask": mask})
    return found[0]  # of a backbone's outputs, the decoder's is the first by name


def greedy(model, inputs):
    """The tokens of `generate`, which decodes with two caches."""
    model.compile(sampler="greedy", run_eagerly=BACKEND == "tensorflow")
    found = model.generate({k: v.copy() for k, v in inputs.items()}, stop_token_ids=None)
    return np.asarray(ops.convert_to_numpy(found["decoder_token_ids"]))


def greedy_without_cache(model, inputs):
    """The next token is the argmax of the logits of a full pass, token by token."""
    ids, mask = inputs["decoder_token_ids"].copy(), inputs["decoder_padding_mask"].astype(bool)
    for index in range(int(mask.sum(axis=1).min()), ids.shape[1]):
        chosen = np.argmax(logits(model, inputs, ids)[:, index - 1], axis=-1)
        ids[:, index] = np.where(mask[:, index], ids[:, index], chosen)
    return ids
