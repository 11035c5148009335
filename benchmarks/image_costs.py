"""Parameters and multiply-adds of image models, by formula.

Papers call multiply-adds of matrix products and convolutions FLOPs, for one image; so do these
formulas. What works entry by entry (normalisation, softmax, coefficients) is not counted.
Imports no Keras.
"""

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # programs in this folder find `recipes` only after `measure`
    from recipes.common.images.sizes import Size

ORDER = 4  # of AGF's polynomial
ATTENTIONS = ("softmax", "gfsa", "p_laplacian", "agf", "performer", "topological")


class Cost(NamedTuple):
    """What a part of a model costs."""

    parameters: int = 0
    multiply_adds: int = 0  # for one image

    def times(self, count: int) -> "Cost":
        return Cost(count * self.parameters, count * self.multiply_adds)

    def plus(self, *others: "Cost") -> "Cost":
        costs = (self, *others)
        return Cost(sum(c.parameters for c in costs), sum(c.multiply_adds for c in costs))


def attention_cost(
    attention: str,
    tokens: int,
    width: int,
    heads: int,
    *,
    grid: tuple[int, int] = (0, 0),
    talking: bool = False,
) -> Cost:
    """One attention layer: its projections with their biases, and the work on all tokens.

    `grid` is for `topological`: patches down and across; the other tokens come before them.
    `talking` is for softmax and gfsa: the heads are mixed, as in CaiT.
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
        return projection.times(5).plus(Cost(ORDER, 2 * tokens * width * size))
    with_normaliser = size + 1
    if attention == "performer":  # as many features as a head is wide
        return projection.times(4).plus(Cost(0, 2 * tokens * width * with_normaliser))
    if attention == "topological":  # the matrix in blocks of rows, faster than FFTs on small grids
        offsets = math.prod(2 * side - 1 for side in grid)
        both = tokens * tokens * heads * (size + with_normaliser)
        return projection.times(4).plus(Cost(heads * offsets, both))
    raise ValueError(f"`attention` must be one of {ATTENTIONS}. Received: attention={attention!r}")


def model_cost(
    size: "Size",
    attention: str = "softmax",
    *,
    image: int | None = None,
    channels: int = 3,
    classes: int = 1000,
) -> Cost:
    """The cost of a model, for images as large as published by default.

    The attention is that of all blocks but CaiT's class layers. CaiT's heads talk with softmax and
    gfsa. Swin has softmax, gfsa and p_laplacian.
    """
    side, width = (image or size.image) // size.patch, size.width
    tokens = side * side
    patches = _dense(tokens, size.patch**2 * channels, width)
    if size.model == "swin":
        return patches.plus(_swin(size, attention, side, classes))
    if size.model == "deit":  # the class token goes through all blocks
        tokens += 1
    learned = Cost(width + tokens * width)  # the class token, and positions
    talking = size.model == "cait" and attention in ("softmax", "gfsa")
    attend = attention_cost(
        attention, tokens, width, size.heads, grid=(side, side), talking=talking
    )
    blocks = attend.plus(_feed_forward(tokens, width, size.feed_forward)).times(size.layers)
    norms = 2 * size.layers + 1
    class_layers = Cost()
    if size.model == "cait":
        one_token = _feed_forward(1, width, size.feed_forward)
        attend = _class_attention(tokens + 1, width)
        norms += 2 * size.class_layers
        scales = Cost((norms - 1) * width)
        class_layers = attend.plus(one_token).times(size.class_layers).plus(scales)
    ends = (Cost(norms * 2 * width), _dense(1, width, classes))
    return patches.plus(learned, blocks, class_layers, *ends)


def _dense(tokens: int, inputs: int, outputs: int, *, bias: bool = True) -> Cost:
    return Cost(inputs * outputs + bias * outputs, tokens * inputs * outputs)


def _feed_forward(tokens: int, width: int, hidden: int) -> Cost:
    return _dense(tokens, width, hidden).plus(_dense(tokens, hidden, width))


def _class_attention(tokens: int, width: int) -> Cost:
    """One query, the class token; keys and values of all tokens."""
    one, all_tokens = _dense(1, width, width), _dense(tokens, width, width)
    return one.times(2).plus(all_tokens.times(2), Cost(0, 2 * tokens * width))


def _swin(size: "Size", attention: str, side: int, classes: int) -> Cost:
    """Swin after its patches: blocks in windows, and between stages 2 x 2 patches become one."""
    if attention not in ("softmax", "gfsa", "p_laplacian"):
        raise ValueError(
            "Swin has softmax, gfsa and p_laplacian, whose scores take its biases. Received: "
            f"attention={attention!r}"
        )
    norms, width = size.width, size.width  # of the patches
    cost = Cost()
    for stage, depth in enumerate(size.depths):
        width, heads = size.width * 2**stage, size.heads * 2**stage
        windows = math.ceil(side / size.window) ** 2  # those at the border are filled with zeros
        attend = attention_cost(attention, size.window**2, width, heads)
        attend = Cost(attend.parameters, windows * attend.multiply_adds)
        biases = Cost((2 * size.window - 1) ** 2 * heads)  # of relative positions
        feed_forward = _feed_forward(side * side, width, size.feed_forward * 2**stage)
        cost = cost.plus(attend.plus(biases, feed_forward).times(depth))
        norms += 2 * depth * width
        if stage + 1 < len(size.depths):
            side = math.ceil(side / 2)
            cost = cost.plus(_dense(side * side, 4 * width, 2 * width, bias=False))
            norms += 4 * width
    return cost.plus(Cost(2 * (norms + width)), _dense(1, width, classes))
