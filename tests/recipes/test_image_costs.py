"""Parameters and multiply-adds of image models: formulas against papers and against models."""

import math
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from keras_graphattn import convert, filters, layers
from keras_graphattn.masks import BlockToeplitz
from recipes.common.images import cait, vit
from recipes.common.images.costs import ATTENTIONS, attention_cost, costs, total
from recipes.common.images.sizes import SIZES

TINY = {"width": 12, "heads": 3, "feed_forward": 20, "patch": 2, "image": 8}
DEIT = SIZES["deit-small"]._replace(layers=2, **TINY)
CAIT = SIZES["cait-s24"]._replace(layers=2, **TINY)
SWIN = SIZES["swin-small"]._replace(depths=(2, 1), window=3, **TINY)
DATA = {"channels": 3, "classes": 7}
on_torch = pytest.mark.skipif(keras.backend.backend() != "torch", reason="torch counts")


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


def attention_layer(attention, heads=3, size=4, grid=(4, 4)):
    made = {
        "softmax": lambda: keras.layers.MultiHeadAttention(heads, size),
        "gfsa": lambda: layers.GraphFilterAttention(heads, size),
        "p_laplacian": lambda: layers.PLaplacianAttention(heads, size),
        "agf": lambda: layers.AttentiveGraphFilter(heads, size),
        "performer": lambda: layers.MaskedKernelAttention(heads, size),
        "topological": lambda: layers.MaskedKernelAttention(
            heads, size, mask=BlockToeplitz(grid, num_prefix_tokens=1)
        ),
    }
    return made[attention]()


def within_one_percent_or_its_rounding(value, published):
    digits = len(str(published).partition(".")[2])
    return abs(value / published - 1) <= 0.01 or round(value, digits) == published


@pytest.mark.parametrize("name", SIZES)
def test_published_sizes_have_the_published_parameters_and_multiply_adds(name):
    size, found = SIZES[name], total(costs(SIZES[name]))
    assert abs(found.parameters / 1e6 / size.parameters - 1) < 0.005
    if size.multiply_adds is not None:
        billions = found.multiply_adds / 1e9
        assert within_one_percent_or_its_rounding(billions, size.multiply_adds), billions


def test_larger_images_cost_what_was_published():
    """CaiT at 384 x 384 pixels, arXiv 2103.17239, Table 3."""
    for name, billions in (("cait-xs24", 19.3), ("cait-s24", 32.2), ("cait-s36", 48.0)):
        found = total(costs(SIZES[name], image=384)).multiply_adds / 1e9
        assert within_one_percent_or_its_rounding(found, billions), (name, found)


def test_counts_are_those_of_the_released_models():
    """Of DeiT's, CaiT's and Swin's released weights, with 1000 classes."""
    released = {
        "deit-tiny": 5_717_416,
        "deit-small": 22_050_664,
        "deit-base": 86_567_656,
        "swin-tiny": 28_288_354,
        "swin-small": 49_606_258,
        "swin-base": 87_768_224,
    }
    assert {name: total(costs(SIZES[name])).parameters for name in released} == released


def test_cait_by_class_of_layer():
    """CaiT-S24: 24 blocks and 2 class layers of width 384, 8 heads, 14 x 14 patches."""
    dense, hidden = 384 * 384 + 384, 2 * 384 * 1536 + 1536 + 384
    parts = {name: cost.parameters for name, cost in costs(SIZES["cait-s24"]).items()}
    assert parts == {
        "patches": 16 * 16 * 3 * 384 + 384,
        "class token": 384,
        "positions": 14 * 14 * 384,
        "attention": 24 * (4 * dense + 2 * (8 * 8 + 8)),
        "feed-forward": 24 * hidden,
        "class attention": 2 * 4 * dense,
        "class feed-forward": 2 * hidden,
        "LayerScale": 26 * 2 * 384,
        "normalisation": (26 * 2 + 1) * 2 * 384,
        "logits": 384 * 1000 + 1000,
    }


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_attention_layers_have_the_parameters_of_the_formula(attention):
    layer = attention_layer(attention)
    layer.build((None, 17, 12), (None, 17, 12))
    assert layer.count_params() == attention_cost(attention, 17, 12, 3, grid=(4, 4)).parameters


