"""BLIP-2 and PaliGemma: an image tower, what reads it, and the text after it."""

import keras
import pytest

import keras_graphattn
from tests.hub.families import family

PARTS = {"blip2": 2 + 2 + 2, "blip2_t5": 2 + 2 + 4}  # of the tower, of learned tokens, of the text


@pytest.mark.parametrize("name", PARTS)
def test_the_attention_of_the_learned_tokens_at_the_image_stays_as_it_is(name):
    backbone = keras_graphattn.convert(family(name).make())
    assert len(keras_graphattn.inspect(backbone)) == PARTS[name]
    layer = backbone.qformer.transformer_layers[0]
    assert type(layer.cross_attention.attention) is keras.layers.MultiHeadAttention
    assert type(layer.self_attention.attention).__name__ == "GraphFilterAttention"


def test_tower_and_decoder_of_pali_gemma_are_converted():
    rows = keras_graphattn.inspect(keras_graphattn.convert(family("pali_gemma").make()))
    parts = [row.path.split("/")[0] for row in rows]
    assert parts == ["image_encoder", "decoder_block_0", "decoder_block_1"]
