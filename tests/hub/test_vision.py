"""Swin, DINOv3, ViTDet, MiT, D-FINE and towers of Gemma: masks, matrices, what is refused."""

import numpy as np
import pytest

import keras_graphattn
from keras_graphattn.hub.slots import attention_slots
from tests.hub.families import converted, family
from tests.hub.image_towers import REAL, inputs_of
from tests.hub.models import assert_equal_outputs, attentions_of, outputs
from tests.hub.test_refusals import state_of
from tests.hub.vision_models import VISION, images, mit
from tests.hub.vision_twins import HIDDEN, PLACED, VISION_CASES, shift_bias
from tests.numerics import to_numpy


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("side", [6, 7])
def test_the_shift_bias_of_the_twin_is_that_of_a_block(side):
    """What KerasHub's block hands to the layer, on maps that windows fill and do not fill."""
    backbone = VISION["swin" if side == 6 else "swin_padded"]()
    block = attention_slots(backbone)[1].parent
    seen = []
    block.attn.call = lambda x, mask=None: (seen.append(to_numpy(mask)), x)[1]
    block(np.zeros((1, side * side, 8), "float32"))
    np.testing.assert_array_equal(seen[0], shift_bias(side, 3, 1))


@pytest.mark.slow_on("jax", "tensorflow")
def test_vit_det_without_its_bias_has_every_path():
    def backbone(**options):
        return keras_graphattn.convert(
            family("vit_det").make(use_rel_pos=False), order=4, **options
        )

    inputs = images(backbone())
    expected = outputs(backbone(), inputs)
    assert_equal_outputs(outputs(backbone(attention_path="fused"), inputs), expected, 1e-5)


def test_what_is_not_square_is_refused_by_name():
    backbone = mit()
    before = state_of(backbone)
    for attention in ("graph_filter", "p_laplacian"):
        with pytest.raises(ValueError, match=r"'all'\. Select others: where=\[1, 2\]") as error:
            keras_graphattn.convert(backbone, attention)
        assert "hierarchical_encoder_0_0/" in str(error.value)
        assert "sr_ratio=2 looks from n tokens at n / 4 others" in str(error.value)
        assert "hierarchical_encoder_1" not in str(error.value)
    assert state_of(backbone) == before
    keras_graphattn.convert(backbone, where=[1, 2])
    assert [row.parameters_added for row in keras_graphattn.inspect(backbone)] == [0, 6, 6]
    backbone = mit(layerwise_sr_ratios=[4, 2])
    with pytest.raises(ValueError, match=r"0  hierarchical_encoder_0_0/.*(?s:.)*2  hierarchical_"):
        keras_graphattn.convert(backbone)
    with pytest.raises(ValueError, match="no other attention"):
        keras_graphattn.convert(backbone, where=0)


def test_what_only_the_original_returns():
    layer = attentions_of(converted("swin"))[0]
    with pytest.raises(ValueError, match=r"return_attns=True.*revert"):
        layer(np.zeros((4, 9, 8), "float32"), return_attns=True)


@pytest.mark.slow_on("jax")
def test_dinov3_takes_a_mask():
    """Its backbone gives none. Rows that see nothing become 0."""
    backbone = family("dinov3").make()
    layer = attentions_of(backbone)[0]
    x = np.random.default_rng(5).standard_normal((2, 9, 16)).astype("float32")
    mask = np.tril(np.ones((1, 1, 9, 9), bool))
    before = layer(x, attention_mask=mask)
    keras_graphattn.convert(backbone)
    np.testing.assert_allclose(to_numpy(layer(x, attention_mask=mask)), to_numpy(before), atol=1e-5)
    blind = layer(x, attention_mask=np.zeros((2, 9, 9), bool))
    bias = to_numpy(layer.output_dense.bias)
    np.testing.assert_allclose(to_numpy(blind), np.broadcast_to(bias, (2, 9, 16)), atol=1e-6)


@pytest.mark.parametrize("path", ["blockwise", "fused"])
def test_a_bias_that_a_path_would_leave_out_is_refused(path):
    case = VISION_CASES["pali_gemma_tower"](converted("pali_gemma_tower", attention_path=path))
    with pytest.raises(ValueError, match=f'bias of its scores.*attention_path="{path}"'):
        case.call(case.arrays["input"])


OF_D_FINE = {"position_embeddings": PLACED, "attention_mask": HIDDEN, "output_attentions": True}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        pytest.param("d_fine", OF_D_FINE, marks=pytest.mark.slow_on("jax")),
        ("pali_gemma_tower", {"return_attention_scores": True}),
        ("gemma3_tower", {"return_attention_scores": True}),
    ],
)
def test_returns_the_matrix_of_which_the_filter_is_one(name, arguments):
    x = np.random.default_rng(5).standard_normal((2, 6, 8)).astype("float32")
    plain, layer = (attentions_of(each)[0] for each in (family(name).make(), converted(name)))
    before = (plain(x, **arguments) if name == "d_fine" else plain(x))[1]
    np.testing.assert_allclose(to_numpy(layer(x, **arguments)[1]), to_numpy(before), atol=1e-6)
    assert name == "d_fine" or layer(x)[1] is None


@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("filling", [1.0, 1e15])
def test_patches_that_fill_an_image_up_change_nothing(attention, filling):
    name = "gemma4_tower"
    tower = converted(name, attention)
    expected = outputs(tower, inputs_of(name))
    assert REAL.min() < 9
    filled = outputs(tower, inputs_of(name, filling=filling))
    assert_equal_outputs(filled, expected, tolerance=1e-6)
