"""ViT against its formula, its published numbers of parameters, other resolutions."""

import re

import keras
import numpy as np
import pytest
import torch

from keras_graphattn.layers import MaskedKernelAttention
from keras_graphattn.masks import BlockToeplitz
from recipes.common.images.sizes import Size
from recipes.common.images.vit import classifier, resized_positions, start_from
from tests.numerics import randomise, to_numpy
from tests.recipes.formulas import assert_is_formula
from tests.recipes.test_cait import dense, in_heads, normed

WIDTH, HEADS = 12, 3
TINY = Size("vit", 2, WIDTH, HEADS, 20, patch=2, image=8)
DATA = {"image_size": 8, "channels": 2, "classes": 5, "size": TINY}
IMAGES = np.random.default_rng(0).normal(size=(3, 8, 8, 2)).astype("float32")


def topological(index, num_heads, key_dim, name):
    return MaskedKernelAttention(num_heads, key_dim, mask=BlockToeplitz((4, 4), 1), name=name)


def attended(x, weights, name, masked):
    """Softmax attention; or kernel attention with relu + 1e-3 and factors by offset."""
    query, key, value = (
        in_heads(x, weights, f"{name}/{part}") for part in ("query", "key", "value")
    )
    if masked:
        query, key = (torch.relu(one) + 1e-3 for one in (query, key))
        (table,) = (w for path, w in weights.items() if path.startswith(name) and "factors" in path)
        down, across = np.divmod(np.arange(16), 4)
        offsets = (down[:, None] - down + 3, across[:, None] - across + 3)
        factors = torch.ones(HEADS, 17, 17, dtype=torch.float64)
        factors[:, 1:, 1:] = torch.exp(table[:, offsets[0], offsets[1]])
        a = factors * (query @ key.transpose(-1, -2))
        a = a / a.sum(dim=-1, keepdim=True)
    else:
        a = torch.softmax(query @ key.transpose(-1, -2) / 2, dim=-1)
    output = f"{name}/attention_output"
    found = torch.einsum("bnth,nhd->btd", a @ value, weights[f"{output}/kernel"])
    return found + weights[f"{output}/bias"]


def vit(images, weights, post_norm, masked):
    """Eq. 1-4 of arXiv 2010.11929; with `post_norm` the order of arXiv 1706.03762."""
    batch, grid = images.shape[0], 4
    pixels = images.reshape(batch, grid, 2, grid, 2, 2).permute(0, 1, 3, 2, 4, 5)
    kernel = weights["patches/kernel"].reshape(-1, WIDTH)
    tokens = pixels.reshape(batch, grid * grid, -1) @ kernel + weights["patches/bias"]
    token = weights["class_token/vector"].expand(batch, 1, WIDTH)
    tokens = torch.cat([token, tokens], dim=1) + weights["positions/table"]

    def norm(x, name):
        return normed(x, weights, name)

    def feed_forward(x, name):
        hidden = torch.nn.functional.gelu(dense(x, weights, f"{name}_hidden"))
        return dense(hidden, weights, f"{name}_output")

    if post_norm:  # the norms have the names of the tokens that they make
        made = re.compile(r"(block_\d(_attended)?)/")
        weights = {made.sub(r"\1_norm/", path, count=1): w for path, w in weights.items()}
    for name in ("block_1", "block_2"):
        attention = f"{name}_attention"
        if post_norm:
            tokens = norm(tokens + attended(tokens, weights, attention, masked), f"{name}_attended")
            tokens = norm(tokens + feed_forward(tokens, name), name)
        else:
            tokens = tokens + attended(norm(tokens, attention), weights, attention, masked)
            tokens = tokens + feed_forward(norm(tokens, f"{name}_feed_forward"), name)
    last = tokens[:, 0] if post_norm else norm(tokens[:, 0], "last")
    return dense(last, weights, "logits")


@pytest.mark.parametrize("masked", [False, True], ids=["softmax", "topological"])
@pytest.mark.parametrize("post_norm", [False, True])
def test_model_is_its_formula_in_values_and_gradients(post_norm, masked):
    model = classifier(**DATA, attention=topological if masked else None, post_norm=post_norm)
    randomise(model)

    def formula(x, weights):
        return vit(x, weights, post_norm, masked)

    assert_is_formula(model, formula, [IMAGES], bounds=(2e-5, 1e-4))


def test_branches_are_lost_more_often_from_block_to_block():
    size = TINY._replace(layers=4)
    model = classifier(**{**DATA, "size": size}, dropout=0.1, drop_path=0.3)
    rates = {layer.name: layer.rate for layer in model.layers if "drop_path" in layer.name}
    for block, rate in ((2, 0.1), (3, 0.2), (4, 0.3)):
        for part in ("attention", "feed_forward"):
            assert rates.pop(f"block_{block}_{part}_drop_path") == pytest.approx(rate)
    assert rates == {}  # the first block loses none
    outputs = to_numpy(model(IMAGES))
    assert np.abs(to_numpy(model(IMAGES, training=True)) - outputs).max() > 1e-3
    np.testing.assert_array_equal(to_numpy(model(IMAGES)), outputs)


def test_positions_of_another_resolution_lie_between_the_known_ones():
    rows, columns = np.meshgrid(np.arange(6.0), np.arange(6.0), indexing="ij")
    plane = np.stack([rows, columns, 2 * rows - columns], axis=-1).reshape(36, 3)
    table = np.concatenate([[[7.0, 8.0, 9.0]], plane]).astype("float32")
    assert resized_positions(table, 6) is table
    found = resized_positions(table, 12)
    assert found.shape == (145, 3)
    assert found.dtype == table.dtype
    np.testing.assert_array_equal(found[0], table[0])
    grid = found[1:].reshape(12, 12, 3)
    expected = (np.arange(12) - 0.5) / 2  # centres of pixels half as wide
    inner = slice(4, 8)  # the borders have no neighbours on one side
    for axis, known in ((0, expected[inner, None]), (1, expected[inner])):
        found = grid[inner, inner, axis]
        np.testing.assert_allclose(found, np.broadcast_to(known, (4, 4)), atol=0.02)
    assert grid.min() > plane.min() - 0.5
    assert grid.max() < plane.max() + 0.5


@pytest.mark.slow_on("jax")
def test_a_model_starts_from_another_of_other_images_and_classes():
    other = classifier(**DATA, attention=topological)
    randomise(other)
    same = classifier(**DATA, attention=topological)
    start_from(same, other)
    np.testing.assert_array_equal(to_numpy(same(IMAGES)), to_numpy(other(IMAGES)))

    def larger(index, num_heads, key_dim, name):
        return MaskedKernelAttention(num_heads, key_dim, mask=BlockToeplitz((8, 8), 1), name=name)

    model = classifier(**{**DATA, "image_size": 16, "classes": 3}, attention=larger)
    own_logits = to_numpy(model.get_layer("logits").kernel)
    start_from(model, other)
    np.testing.assert_array_equal(to_numpy(model.get_layer("logits").kernel), own_logits)
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
    for size in (TINY._replace(layers=1), TINY._replace(patch=4), TINY._replace(width=6)):
        with pytest.raises(ValueError, match="same blocks and patches"):
            start_from(model, classifier(**{**DATA, "size": size}))


def test_a_model_that_was_saved_answers_as_before(tmp_path):
    model = classifier(**DATA, attention=topological)
    randomise(model)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(to_numpy(again(IMAGES)), to_numpy(model(IMAGES)), atol=1e-6)
