"""Parameters and multiply-adds of image models, by formula, part by part.

Papers call multiply-adds of matrix products and convolutions FLOPs, for one image; so do these
formulas. What works entry by entry (normalisation, softmax, coefficients) is not counted.
Imports no Keras.
"""

import math
from typing import NamedTuple

from recipes.common.images.sizes import Size

ORDER = 4  # of AGF's polynomial
ATTENTIONS = ("softmax", "gfsa", "p_laplacian", "agf", "performer", "topological")


class Cost(NamedTuple):
    """What a part of a model costs."""

    parameters: int = 0
    multiply_adds: int = 0  # for one image

    def times(self, count: int) -> "Cost":
        """The cost of several such parts."""
        return Cost(count * self.parameters, count * self.multiply_adds)

    def plus(self, *others: "Cost") -> "Cost":
        """The cost of parts together."""
        costs = (self, *others)
        return Cost(sum(c.parameters for c in costs), sum(c.multiply_adds for c in costs))


def total(parts: dict[str, Cost]) -> Cost:
    """The cost of all parts together."""
    return Cost().plus(*parts.values())


def attention_cost(
    attention: str,
    tokens: int,
    width: int,
    heads: int,
    *,
    grid: tuple[int, int] | None = None,
    talking: bool = False,
    order: int = ORDER,
) -> Cost:
    """One attention layer: its projections with their biases, and the work on all tokens.

    `grid` is for `topological`: patches down and across; the other tokens come before them.
    `talking` is for softmax and gfsa: the heads are mixed, as in CaiT. `order` is that of `agf`.
    """
    size = width // heads
    projection = _dense(tokens, width, width)
    pairs = tokens * tokens * width  # scores of all pairs of tokens, or A V
    mixes = _dense(tokens * tokens, heads, heads).times(2) if talking else Cost()
    plain = projection.times(4).plus(Cost(0, 2 * pairs), mixes)
    if attention == "softmax":
        return plain
    if attention == "gfsa":  # w_0, w_1 and w_K of each head; A (A V)
        return plain.plus(Cost(3 * heads, pairs))
    if attention == "p_laplacian":  # distances of values: products, and squares of either value
        return plain.plus(Cost(0, tokens * tokens * heads * (size + 2)))
    if attention == "agf":  # U, V, S, values, output; V^T values, and U times it
        return projection.times(5).plus(Cost(order, 2 * tokens * width * size))
    with_normaliser = size + 1
    if attention == "performer":  # as many features as a head is wide
        return projection.times(4).plus(Cost(0, 2 * tokens * width * with_normaliser))
    if attention == "topological":  # the matrix in blocks of rows, faster than FFTs on small grids
        offsets = math.prod(2 * side - 1 for side in grid or ())
        both = tokens * tokens * heads * (size + with_normaliser)
        return projection.times(4).plus(Cost(heads * offsets, both))
    raise ValueError(f"`attention` must be one of {ATTENTIONS}. Received: attention={attention!r}")


def costs(
    size: Size,
    attention: str = "softmax",
    *,
    image: int | None = None,
    channels: int = 3,
    classes: int = 1000,
) -> dict[str, Cost]:
    """The cost of a model by class of layer, for images as large as published by default.

    The attention is that of all blocks but CaiT's class layers. CaiT's heads talk with softmax and
    gfsa. Swin has softmax, gfsa and p_laplacian.
    """
    image = image or size.image
    side = image // size.patch
    patches = {"patches": _dense(side * side, size.patch**2 * channels, size.width)}
    if size.model == "swin":
        return {**patches, **_swin(size, attention, side, classes)}
    parts = {**patches, "class token": Cost(size.width)}
    tokens = side * side
    if size.model == "deit":  # the class token goes through all blocks
        tokens += 1
    parts["positions"] = Cost(tokens * size.width)
    layer = attention_cost(
        attention,
        tokens,
        size.width,
        size.heads,
        grid=(side, side),
        talking=size.model == "cait" and attention in ("softmax", "gfsa"),
    )
    parts["attention"] = layer.times(size.layers)
    parts["feed-forward"] = _feed_forward(tokens, size.width, size.feed_forward).times(size.layers)
    norms = 2 * size.layers + 1
    if size.model == "cait":
        parts["class attention"] = _class_attention(tokens + 1, size.width).times(size.class_layers)
        one_token = _feed_forward(1, size.width, size.feed_forward)
        parts["class feed-forward"] = one_token.times(size.class_layers)
        norms += 2 * size.class_layers
        parts["LayerScale"] = Cost((norms - 1) * size.width)
    parts["normalisation"] = Cost(norms * 2 * size.width)
    return {**parts, "logits": _dense(1, size.width, classes)}


def _dense(tokens: int, inputs: int, outputs: int, *, bias: bool = True) -> Cost:
    return Cost(inputs * outputs + bias * outputs, tokens * inputs * outputs)


def _feed_forward(tokens: int, width: int, hidden: int) -> Cost:
    return _dense(tokens, width, hidden).plus(_dense(tokens, hidden, width))


def _class_attention(tokens: int, width: int) -> Cost:
    """One query, the class token; keys and values of all tokens."""
    one, all_tokens = _dense(1, width, width), _dense(tokens, width, width)
    return one.times(2).plus(all_tokens.times(2), Cost(0, 2 * tokens * width))


def _swin(size: Size, attention: str, side: int, classes: int) -> dict[str, Cost]:
    """Swin after its patches: blocks in windows, and between stages 2 x 2 patches become one."""
    if attention not in ("softmax", "gfsa", "p_laplacian"):
        raise ValueError(
            "Swin has softmax, gfsa and p_laplacian, whose scores take its biases. Received: "
            f"attention={attention!r}"
        )
    names = ("attention", "relative positions", "feed-forward", "merging")
    parts = dict.fromkeys(names, Cost())
    norms, width = size.width, size.width  # of the patches
    for stage, depth in enumerate(size.depths):
        width, heads = size.width * 2**stage, size.heads * 2**stage
        window = size.window
        windows = math.ceil(side / window) ** 2  # those at the border are filled with zeros
        layer = attention_cost(attention, window**2, width, heads)
        layer = Cost(layer.parameters, windows * layer.multiply_adds)
        feed_forward = _feed_forward(side * side, width, size.feed_forward * 2**stage)
        parts["attention"] = parts["attention"].plus(layer.times(depth))
        table = Cost((2 * window - 1) ** 2 * heads).times(depth)
        parts["relative positions"] = parts["relative positions"].plus(table)
        parts["feed-forward"] = parts["feed-forward"].plus(feed_forward.times(depth))
        norms += 2 * depth * width
        if stage + 1 < len(size.depths):
            side = math.ceil(side / 2)
            merging = _dense(side * side, 4 * width, 2 * width, bias=False)
            parts["merging"] = parts["merging"].plus(merging)
            norms += 4 * width
    norms += width
    return {**parts, "normalisation": Cost(2 * norms), "logits": _dense(1, width, classes)}
