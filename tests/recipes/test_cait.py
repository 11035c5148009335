"""CaiT: its attention and its model against formulas written out, and what is refused."""

import keras
import numpy as np
import pytest
import torch

from keras_graphattn.filters import FirstOrder
from keras_graphattn.layers import PLaplacianAttention
from recipes.common.images.cait import TalkingHeadsAttention, classifier
from recipes.common.images.sizes import SIZES
from tests.numerics import assert_close, randomise, relative_rms, to_numpy
from tests.recipes.formulas import assert_is_formula

HEADS, SIZE, WIDTH, LENGTH = 3, 4, 12, 5
RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.normal(size=(2, LENGTH, WIDTH)).astype("float32")
TINY = SIZES["cait-s24"]._replace(
    layers=2, width=WIDTH, heads=HEADS, feed_forward=20, patch=2, layer_scale=0.5
)
DATA = {"image_size": 8, "channels": 2, "classes": 5, "size": TINY}
IMAGES = RANDOM.normal(size=(3, 8, 8, 2)).astype("float32")


def dense(x, weights, name):
    return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]


def in_heads(x, weights, name):
    """(B, T, d) -> (B, N, T, H)."""
    kernel, bias = weights[f"{name}/kernel"], weights[f"{name}/bias"]
    return torch.einsum("btd,dnh->bnth", x, kernel) + bias[:, None]


def mixed(x, weights, name):
    """Of the heads in (B, N, T, T)."""
    found = torch.einsum("bnts,nm->bmts", x, weights[f"{name}/kernel"])
    return found + weights[f"{name}/bias"].reshape(-1, 1, 1)


def talking_heads(x, weights, filter, prefix=""):
    query, key, value = (
        in_heads(x, weights, f"{prefix}{name}") for name in ("query", "key", "value")
    )
    scores = mixed(query @ key.transpose(-1, -2) / SIZE**0.5, weights, f"{prefix}mix_before")
    a = mixed(torch.softmax(scores, dim=-1), weights, f"{prefix}mix_after")
    if filter is not None:
        w_0, w_1, w_k = (
            weights[f"{prefix}{name}_coefficient"][:, None, None]
            for name in ("identity", "linear", "power")
        )
        identity = torch.eye(a.shape[-1], dtype=a.dtype)
        a = w_0 * identity + w_1 * a + w_k * (a + (filter.order - 1) * (a @ a - a))
    name = f"{prefix}attention_output"
    outputs = torch.einsum("bnth,nhd->btd", a @ value, weights[f"{name}/kernel"])
    return outputs + weights[f"{name}/bias"]


@pytest.mark.parametrize("filter", [None, FirstOrder(4)], ids=["softmax", "gfsa"])
def test_attention_is_its_formula_in_values_and_gradients(filter):
    layer = TalkingHeadsAttention(HEADS, SIZE, filter)
    layer(TOKENS)
    randomise(layer)

    def formula(x, weights):
        return talking_heads(x, weights, filter)

    assert_is_formula(layer, formula, [TOKENS], bounds=(1e-5, 3e-5))
    again = TalkingHeadsAttention.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_attention_in_half_precision(dtype):
    layer = TalkingHeadsAttention(HEADS, SIZE, FirstOrder(4), dtype=dtype)
    outputs = layer(TOKENS, TOKENS)
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype.removeprefix("mixed_")
    weights = {v.path.partition("/")[2]: torch.tensor(to_numpy(v)) for v in layer.weights}
    expected = talking_heads(torch.tensor(TOKENS.astype("float64")), weights, layer.filter)
    assert relative_rms(to_numpy(outputs), expected.numpy()) < 0.02


