"""ViT: a class token before the patches, learned positions, blocks normalised before or after.

DeiT is this model without its distillation token; the topological ViT is this model with masked
kernel attention.

Sources: Dosovitskiy et al., "An Image is Worth 16x16 Words", arXiv 2010.11929 (ICLR 2021);
Touvron et al., "Training data-efficient image transformers & distillation through attention",
arXiv 2012.12877 (ICML 2021).
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers
from scipy import ndimage

from recipes.common.images.sizes import Size
from recipes.common.images.tokens import (
    ClassToken,
    Positions,
    norm,
    patches,
    with_drop_path,
    with_dropout,
)

Tensor = Any


def classifier(
    *,
    image_size: int,
    channels: int,
    classes: int,
    size: Size,
    attention: Callable[[int, int, int, str], Any],
    dropout: float = 0.0,
    drop_path: float = 0.0,
    seed: int = 0,
    post_norm: bool = False,
) -> keras.Model:
    """A ViT that maps images (B, image_size, image_size, channels) to logits (B, classes).

    The outputs of the layers `positions` and `block_1`, `block_2`, ... are the tokens before the
    blocks and after each, (B, 1 + T, width), the class token first. `attention` makes the attention
    of a block from its number (from 0), the number of heads, their width and the layer's name. The
    layer gets the tokens twice, as query and value. `drop_path` is the share of the examples that
    lose a branch in the last block; it grows from 0 in the first. With `post_norm`, a branch is
    added first and the sum normalised, as in the first transformer; the branch's input is not
    normalised.

    Raises `ValueError` if the patches do not fill the image.
    """

    def add(tokens: Tensor, branch: Tensor, name: str, rate: float, output: str) -> Tensor:
        branch = with_dropout(branch, dropout, seed, f"{name}_dropout")
        branch = with_drop_path(branch, rate, seed, f"{name}_drop_path")
        if not post_norm:
            return layers.Add(name=output)([tokens, branch])
        return norm(output)(layers.Add(name=f"{name}_added")([tokens, branch]))

    images = keras.Input((image_size, image_size, channels), name="images")
    tokens = ClassToken(name="class_token")(patches(images, size))
    tokens = Positions(name="positions")(tokens)
    tokens = with_dropout(tokens, dropout, seed, "positions_dropout")
    for index in range(size.layers):
        name, rate = f"block_{index + 1}", drop_path * index / max(1, size.layers - 1)
        normed = tokens if post_norm else norm(f"{name}_attention_norm")(tokens)
        attend = attention(index, size.heads, size.key_dim, f"{name}_attention")
        tokens = add(tokens, attend(normed, normed), f"{name}_attention", rate, f"{name}_attended")
        hidden = tokens if post_norm else norm(f"{name}_feed_forward_norm")(tokens)
        hidden = layers.Dense(size.feed_forward, activation="gelu", name=f"{name}_hidden")(hidden)
        hidden = with_dropout(hidden, dropout, seed, f"{name}_hidden_dropout")
        hidden = layers.Dense(size.width, name=f"{name}_output")(hidden)
        tokens = add(tokens, hidden, f"{name}_feed_forward", rate, name)
    if not post_norm:
        tokens = norm("last_norm")(tokens)
    logits = layers.Dense(classes, dtype="float32", name="logits")(tokens[:, 0])
    return keras.Model(images, logits, name="vit")


def start_from(model: keras.Model, other: keras.Model) -> None:
    """Takes over the weights of another ViT of the same blocks, for images of another size too.

    Positions, and the factors of block-Toeplitz masks, are interpolated. Logits of another number
    of classes keep their own weights. Raises `ValueError` for other blocks or patches.
    """
    pairs = list(zip(model.variables, other.variables, strict=False))
    fit = len(model.variables) == len(other.variables)
    if not fit or any(not _can_start_from(own, source) for own, source in pairs):
        raise ValueError(
            "a model can start from one of the same blocks and patches. Received: one of "
            f"{len(other.variables)} weights, {other.count_params():,} numbers; expected: "
            f"{len(model.variables)} weights, {model.count_params():,} numbers"
        )
    for own, source in pairs:
        values = keras.ops.convert_to_numpy(source)
        if own.name == "table":
            values = resized_positions(values, round((own.shape[0] - 1) ** 0.5))
        elif own.name == "log_factors" and own.shape != source.shape:
            # (N, 2 h - 1, 2 w - 1): from the farthest offset to the farthest one
            factors = [
                after / before for after, before in zip(own.shape, source.shape, strict=True)
            ]
            values = ndimage.zoom(values, factors, order=1)
        if tuple(own.shape) == values.shape:
            own.assign(values)


def resized_positions(table: np.ndarray, side: int) -> np.ndarray:
    """Position embeddings (1 + T, d) for `side` x `side` patches, by cubic splines on their grid.

    The first row is that of the class token, and stays. Source: Touvron et al., arXiv 2012.12877,
    Section 3, on why the interpolation is cubic.
    """
    before = round((len(table) - 1) ** 0.5)
    if before == side:
        return table
    grid = np.reshape(table[1:], (before, before, -1)).astype("float64")
    factor = side / before
    resized = ndimage.zoom(grid, (factor, factor, 1), order=3, mode="nearest", grid_mode=True)
    return np.concatenate([table[:1], resized.reshape(side * side, -1).astype(table.dtype)])


def _can_start_from(own: keras.Variable, source: keras.Variable) -> bool:
    if own.name != source.name:
        return False
    kept = {"table": 1, "log_factors": 0}.get(own.name)  # the axis that is not resized
    if kept is not None:
        return own.shape[kept] == source.shape[kept]
    return own.shape == source.shape or own.path.startswith("logits")
