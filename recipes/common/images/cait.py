"""CaiT: blocks in which only patches attend, then class layers in which only the class token looks.

Each branch goes through LayerScale, and the heads of the patches' attention talk to each other.

Sources: Touvron et al., "Going deeper with Image Transformers", arXiv 2103.17239 (ICCV 2021);
Shazeer et al., "Talking-Heads Attention", arXiv 2003.02436.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops

from keras_graphattn.numerics.precision import masked_softmax
from recipes.common.images.sizes import Size
from recipes.common.images.tokens import (
    ClassToken,
    LayerScale,
    Positions,
    norm,
    patches,
    with_drop_path,
    with_dropout,
)
from recipes.common.training.layers import plain_attention
from recipes.common.training.matrix_attention import MatrixAttention

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class TalkingHeadsAttention(MatrixAttention):
    """Attention whose heads are mixed before and after the softmax; optionally a filter.

        A = mix_after(softmax(mix_before(Q K^T / sqrt(key_dim)))),   outputs A V, or H(A) V

    Both mixes are affine maps of the N numbers that the heads have for a pair of tokens, in
    float32. The filter is applied to the mixed matrix, as in GFSA's released code. Its rows need
    not sum to 1. The arguments are those of `MatrixAttention`.

    Call arguments:
        tokens: Tensor of shape (B, T, d).
        value: Tensor of shape (B, S, d) that the tokens look at; `tokens` by default. S is T
            where there is a filter.

    Source: Shazeer et al., arXiv 2003.02436, Section 3.1, with biases as in CaiT's released code.
    """

    def build(self, tokens_shape: Any, *others: Any) -> None:
        heads = (None, self.num_heads, None, None)
        for name in ("mix_before", "mix_after"):
            mix = layers.EinsumDense(
                "bnts,nm->bmts",
                (self.num_heads, None, None),
                bias_axes="m",
                kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02),
                dtype="float32",
                name=name,
            )
            mix.build(heads)
            setattr(self, name, mix)
        super().build(tokens_shape)

    def call(
        self, tokens: Tensor, value: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        def matrix(scores: Tensor) -> Tensor:
            return self.mix_after(masked_softmax(self.mix_before(scores)))

        return self._attend(tokens, tokens if value is None else value, matrix, training)


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
) -> keras.Model:
    """A CaiT that maps images (B, image_size, image_size, channels) to logits (B, classes).

    `attention` makes the attention of a block of patches from its number (from 0), the number of
    heads, their width and the layer's name. The layer gets the tokens twice, as query and value.
    The class layers always have plain attention. They have no dropout and no drop path; `drop_path`
    is the same in all other blocks.

    Raises `ValueError` if the patches do not fill the image, or the size has no class layers.
    """
    if not size.class_layers:
        raise ValueError(
            "CaiT needs a class layer: its class token looks at the patches nowhere else. "
            f"Received: size.class_layers={size.class_layers}"
        )

    def add(tokens: Tensor, branch: Tensor, name: str, rates: tuple[float, float]) -> Tensor:
        branch = with_dropout(branch, rates[0], seed, f"{name}_dropout")
        branch = LayerScale(size.layer_scale, name=f"{name}_scale")(branch)
        branch = with_drop_path(branch, rates[1], seed, f"{name}_drop_path")
        return layers.Add(name=f"{name}_added")([tokens, branch])

    def add_feed_forward(tokens: Tensor, name: str, rates: tuple[float, float]) -> Tensor:
        hidden = layers.Dense(size.feed_forward, activation="gelu", name=f"{name}_hidden")
        outputs = hidden(norm(f"{name}_feed_forward_norm")(tokens))
        outputs = with_dropout(outputs, rates[0], seed, f"{name}_hidden_dropout")
        outputs = layers.Dense(size.width, name=f"{name}_output")(outputs)
        return add(tokens, outputs, f"{name}_feed_forward", rates)

    rates = (dropout, drop_path)
    images = keras.Input((image_size, image_size, channels), name="images")
    tokens = Positions(name="positions")(patches(images, size))
    tokens = with_dropout(tokens, dropout, seed, "positions_dropout")
    for index in range(size.layers):
        name = f"block_{index + 1}"
        attend = attention(index, size.heads, size.key_dim, f"{name}_attention")
        normed = norm(f"{name}_attention_norm")(tokens)
        tokens = add(tokens, attend(normed, normed), f"{name}_attention", rates)
        tokens = add_feed_forward(tokens, name, rates)
    token, rates = ClassToken(name="class_token")(tokens)[:, :1], (0.0, 0.0)  # (B, 1, d)
    for index in range(size.class_layers):
        name = f"class_layer_{index + 1}"
        normed = norm(f"{name}_attention_norm")(ops.concatenate([token, tokens], axis=1))
        sizes = {"num_heads": size.heads, "key_dim": size.key_dim}
        attend = plain_attention(**sizes, name=f"{name}_attention")
        token = add(token, attend(normed[:, :1], normed), f"{name}_attention", rates)
        token = add_feed_forward(token, name, rates)
    logits = layers.Dense(classes, dtype="float32", name="logits")
    return keras.Model(images, logits(norm("last_norm")(token[:, 0])), name="cait")
