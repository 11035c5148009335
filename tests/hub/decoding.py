"""Decoding with caches, and without: of causal models, and of an encoder and a decoder."""

import inspect
from typing import NamedTuple

import keras
import keras_hub
import numpy as np
from keras import ops

from tests.hub import biased_decoders, sequence_to_sequence
from tests.hub.families import family
from tests.hub.models import outputs, wanted_by
from tests.hub.sequence_to_sequence import TASKS
from tests.numerics import BACKEND

models = keras_hub.models


def prompts_of(name, model, length=12):
    """Inputs of a task: short prompts on the left; the rest is to be generated."""
    wanted = wanted_by(model.backbone)
    if "encoder_padding_mask" in wanted:
        given = (1, 1) if name == "edrec" else (3, 5)  # EdRec seeds its cache with one token only
        return sequence_to_sequence.prompts(model.backbone, length, given)
    inputs = {**family(name).inputs(model.backbone), **biased_decoders.prompts(length)}
    inputs.pop("position_ids", None)  # of fewer tokens
    if "response_mask" in inputs:  # the tokens of the prompt see each other
        inputs["response_mask"] = 1 - inputs["padding_mask"]
    return {key: value for key, value in inputs.items() if key in wanted}


def of_decoder(inputs):
    """How the names of the decoder's inputs begin."""
    return "decoder_" if "decoder_token_ids" in inputs else ""


def logits(model, inputs, ids):
    """Of a full pass over tokens without padding."""
    of = of_decoder(inputs)
    mask = np.ones(ids.shape, inputs[f"{of}padding_mask"].dtype)
    # Of a backbone's outputs, the decoder's is the first by name.
    return outputs(model, {**inputs, f"{of}token_ids": ids, f"{of}padding_mask": mask})[0]


def generated(model, inputs, sampler="greedy", **options):
    """What `generate` returns, which decodes with a cache."""
    inputs = {name: value.copy() for name, value in inputs.items()}
    if isinstance(model, models.Gemma3CausalLM):  # it returns them, and cannot return `None`
        inputs["images"] = np.zeros((len(inputs["token_ids"]), 0, 16, 16, 3), "float32")
    model.compile(sampler=sampler, run_eagerly=BACKEND == "tensorflow")
    found = model.generate(inputs, **{"stop_token_ids": None, **options})
    return {name: np.asarray(ops.convert_to_numpy(x)) for name, x in found.items()}


def greedy(model, inputs):
    """The tokens of `generate`."""
    return generated(model, inputs)[f"{of_decoder(inputs)}token_ids"]


def greedy_without_cache(model, inputs):
    """The next token is the argmax of the logits of a full pass, token by token."""
    of = of_decoder(inputs)
    ids, mask = inputs[f"{of}token_ids"].copy(), inputs[f"{of}padding_mask"].astype(bool)
    for index in range(int(mask.sum(axis=1).min()), ids.shape[1]):
        chosen = np.argmax(logits(model, inputs, ids)[:, index - 1], axis=-1)
        ids[:, index] = np.where(mask[:, index], ids[:, index], chosen)
    return ids


def seeded_cache(model, ids):
    """The cache of a causal model after a first pass over `ids`."""
    _, *further = inspect.signature(model._build_cache).parameters.values()
    required = [each for each in further if each.default is inspect.Parameter.empty]
    return model._build_cache(ids, *(None,) * len(required))[1]


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


# Decoding from a cache of the past and one of the encoder, as KerasHub's tasks do it.


class Caches(NamedTuple):
    """What decoding has of the past and of the encoder."""

    own: object  # (B, L, slots, S, Nkv, H)
    cross: object  # (B, L, 2, S of the encoder, Nkv, H)
    encoded: object
    mask: object


