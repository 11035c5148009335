"""Parts of image models other than attention: patches, positions, LayerScale, drop path."""

from typing import Any

import keras
from keras import layers, ops

from recipes.common.images.sizes import Size
from recipes.common.training.layers import FirstToken, dropout, named_seed

Tensor = Any


def patches(images: Tensor, size: Size) -> Tensor:
    """Linear maps of the patches of images, row by row: (B, h, w, C) -> (B, T, width)."""
    height, width = images.shape[1:3]
    if height % size.patch or width % size.patch:
        raise ValueError(
            f"Patches of {size.patch} x {size.patch} pixels must fill the image. Received: images "
            f"of {height} x {width} pixels. Choose an image size that is a multiple of "
            f"{size.patch}."
        )
    dense = layers.Conv2D(size.width, size.patch, strides=size.patch, name="patches")
    count = (height // size.patch) * (width // size.patch)
    return ops.reshape(dense(images), (-1, count, size.width))


def norm(name: str) -> layers.Layer:
    """The normalisation of all image models."""
    return layers.LayerNormalization(epsilon=1e-6, name=name)


def with_dropout(x: Tensor, rate: float, seed: int, name: str) -> Tensor:
    """Dropout, with a seed that depends on the layer's name."""
    return dropout(rate, seed, name)(x) if rate else x


def with_drop_path(x: Tensor, rate: float, seed: int, name: str) -> Tensor:
    """Stochastic depth: in training, a share `rate` of the examples loses the branch x (B, T, d).

    Source: Huang et al., "Deep Networks with Stochastic Depth", arXiv 1603.09382.
    """
    if not rate:
        return x
    layer = layers.Dropout(rate, (None, 1, 1), seed=named_seed(seed, name), name=name)
    return layer(x)


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class ClassToken(FirstToken):
    """Puts one learned vector before the patches: (B, T, d) -> (B, 1 + T, d)."""

    start = keras.initializers.TruncatedNormal


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class Positions(layers.Layer):
    """Adds a learned vector to each position: (B, T, d) -> (B, T, d)."""

    def build(self, tokens_shape: Any) -> None:
        start = keras.initializers.TruncatedNormal(stddev=0.02)
        shape = tuple(tokens_shape[1:])
        self.table = self.add_weight(shape=shape, initializer=start, name="table")
        self.built = True

    def call(self, tokens: Tensor) -> Tensor:
        return tokens + ops.cast(self.table, tokens.dtype)

    def compute_output_shape(self, tokens_shape: Any) -> Any:
        return tokens_shape


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class LayerScale(layers.Layer):
    """Multiplies each feature by a learned number: (..., d) -> (..., d).

    Args:
        start: What all numbers are before training, near 0.
        **kwargs: Those of a Keras layer.

    Source: Touvron et al., "Going deeper with Image Transformers", arXiv 2103.17239, Eq. 4.
    """

    def __init__(self, start: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start = start

    def build(self, tokens_shape: Any) -> None:
        start = keras.initializers.Constant(self.start)
        self.scale = self.add_weight(shape=(tokens_shape[-1],), initializer=start, name="scale")
        self.built = True

    def call(self, tokens: Tensor) -> Tensor:
        return tokens * ops.cast(self.scale, tokens.dtype)

    def compute_output_shape(self, tokens_shape: Any) -> Any:
        return tokens_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "start": self.start}
