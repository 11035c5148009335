"""ViT and CaiT against their formulas, what they cost, drop, refuse and start from."""

import re

import keras
import numpy as np
import pytest
import torch

from benchmarks.image_costs import ATTENTIONS, model_cost
from keras_graphattn import convert, layers
from keras_graphattn.filters import FirstOrder
from keras_graphattn.layers import MaskedKernelAttention, PLaplacianAttention
from keras_graphattn.masks import BlockToeplitz
from recipes.common.images import cait, vit
from recipes.common.images.cait import TalkingHeadsAttention
from recipes.common.images.sizes import SIZES, Size
from recipes.common.images.vit import resized_positions, start_from
from tests.numerics import randomise, to_numpy
from tests.recipes.formulas import (
    assert_is_formula,
    dense,
    feed_forward,
    in_heads,
    joined,
    normed,
    patches,
    projections,
    talking_heads,
)

WIDTH, HEADS, ORDER = 12, 3, 4
TINY = {
    "vit": Size("deit", 2, WIDTH, HEADS, 20, patch=2, image=8),
    "cait": SIZES["cait-s24"]._replace(
        layers=2, width=WIDTH, heads=HEADS, feed_forward=20, patch=2, image=8, layer_scale=0.5
    ),
}
DATA = {"channels": 2, "classes": 5}
IMAGES = np.random.default_rng(0).normal(size=(3, 8, 8, 2)).astype("float32")
CLASSIFIERS = {"vit": vit.classifier, "cait": cait.classifier}


def made(name, **more):
    arguments = {"image_size": 8, "size": TINY[name], "attention": PLAIN[name], **DATA}
    return CLASSIFIERS[name](**{**arguments, **more})


def plain(index, num_heads, key_dim, name):
    return keras.layers.MultiHeadAttention(num_heads, key_dim, name=name)


def talking(index, num_heads, key_dim, name):
    return TalkingHeadsAttention(num_heads, key_dim, name=name)


PLAIN = {"vit": plain, "cait": talking}


def topological(side=4):
    def make(index, num_heads, key_dim, name):
        mask = BlockToeplitz((side, side), 1)
        return MaskedKernelAttention(num_heads, key_dim, mask=mask, name=name)

    return make


def talking_gfsa(index, num_heads, key_dim, name):
    return TalkingHeadsAttention(num_heads, key_dim, FirstOrder(ORDER), name=name)


def softmax_attention(x, source, weights, name):
    query = in_heads(x, weights, f"{name}/query")
    key, value = (in_heads(source, weights, f"{name}/{part}") for part in ("key", "value"))
    a = torch.softmax(query @ key.transpose(-1, -2) / 2, dim=-1)
    return joined(a @ value, weights, f"{name}/attention_output")


def topological_attention(x, _, weights, name):
    """Kernel attention with relu + 1e-3 and factors by offset."""
    query, key, value = projections(x, weights, f"{name}/")
    query, key = (torch.relu(one) + 1e-3 for one in (query, key))
    (table,) = (w for path, w in weights.items() if path.startswith(name) and "factors" in path)
    down, across = np.divmod(np.arange(16), 4)
    offsets = (down[:, None] - down + 3, across[:, None] - across + 3)
    factors = torch.ones(HEADS, 17, 17, dtype=torch.float64)
    factors[:, 1:, 1:] = torch.exp(table[:, offsets[0], offsets[1]])
    a = factors * (query @ key.transpose(-1, -2))
    a = a / a.sum(dim=-1, keepdim=True)
    return joined(a @ value, weights, f"{name}/attention_output")


def vit_formula(attention, post_norm):
    """Eq. 1-4 of arXiv 2010.11929; with `post_norm` the order of arXiv 1706.03762."""

    def formula(images, weights):
        token = weights["class_token/vector"].expand(len(images), 1, WIDTH)
        tokens = torch.cat([token, patches(images, weights, 4)], dim=1)
        tokens = tokens + weights["positions/table"]
        if post_norm:  # the norms have the names of the tokens that they make
            sums = re.compile(r"(block_\d(_attended)?)/")
            weights = {sums.sub(r"\1_norm/", path, count=1): w for path, w in weights.items()}
        for name in ("block_1", "block_2"):
            parts = {
                f"{name}_attention": lambda x, part: attention(x, x, weights, part),
                f"{name}_feed_forward": lambda x, part, name=name: feed_forward(x, weights, name),
            }
            for (part, branch), output in zip(
                parts.items(), (f"{name}_attended", name), strict=True
            ):
                if post_norm:
                    tokens = normed(tokens + branch(tokens, part), weights, output)
                else:
                    tokens = tokens + branch(normed(tokens, weights, part), part)
        token = tokens[:, 0]
        return dense(token if post_norm else normed(token, weights, "last"), weights, "logits")

    return formula


