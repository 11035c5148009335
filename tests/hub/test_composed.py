"""BLIP-2: an image tower, what reads it, and the text after it."""

import keras
import pytest

import keras_graphattn
from tests.hub.families import family


@pytest.mark.parametrize("name", ["blip2", "blip2_t5"])
@pytest.mark.slow_on("jax")
def test_the_attention_of_the_learned_tokens_at_the_image_stays_as_it_is(name):
    """`test_sizes` of `test_conversion.py` counts the layers of each part."""
    layer = keras_graphattn.convert(family(name).make()).qformer.transformer_layers[0]
    assert type(layer.cross_attention.attention) is keras.layers.MultiHeadAttention
    assert type(layer.self_attention.attention).__name__ == "GraphFilterAttention"
