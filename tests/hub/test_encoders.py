"""RoFormer, ESM, DeBERTaV3, VideoPrism, XLNet: padding, what layers refuse, and tasks."""

import keras_hub
import numpy as np
import pytest
from keras import ops

import keras_graphattn
from tests.hub.encoders import ENCODERS, SEES_PADDING, Case, inputs_of
from tests.hub.families import all_but, converted, family
from tests.hub.models import attentions_of, outputs
from tests.numerics import to_numpy

models = keras_hub.models


@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("name", all_but(ENCODERS, ("esm_absolute", "video_prism")))
def test_padding_changes_what_it_changes_in_the_original(name, attention):
    """Nothing; but tokens of RoFormer and ESM see it on TensorFlow and JAX (KerasHub 0.32)."""
    case, backbone = Case(name), family(name).make()
    layer = case.layer(backbone)
    large = np.where(case.real[..., None], case.x, 1e4 * case.x)
    seen = case.real & (case.mask & case.real[:, None]).any(-1)
    difference = {}
    for step in ("plain", "converted"):
        if step == "converted":
            options = {"p": [1.5, 2.5]} if attention == "p_laplacian" else {"order": 4}
            assert keras_graphattn.convert(backbone, attention, **options) is backbone
        found, other = to_numpy(case.call(layer)), to_numpy(case.call(layer, large))
        difference[step] = np.abs(found - other)[seen].max() / np.abs(found).max()
    changes = {step: bool(size > 1e-5) for step, size in difference.items()}
    assert changes == dict.fromkeys(changes, name in SEES_PADDING), difference


def test_deberta_has_no_scores_to_return():
    case = Case("deberta_v3")
    layer = case.layer(converted("deberta_v3"))
    with pytest.raises(ValueError, match=r"no attention scores.*keras_graphattn.revert"):
        case.call(layer, return_attention_scores=True)


def test_video_prism_keeps_its_pooling_and_refuses_other_keys():
    backbone = converted("video_prism_with_texts")
    assert type(backbone.video_pooler.pooling_attention).__name__ == "VideoPrismAttention"
    assert not any("pooling" in row.path for row in keras_graphattn.inspect(backbone))
    layer = attentions_of(backbone)[0]
    with pytest.raises(ValueError, match=r"self-attention.*1 queries, 5 keys and 5 values"):
        layer(ops.ones((1, 1, 8)), ops.ones((1, 5, 8)), ops.ones((1, 5, 8)))


def test_video_prism_has_masks_of_two_dimensions_and_scales_of_features():
    layer = attentions_of(family("video_prism").make())[0]
    kind = type(layer)
    own = kind(num_heads=2, key_dim=4, hidden_dim=8, use_per_dim_scale=True)
    holder = keras_hub.src.models.video_prism.video_prism_layers.VideoPrismEncoderBlock(2, 8, 16)
    holder.mha = own
    holder.build((None, 7, 8))
    own.per_dim_scale_layer.per_dim_scale.assign([0.5, -0.5, 1.0, 2.0])
    case = Case("video_prism")
    before = to_numpy(own(case.x, case.x, attention_mask=case.real))
    keras_graphattn.convert(holder, order=4)
    assert type(own) is not kind
    after = to_numpy(own(case.x, case.x, attention_mask=case.real))
    np.testing.assert_allclose(after, before, atol=1e-5)


def test_xlnet_refuses_the_query_stream_and_a_state():
    case = Case("xlnet")
    layer = case.layer(converted("xlnet"))
    for argument in ("query_stream", "state"):
        with pytest.raises(ValueError, match=rf"content stream.*`{argument}`.*revert"):
            case.call(layer, **{argument: case.x})


@pytest.mark.slow_on("jax")
def test_the_original_xlnet_mixes_the_texts_of_a_batch():
    """Once this fails, KerasHub transposes what it reshapes: then the docstring can say so."""
    backbone = family("xlnet").make()
    inputs = inputs_of(backbone)
    twice = {name: np.repeat(array[1:], 2, axis=0) for name, array in inputs.items()}
    (found,) = outputs(backbone, twice)
    assert np.abs(found[0] - found[1]).max() > 1e-2  # the distances are not those of the text
    padding = np.array([[1, 1, 0, 0], [1, 1, 1, 1]])
    mask, _ = backbone.get_layer("encoder_block_attn_mask_layer")(padding)
    assert not np.array_equal(to_numpy(mask)[:, 0], padding)  # nor is the padding