def cait_formula(order):
    """CaiT of arXiv 2103.17239, Section 3: Eq. 4 for each branch, and class layers by Eq. 5-9."""

    def formula(images, weights):
        def add(x, branch, name):
            return x + weights[f"{name}_scale/scale"] * branch

        def add_feed_forward(x, name):
            part = f"{name}_feed_forward"
            return add(x, feed_forward(normed(x, weights, part), weights, name), part)

        tokens = patches(images, weights, 4) + weights["positions/table"]
        for name in ("block_1", "block_2"):
            part = f"{name}_attention"
            branch = talking_heads(normed(tokens, weights, part), weights, order, f"{part}/")
            tokens = add_feed_forward(add(tokens, branch, part), name)
        token = weights["class_token/vector"].expand(len(images), 1, WIDTH)
        for name in ("class_layer_1", "class_layer_2"):
            part = f"{name}_attention"
            source = normed(torch.cat([token, tokens], dim=1), weights, part)
            branch = softmax_attention(source[:, :1], source, weights, part)
            token = add_feed_forward(add(token, branch, part), name)
        return dense(normed(token[:, 0], weights, "last"), weights, "logits")

    return formula


MODELS = {
    "cait_softmax": ("cait", {}, cait_formula(None)),
    "cait_gfsa": ("cait", {"attention": talking_gfsa}, cait_formula(ORDER)),
    **{
        f"vit_{name}_{'post' if post_norm else 'pre'}": (
            "vit",
            {"attention": attention, "post_norm": post_norm},
            vit_formula(formula, post_norm),
        )
        for name, attention, formula in (
            ("softmax", plain, softmax_attention),
            ("topological", topological(), topological_attention),
        )
        for post_norm in (False, True)
    },
}


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", MODELS)
def test_models_are_their_formulas_in_values_and_gradients(name):
    family, arguments, formula = MODELS[name]
    model = made(family, **arguments)
    randomise(model)
    assert_is_formula(model, formula, [IMAGES], bounds=(2e-5, 1e-4))


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("family", TINY)
def test_any_attention_takes_the_blocks_and_drops_are_for_training(family, tmp_path):
    blocks = []

    def attention(index, num_heads, key_dim, name):
        blocks.append((index, num_heads, key_dim))
        return PLaplacianAttention(num_heads, key_dim, name=name)

    model = made(family, attention=attention, dropout=0.3, drop_path=0.3)
    assert blocks == [(0, HEADS, 4), (1, HEADS, 4)]
    outputs = to_numpy(model(IMAGES))
    np.testing.assert_array_equal(to_numpy(model(IMAGES)), outputs)
    assert np.abs(to_numpy(model(IMAGES, training=True)) - outputs).max() > 1e-3
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(to_numpy(again(IMAGES)), outputs, atol=1e-6)


def test_drop_path_takes_a_branch_from_whole_examples():
    model = made("cait", drop_path=0.5, seed=3)
    layer = model.get_layer("block_1_attention_drop_path")
    dropped = to_numpy(layer(np.ones((200, 4, WIDTH), "float32"), training=True))
    per_example = dropped.reshape(200, -1)
    assert set(np.unique(per_example)) == {0.0, 2.0}
    assert (per_example == per_example[:, :1]).all()
    assert 60 < (per_example[:, 0] == 0).sum() < 140


def test_branches_are_lost_more_often_from_block_to_block():
    model = made("vit", size=TINY["vit"]._replace(layers=4), drop_path=0.3)
    rates = {layer.name: layer.rate for layer in model.layers if "drop_path" in layer.name}
    assert rates == {  # the first block loses none
        f"block_{block}_{part}_drop_path": pytest.approx(rate)
        for block, rate in ((2, 0.1), (3, 0.2), (4, 0.3))
        for part in ("attention", "feed_forward")
    }


REFUSED = [
    ("cait", {"image_size": 9}, r"2 x 2 pixels must fill.*9 x 9 pixels.*multiple of 2"),
    ("cait", {"size": TINY["cait"]._replace(class_layers=0)}, r"needs a class layer.*=0"),
    ("swin", {"image_size": 9}, "a multiple of 2.*image_size=9"),
    ("swin", {"image_size": 6}, "3 x 3 patches.*image_size=6.*at least 8 pixels"),
]


@pytest.mark.parametrize(("family", "arguments", "message"), REFUSED)
def test_sizes_that_do_not_fit_are_refused(family, arguments, message):
    if family == "swin":
        pytest.importorskip("keras_hub")
        from recipes.common.images import swin

        size = SIZES["swin-small"]._replace(depths=(2, 2), patch=1, window=4)
        with pytest.raises(ValueError, match=message):
            swin.classifier(**DATA, size=size, **arguments)
    else:
        with pytest.raises(ValueError, match=message):
            made("cait", **arguments)


