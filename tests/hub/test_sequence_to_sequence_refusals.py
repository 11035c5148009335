"""Models of two towers: what convert refuses in them, and what it leaves alone."""

import numpy as np
import pytest
from keras import ops

import keras_graphattn
from tests.hub.families import converted
from tests.hub.models import attentions_of, outputs
from tests.hub.sequence_to_sequence import MODELS, inputs_of
from tests.hub.test_refusals import state_of


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("attention", ["masked_kernel", "attentive_graph_filter"])
@pytest.mark.parametrize("name", ["metaclip_2", "parseq", "edrec"])
def test_stock_attention_takes_all_kinds(name, attention):
    """A causal tower stays causal: what comes later changes nothing of what comes before."""
    backbone = converted(name, attention)
    inputs = inputs_of(backbone, real=(7, 7))
    later = {k: v.copy() for k, v in inputs.items()}
    assert all(np.isfinite(x).all() for x in outputs(backbone, inputs))
    if name == "edrec":
        later["decoder_token_ids"][:, -2:] = 2
        old, new = (outputs(backbone, each)[0] for each in (inputs, later))
        np.testing.assert_allclose(new[:, :-2], old[:, :-2], atol=1e-5 * np.abs(old).max())
        assert np.abs(new[:, -2:] - old[:, -2:]).max() > 1e-3


def test_a_converted_layer_of_t5_refuses_cross_attention():
    layer = attentions_of(converted("t5"))[0]
    with pytest.raises(ValueError, match=r"not square.*\(1, 5, 16\)"):
        layer(ops.ones((1, 3, 16)), key_value_states=ops.ones((1, 5, 16)))


def test_the_decoder_of_t5_gemma_2_is_refused_by_name():
    """Its tokens look at those of the encoder, too, in the same softmax."""
    backbone = MODELS["t5_gemma_2"]()
    before = state_of(backbone)
    message = r"decoder_layer_0/.*decoder_layer_1/.*not square.*where=\[0, 1\]"
    with pytest.raises(ValueError, match=f"(?s){message}"):
        keras_graphattn.convert(backbone)
    with pytest.raises(ValueError, match=r"T5Gemma2MergedAttention.*not square"):
        keras_graphattn.convert(backbone.decoder_layers[0])
    assert state_of(backbone) == before


def test_the_two_streams_of_parseq_stay_as_they_are():
    """Positions look at characters: row i and column i of that matrix are different tokens."""
    backbone = keras_graphattn.convert(MODELS["parseq"]())
    assert attentions_of(backbone) == attentions_of(backbone.image_encoder)
    for layer in backbone.decoder.decoder_layers:
        assert type(layer.self_attention).__name__ == "CachedMultiHeadAttention"
    with pytest.raises(ValueError, match="CachedMultiHeadAttention"):
        keras_graphattn.convert(backbone.decoder)
