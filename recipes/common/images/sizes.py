"""Published sizes of image models, with their parameters and costs.

Does not import Keras.
"""

from typing import NamedTuple


class Size(NamedTuple):
    """The size of an image model.

    Swin doubles its width, its heads and its feed-forward layers from stage to stage: the numbers
    here are those of the first stage.
    """

    model: str  # "deit", which is a ViT, "cait" or "swin"
    layers: int  # all blocks but CaiT's class layers
    width: int
    heads: int
    feed_forward: int
    parameters: float | None = None  # published, in millions, with 1000 classes
    multiply_adds: float | None = None  # published as FLOPs, in billions, for one image
    patch: int = 16  # side of a patch in pixels
    image: int = 224  # side of an image in pixels, as published
    depths: tuple[int, ...] = ()  # Swin: blocks of each stage
    window: int = 0  # Swin: side of a window in patches
    class_layers: int = 0  # CaiT: layers in which only the class token looks
    layer_scale: float = 0.0  # CaiT: start of LayerScale

    @property
    def key_dim(self) -> int:
        """The width of each head; the same in all stages of Swin."""
        return self.width // self.heads


def _deit(layers: int, heads: int, *published: float | None) -> Size:
    """arXiv 2012.12877, Table 1; the counts with more digits from timm's cards of these models."""
    width = 64 * heads
    return Size("deit", layers, width, heads, 4 * width, *published)


def _cait(layers: int, heads: int, *published: float) -> Size:
    """arXiv 2103.17239, Table 3; the start of LayerScale from its released code."""
    width, scale = 48 * heads, 1e-5 if layers <= 24 else 1e-6
    more = {"class_layers": 2, "layer_scale": scale}
    return Size("cait", layers, width, heads, 4 * width, *published, **more)


def _swin(width: int, third: int, *published: float) -> Size:
    """arXiv 2103.14030, Section 3.3 and Table 1; parameters with more digits from timm's cards."""
    depths, heads = (2, 2, third, 2), width // 32
    more = {"patch": 4, "depths": depths, "window": 7}
    return Size("swin", sum(depths), width, heads, 4 * width, *published, **more)


SIZES = {
    "deit-tiny": _deit(12, 3, 5.7, 1.3),
    "deit-small": _deit(12, 6, 22.1, 4.6),
    "deit-small-24": _deit(24, 6, 43.3, None),  # of arXiv 2312.04234
    "deit-base": _deit(12, 12, 86.6, 17.6),
    "cait-xxs24": _cait(24, 4, 12.0, 2.5),
    "cait-xxs36": _cait(36, 4, 17.3, 3.8),
    "cait-xs24": _cait(24, 6, 26.6, 5.4),
    "cait-s24": _cait(24, 8, 46.9, 9.4),
    "cait-s36": _cait(36, 8, 68.2, 13.9),
    "swin-tiny": _swin(96, 6, 28.3, 4.5),
    "swin-small": _swin(96, 18, 49.6, 8.7),
    "swin-base": _swin(128, 18, 87.8, 15.4),
}