def test_positions_of_another_resolution_lie_between_the_known_ones():
    rows, columns = np.meshgrid(np.arange(6.0), np.arange(6.0), indexing="ij")
    plane = np.stack([rows, columns, 2 * rows - columns], axis=-1).reshape(36, 3)
    table = np.concatenate([[[7.0, 8.0, 9.0]], plane]).astype("float32")
    assert resized_positions(table, 6) is table
    resized = resized_positions(table, 12)
    assert (resized.shape, resized.dtype) == ((145, 3), table.dtype)
    np.testing.assert_array_equal(resized[0], table[0])
    grid = resized[1:].reshape(12, 12, 3)
    expected = (np.arange(12) - 0.5) / 2  # centres of pixels half as wide
    inner = slice(4, 8)  # the borders have no neighbours on one side
    for axis, plane_values in ((0, expected[inner, None]), (1, expected[inner])):
        values = np.broadcast_to(plane_values, (4, 4))
        np.testing.assert_allclose(grid[inner, inner, axis], values, atol=0.02)
    assert grid.min() > plane.min() - 0.5
    assert grid.max() < plane.max() + 0.5


@pytest.mark.slow_on("jax")
def test_a_model_starts_from_another_of_other_images_and_classes():
    other, same = (made("vit", attention=topological()) for _ in range(2))
    randomise(other)
    start_from(same, other)
    np.testing.assert_array_equal(to_numpy(same(IMAGES)), to_numpy(other(IMAGES)))
    model = made("vit", image_size=16, classes=3, attention=topological(8))
    logits = to_numpy(model.get_layer("logits").kernel)
    start_from(model, other)
    np.testing.assert_array_equal(to_numpy(model.get_layer("logits").kernel), logits)
    for name in ("patches", "block_1_hidden"):
        kernels = [to_numpy(one.get_layer(name).kernel) for one in (model, other)]
        np.testing.assert_array_equal(*kernels)
    tables = [to_numpy(one.get_layer("positions").table) for one in (model, other)]
    assert tables[0].shape == (65, WIDTH)
    np.testing.assert_array_equal(tables[0], resized_positions(tables[1].astype("float32"), 8))
    large, small = (
        to_numpy(one.get_layer("block_1_attention").mask.log_factors) for one in (model, other)
    )
    np.testing.assert_allclose(large[:, [0, 7, 14]][..., [0, 7, 14]], small[:, ::3, ::3], atol=1e-6)
    for more in ({"layers": 1}, {"patch": 4}, {"width": 6}):
        with pytest.raises(ValueError, match="same blocks and patches"):
            start_from(model, made("vit", size=TINY["vit"]._replace(**more)))


SWIN = SIZES["swin-small"]._replace(
    depths=(2, 1), width=WIDTH, heads=HEADS, feed_forward=20, patch=2, window=3
)
TORCH = keras.backend.backend() == "torch"  # it counts


def counted_multiply_adds(model, shape):
    """The multiply-adds of all matrix products and convolutions of one call, on torch."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    # in a fused kernel for CPUs torch counts nothing
    with counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(keras.random.normal(shape, seed=0))
    return int(counter.get_total_flops()) // 2  # a product and a sum count as two


def assert_costs(model, expected, shape):
    assert model.count_params() == expected.parameters
    if TORCH:
        assert counted_multiply_adds(model, shape) == expected.multiply_adds


LAYERS = {
    "softmax": keras.layers.MultiHeadAttention,
    "gfsa": layers.GraphFilterAttention,
    "p_laplacian": layers.PLaplacianAttention,
    "agf": layers.AttentiveGraphFilter,
    "performer": layers.MaskedKernelAttention,
    "topological": layers.MaskedKernelAttention,
}


def attention_layer(attention, heads, size):
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


@pytest.mark.parametrize(
    ("family", "attention"),
    [*(("vit", one) for one in ATTENTIONS), ("cait", "softmax"), ("cait", "gfsa")],
)
def test_deit_and_cait_are_their_formulas(family, attention):
    def make(index, num_heads, key_dim, name):
        return attention_layer(attention, num_heads, key_dim)

    makers = {"vit": make, "cait": talking_gfsa if attention == "gfsa" else talking}
    cost = model_cost(TINY[family], attention, **DATA)
    assert_costs(made(family, attention=makers[family]), cost, (1, 8, 8, 2))


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
    assert_costs(model, expected, (1, image, image, 2))


def test_unknown_attentions_are_refused():
    with pytest.raises(ValueError, match=r"must be one of .*Received: attention='linear'"):
        model_cost(TINY["cait"], "linear")
    with pytest.raises(ValueError, match=r"Swin has softmax.*Received: attention='agf'"):
        model_cost(SWIN, "agf")