@on_torch
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_attention_layers_do_the_multiply_adds_of_the_formula(attention):
    counted = counted_multiply_adds(attention_layer(attention), (1, 17, 12), (1, 17, 12))
    expected = attention_cost(attention, 17, 12, 3, grid=(4, 4))
    assert counted == expected.multiply_adds


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_deit_is_its_formula(attention):
    def make(index, num_heads, key_dim, name):
        return attention_layer(attention, num_heads, key_dim)

    model = vit.classifier(image_size=8, size=DEIT, attention=make, **DATA)
    expected = total(costs(DEIT, attention, **DATA))
    assert model.count_params() == expected.parameters
    if keras.backend.backend() == "torch":
        assert counted_multiply_adds(model, (1, 8, 8, 3)) == expected.multiply_adds


def gfsa_of_cait(index, num_heads, key_dim, name):
    return cait.TalkingHeadsAttention(num_heads, key_dim, filters.FirstOrder(4), name=name)


@pytest.mark.parametrize("attention", ["softmax", "gfsa"])
def test_cait_is_its_formula(attention):
    make = gfsa_of_cait if attention == "gfsa" else None
    model = cait.classifier(image_size=8, size=CAIT, attention=make, **DATA)
    expected = total(costs(CAIT, attention, **DATA))
    assert model.count_params() == expected.parameters
    if keras.backend.backend() == "torch":
        assert counted_multiply_adds(model, (1, 8, 8, 3)) == expected.multiply_adds


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
    expected = total(costs(SWIN, attention, image=image, **DATA))
    assert model.count_params() == expected.parameters
    if keras.backend.backend() == "torch":
        assert counted_multiply_adds(model, (1, image, image, 3)) == expected.multiply_adds


@pytest.mark.parametrize("name", SIZES)
def test_gfsa_adds_three_numbers_for_each_head(name):
    size = SIZES[name]
    heads = size.layers * size.heads
    if size.model == "swin":
        heads = sum(depth * size.heads * 2**stage for stage, depth in enumerate(size.depths))
    plain, filtered = (total(costs(size, a)).parameters for a in ("softmax", "gfsa"))
    assert filtered - plain == 3 * heads


@pytest.mark.parametrize(("trained", "numbers"), [(True, 3), (["power"], 1)])
def test_gfsa_trains_three_numbers_or_one_for_each_head(trained, numbers):
    filter = filters.FirstOrder(3, trainable_coefficients=trained)
    counts = []
    for layer in (
        keras.layers.MultiHeadAttention(3, 4),
        layers.GraphFilterAttention(3, 4, filter=filter),
    ):
        layer.build((None, 17, 12), (None, 17, 12))
        counts.append(sum(math.prod(weight.shape) for weight in layer.trainable_weights))
    assert counts[1] - counts[0] == 3 * numbers


def test_unknown_attentions_are_told():
    with pytest.raises(ValueError, match=r"must be one of .*Received: attention='linear'"):
        costs(CAIT, "linear")
    with pytest.raises(ValueError, match=r"Swin has softmax.*Received: attention='agf'"):
        costs(SWIN, "agf")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deit-tiny", "deit-small", "cait-s24", "swin-small"])
def test_published_sizes_can_be_built(name):
    pytest.importorskip("keras_hub")
    from recipes.common.images import swin

    size = SIZES[name]
    make = {"deit": vit, "cait": cait, "swin": swin}[size.model].classifier
    model = make(image_size=224, channels=3, classes=1000, size=size)
    expected = total(costs(size))
    assert model.count_params() == expected.parameters
    if keras.backend.backend() == "torch":
        assert counted_multiply_adds(model, (1, 224, 224, 3)) == expected.multiply_adds


STEP = """
import keras, numpy as np
from keras_graphattn.layers import GraphFilterAttention
from recipes.common.images.sizes import SIZES
from recipes.common.images.vit import classifier

def attention(index, num_heads, key_dim, name):
    return GraphFilterAttention(num_heads, key_dim, attention_path="blockwise", name=name)

model = classifier(image_size=224, channels=3, classes=1000, size=SIZES["deit-small"],
                   attention=attention)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
images = np.random.default_rng(0).normal(size=(8, 224, 224, 3)).astype("float32")
assert np.isfinite(model.train_on_batch(images, np.arange(8)))
status = open("/proc/self/status").read().splitlines()
print(next(line for line in status if line.startswith("VmHWM")).split()[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read on Linux")
def test_a_step_of_deit_small_with_a_filter_fits_in_8_gib():
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", STEP]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    assert int(done.stdout.split()[-1]) / 2**20 < 8  # of KiB
