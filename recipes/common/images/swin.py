"""Swin of KerasHub in the sizes of `SIZES`; `keras_graphattn.convert` changes its attention.

Attention is in windows, with learned biases of relative positions and with a mask where windows
hold parts of the image that are not neighbours. Filters and p-LaT keep both.

Source: Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows",
arXiv 2103.14030 (ICCV 2021).
"""

from typing import Any

import keras_hub

from recipes.common.images.sizes import Size


def classifier(
    *,
    image_size: int,
    channels: int,
    classes: int,
    size: Size,
    dropout: float = 0.0,
    drop_path: float = 0.0,
) -> Any:
    """A Swin that maps images (B, image_size, image_size, channels) to logits (B, classes).

    KerasHub's layers take no seed: weights and dropout follow that of Keras. `drop_path` is the
    share of the examples that lose a branch in the last block; it grows from 0 in the first.

    Raises `ValueError` if the patches do not fill the image in all stages, or the last stage has
    fewer of them than a window, which KerasHub 0.32 cannot do.
    """
    multiple = size.patch * 2 ** (len(size.depths) - 1)
    if image_size % multiple:
        raise ValueError(
            f"A Swin of {len(size.depths)} stages and patches of {size.patch} x {size.patch} "
            f"pixels needs images whose side is a multiple of {multiple}. Received: image_size="
            f"{image_size}"
        )
    last = image_size // multiple
    if last < size.window:
        raise ValueError(
            f"The last stage has {last} x {last} patches, fewer than a window of {size.window} x "
            f"{size.window}. Received: image_size={image_size}. Use images of at least "
            f"{size.window * multiple} pixels, smaller patches or smaller windows."
        )
    backbone = keras_hub.models.SwinTransformerBackbone(
        image_shape=(image_size, image_size, channels),
        embed_dim=size.width,
        depths=size.depths,
        num_heads=tuple(size.heads * 2**stage for stage in range(len(size.depths))),
        window_size=size.window,
        patch_size=size.patch,
        mlp_ratio=size.feed_forward / size.width,
        dropout_rate=dropout,
        drop_path=drop_path,
        name="backbone",
    )
    return keras_hub.models.SwinTransformerImageClassifier(
        backbone, num_classes=classes, head_dtype="float32", name="swin"
    )