def normed(x, weights, name):
    x = x - x.mean(dim=-1, keepdim=True)
    x = x / (x.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
    return x * weights[f"{name}_norm/gamma"] + weights[f"{name}_norm/beta"]


def cait(images, weights, filter):
    """CaiT of arXiv 2103.17239, Section 3: Eq. 4 for each branch, and class layers by Eq. 5-9."""
    batch, grid = images.shape[0], 4
    pixels = images.reshape(batch, grid, 2, grid, 2, 2).permute(0, 1, 3, 2, 4, 5)
    kernel = weights["patches/kernel"].reshape(-1, WIDTH)
    tokens = pixels.reshape(batch, grid * grid, -1) @ kernel + weights["patches/bias"]
    tokens = tokens + weights["positions/table"]

    def add_feed_forward(tokens, name):
        x = dense(normed(tokens, weights, f"{name}_feed_forward"), weights, f"{name}_hidden")
        x = dense(torch.nn.functional.gelu(x), weights, f"{name}_output")
        return tokens + weights[f"{name}_feed_forward_scale/scale"] * x

    for name in ("block_1", "block_2"):
        x = normed(tokens, weights, f"{name}_attention")
        x = talking_heads(x, weights, filter, f"{name}_attention/")
        tokens = tokens + weights[f"{name}_attention_scale/scale"] * x
        tokens = add_feed_forward(tokens, name)
    token = weights["class_token/vector"].expand(batch, 1, WIDTH)
    for name in ("class_layer_1", "class_layer_2"):
        x = normed(torch.cat([token, tokens], dim=1), weights, f"{name}_attention")
        query = in_heads(x[:, :1], weights, f"{name}_attention/query")
        key, value = (in_heads(x, weights, f"{name}_attention/{n}") for n in ("key", "value"))
        a = torch.softmax(query @ key.transpose(-1, -2) / SIZE**0.5, dim=-1)
        output = f"{name}_attention/attention_output"
        x = torch.einsum("bnth,nhd->btd", a @ value, weights[f"{output}/kernel"])
        x = x + weights[f"{output}/bias"]
        token = token + weights[f"{name}_attention_scale/scale"] * x
        token = add_feed_forward(token, name)
    return dense(normed(token[:, 0], weights, "last"), weights, "logits")


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("filter", [None, FirstOrder(4)], ids=["softmax", "gfsa"])
def test_model_is_its_formula(filter):
    def attention(index, num_heads, key_dim, name):
        return TalkingHeadsAttention(num_heads, key_dim, filter, name=name)

    model = classifier(**DATA, attention=attention if filter else None)
    randomise(model)
    weights = {v.path: torch.tensor(to_numpy(v)) for v in model.variables}
    expected = cait(torch.tensor(IMAGES.astype("float64")), weights, filter)
    assert_close(to_numpy(model(IMAGES)), expected.numpy(), 1e-5)


def test_any_attention_takes_the_blocks_and_drops_are_for_training(tmp_path):
    asked = []

    def attention(index, num_heads, key_dim, name):
        asked.append((index, num_heads, key_dim))
        return PLaplacianAttention(num_heads, key_dim, name=name)

    model = classifier(**DATA, attention=attention, dropout=0.3, drop_path=0.3)
    assert asked == [(0, HEADS, SIZE), (1, HEADS, SIZE)]
    outputs = to_numpy(model(IMAGES))
    assert np.abs(to_numpy(model(IMAGES, training=True)) - outputs).max() > 1e-3
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(to_numpy(again(IMAGES)), outputs, atol=1e-6)


def test_drop_path_takes_a_branch_from_whole_examples():
    model = classifier(**DATA, drop_path=0.5, seed=3)
    layer = next(one for one in model.layers if one.name == "block_1_attention_drop_path")
    x = np.ones((200, 4, WIDTH), "float32")
    dropped = to_numpy(layer(x, training=True))
    per_example = dropped.reshape(200, -1)
    assert set(np.unique(per_example)) == {0.0, 2.0}
    assert (per_example == per_example[:, :1]).all()
    assert 60 < (per_example[:, 0] == 0).sum() < 140


def test_images_that_patches_do_not_fill_are_refused():
    with pytest.raises(ValueError, match=r"2 x 2 pixels must fill.*9 x 9 pixels.*multiple of 2"):
        classifier(**{**DATA, "image_size": 9})


def test_a_size_without_class_layers_is_refused():
    with pytest.raises(ValueError, match=r"needs a class layer.*class_layers=0"):
        classifier(**{**DATA, "size": TINY._replace(class_layers=0)})
