"""Parameters and multiply-adds of image models: formulas against papers and against models."""

import math

import keras
import pytest

from keras_graphattn import convert, filters, layers
from keras_graphattn.masks import BlockToeplitz
from recipes.common.images import cait, vit
from recipes.common.images.costs import ATTENTIONS, attention_cost, model_cost
from recipes.common.images.sizes import SIZES

TINY = {"width": 12, "heads": 3, "feed_forward": 20, "patch": 2, "image": 8}
DEIT = SIZES["deit-small"]._replace(layers=2, **TINY)
CAIT = SIZES["cait-s24"]._replace(layers=2, **TINY)
SWIN = SIZES["swin-small"]._replace(depths=(2, 1), window=3, **TINY)
DATA = {"channels": 3, "classes": 7}
TORCH = keras.backend.backend() == "torch"  # it counts


def counted_multiply_adds(model, *shapes):
    """The multiply-adds of all matrix products and convolutions of one call, on torch."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    inputs = [keras.random.normal(shape, seed=0) for shape in shapes]
    counter = FlopCounterMode(display=False)
    # in a fused kernel for CPUs torch counts nothing
    with counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(*inputs)
    return int(counter.get_total_flops()) // 2  # a product and a sum count as two


def assert_costs(model, expected, *shapes):
    assert model.count_params() == expected.parameters
    if TORCH:
        assert counted_multiply_adds(model, *shapes) == expected.multiply_adds


LAYERS = {
    "softmax": keras.layers.MultiHeadAttention,
    "gfsa": layers.GraphFilterAttention,
    "p_laplacian": layers.PLaplacianAttention,
    "agf": layers.AttentiveGraphFilter,
    "performer": layers.MaskedKernelAttention,
    "topological": layers.MaskedKernelAttention,
}


def attention_layer(attention, heads=3, size=4):
    mask = BlockToeplitz((4, 4), num_prefix_tokens=1)
    more = {"mask": mask} if attention == "topological" else {}
    return LAYERS[attention](heads, size, **more)


def within_one_percent_or_its_rounding(value, published):
    digits = len(str(published).partition(".")[2])
    return abs(value / published - 1) <= 0.01 or round(value, digits) == published


@pytest.mark.parametrize("name", SIZES)
def test_published_sizes_have_the_published_parameters_and_multiply_adds(name):
    size = SIZES[name]
    cost, filtered = (model_cost(size, attention) for attention in ("softmax", "gfsa"))
    assert abs(cost.parameters / 1e6 / size.parameters - 1) < 0.005
    if size.multiply_adds is not None:
        billions = cost.multiply_adds / 1e9
        assert within_one_percent_or_its_rounding(billions, size.multiply_adds), billions
    depths = size.depths or (size.layers,)
    heads = sum(depth * size.heads * 2**stage for stage, depth in enumerate(depths))
    assert filtered.parameters - cost.parameters == 3 * heads


def test_larger_images_cost_what_was_published():
    """CaiT at 384 x 384 pixels, arXiv 2103.17239, Table 3."""
    for name, billions in (("cait-xs24", 19.3), ("cait-s24", 32.2), ("cait-s36", 48.0)):
        cost = model_cost(SIZES[name], image=384).multiply_adds / 1e9
        assert within_one_percent_or_its_rounding(cost, billions), (name, cost)


def test_counts_are_those_of_the_released_models():
    """Of DeiT's and Swin's released weights, with 1000 classes."""
    released = {
        "deit-tiny": 5_717_416,
        "deit-small": 22_050_664,
        "deit-base": 86_567_656,
        "swin-tiny": 28_288_354,
        "swin-small": 49_606_258,
        "swin-base": 87_768_224,
    }
    assert {name: model_cost(SIZES[name]).parameters for name in released} == released


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_attention_layers_are_the_formula(attention):
    layer, shape = attention_layer(attention), (1, 17, 12)
    layer.build(shape, shape)
    assert_costs(layer, attention_cost(attention, 17, 12, 3, grid=(4, 4)), shape, shape)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_deit_is_its_formula(attention):
    def make(index, num_heads, key_dim, name):
        return attention_layer(attention, num_heads, key_dim)

    model = vit.classifier(image_size=8, size=DEIT, attention=make, **DATA)
    assert_costs(model, model_cost(DEIT, attention, **DATA), (1, 8, 8, 3))


def gfsa_of_cait(index, num_heads, key_dim, name):
    return cait.TalkingHeadsAttention(num_heads, key_dim, filters.FirstOrder(4), name=name)


@pytest.mark.parametrize("attention", ["softmax", "gfsa"])
def test_cait_is_its_formula(attention):
    make = gfsa_of_cait if attention == "gfsa" else None
    model = cait.classifier(image_size=8, size=CAIT, attention=make, **DATA)
    assert_costs(model, model_cost(CAIT, attention, **DATA), (1, 8, 8, 3))


@pytest.mark.filterwarnings("ignore:Layer 'attn'.*a mask attached")
@pytest.mark.parametrize("attention", ["softmax", "gfsa", "p_laplacian"])
@pytest.mark.parametrize("image", [12, 16])
def test_swin_is_its_formula(attention, image):
    """With windows at the border that are filled with zeros."""
    pytest.importorskip("keras_hub")
    from recipes.common.images import swin

    model = swin.classifier(image_size=image, size=SWIN, **DATA)
    if attention != "softmax":
        convert(model, "graph_filter" if attention == "gfsa" else attention)
    expected = model_cost(SWIN, attention, image=image, **DATA)
    assert_costs(model, expected, (1, image, image, 3))


@pytest.mark.parametrize(("trained", "numbers"), [(True, 3), (["power"], 1)])
def test_gfsa_trains_three_numbers_or_one_for_each_head(trained, numbers):
    filter = filters.FirstOrder(3, trainable_coefficients=trained)
    counts = []
    for layer in (attention_layer("softmax"), layers.GraphFilterAttention(3, 4, filter=filter)):
        layer.build((None, 17, 12), (None, 17, 12))
        counts.append(sum(math.prod(weight.shape) for weight in layer.trainable_weights))
    assert counts[1] - counts[0] == 3 * numbers


def test_unknown_attentions_are_told():
    with pytest.raises(ValueError, match=r"must be one of .*Received: attention='linear'"):
        model_cost(CAIT, "linear")
    with pytest.raises(ValueError, match=r"Swin has softmax.*Received: attention='agf'"):
        model_cost(SWIN, "agf")