class Whisper:
    """Decodes with Whisper's layers, as KerasHub's tasks do with theirs. It has no task itself."""

    def __init__(self, backbone):
        self.backbone = backbone
        self.encoder = keras.Model(
            backbone.input["encoder_features"], backbone.output["encoder_sequence_output"]
        )

    def start(self, inputs, ids):
        encoded = self.encoder(inputs["encoder_features"])
        sizes = (2, self.backbone.num_layers, 2)
        heads = (self.backbone.num_heads, self.backbone.hidden_dim // self.backbone.num_heads)
        own, cross = (
            ops.zeros((*sizes, length, *heads)) for length in (ids.shape[1], encoded.shape[1])
        )
        return self.step(ids, 0, Caches(own, cross, encoded, None), cross_index=0)

    def step(self, ids, index, caches, cross_index=None):
        x = self.backbone.decoder_embeddings(ids, start_index=index)
        own, cross = [], []
        for number, layer in enumerate(self.backbone.decoder_transformer_layers):
            x, *both = layer(
                x,
                caches.encoded,
                self_attention_cache=caches.own[:, number],
                self_attention_cache_update_index=index,
                cross_attention_cache=caches.cross[:, number],
                cross_attention_cache_update_index=cross_index,
            )
            own.append(both[0])
            cross.append(both[1])
        caches = caches._replace(own=ops.stack(own, axis=1), cross=ops.stack(cross, axis=1))
        return self.backbone.decoder_layer_norm(x), caches


class Task:
    """Decodes with a task of KerasHub."""

    def __init__(self, model):
        self.model = model
        self.name = next(name for name, kind in TASKS.items() if isinstance(model, kind))

    def start(self, inputs, ids):
        """The caches after a first pass over `ids`."""
        model = self.model
        source = [v for k, v in inputs.items() if k.startswith("encoder") and "mask" not in k]
        source.append(inputs["encoder_padding_mask"])
        source = [ops.convert_to_tensor(x) for x in source]
        ones = ops.ones(ids.shape, "int32")
        if self.name == "edrec":
            own, cross = model._initialize_cache(source[0], ids)
            caches = Caches(own, cross, model.call_encoder(*source), source[1])
            return self.step(ids, 0, caches, cross_index=0)
        if self.name == "moonshine":
            _, *found = model._build_cache(*source, ids, ops.cast(ones, "bool"))
            return None, Caches(*found)
        if self.name in ("t5_gemma", "t5_gemma_2"):
            _, (own, cross), (encoded, mask) = model._build_cache(*source, ids, ones)
            return None, Caches(own, cross, encoded, mask)
        _, encoded, own, cross = model._build_cache(*source, ids)
        return None, Caches(own, cross, encoded, source[1])

    def step(self, ids, index, caches, cross_index=None):
        """Logits of the tokens `ids`, of which the first has position `index`."""
        call, (own, cross, encoded, mask) = self.model.call_decoder_with_cache, caches
        if self.name in ("t5_gemma", "t5_gemma_2"):
            found, _, (own, cross) = call(ids, None, (own, cross), index, encoded, mask)
        elif self.name == "moonshine":
            found, _, own, cross = call(encoded, mask, ids, own, index, cross)
        elif self.name == "edrec":
            ones = ops.ones(ids.shape, "bool")
            found, _, own, cross = call(encoded, mask, ids, ones, own, index, cross, cross_index)
        else:
            found, _, own, cross = call(encoded, mask, ids, own, index, cross, cross_index)
        return found, Caches(own, cross, encoded, mask)


def decoding(model):
    return Whisper(model) if isinstance(model, models.WhisperBackbone) else Task(model)


def decoded_with_two_caches(model, inputs, ids):
    """Logits of every position, one token at a time; the caches at the start and at the end."""
    decoder, ids = decoding(model), ops.convert_to_tensor(ids)
    _, caches = decoder.start(inputs, ops.zeros_like(ids))
    first, found = caches, []
    for index in range(ids.shape[1]):
        step, caches = decoder.step(ids[:, index : index + 1], index, caches)
        found.append(np.asarray(ops.convert_to_numpy(step), "float64"))
    return np.concatenate(found, axis=1), first, caches
