"""Decoding from a cache of the past and one of the encoder, as KerasHub's tasks do it."""

from typing import NamedTuple

import keras
import keras_hub
import numpy as np
from keras import ops

from tests.hub.sequence_to_sequence import TASKS

models = keras_hub.models


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


def decoded(model, inputs, ids):
    """Logits of every position, one token at a time; the caches at the start and at the end."""
    decoder, ids = decoding(model), ops.convert_to_tensor(ids)
    _, caches = decoder.start(inputs, ops.zeros_like(ids))
    first, found = caches, []
    for index in range(ids.shape[1]):
        step, caches = decoder.step(ids[:, index : index + 1], index, caches)
        found.append(np.asarray(ops.convert_to_numpy(step), "float64"))
    return np.concatenate(found, axis=1), first, caches
