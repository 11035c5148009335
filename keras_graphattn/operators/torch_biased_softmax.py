"""Softmax of scores plus a bias with torch on a CPU, without weights that slow the CPU down.

Under a bias that grows with the distance, the weights of far tokens are subnormal numbers, and a
CPU multiplies these many times as slowly as others. TensorFlow and jax round them to 0 by
themselves. Here, in heads whose bias has a wide range, weights below 1e-30 become 0, so that
products with small gradients stay normal numbers too: their sum is far below the rounding of a row,
whose weights sum to 1.
"""

import torch
from torch.autograd.function import FunctionCtx

from keras_graphattn.numerics import torch_gradient
from keras_graphattn.numerics.precision import HIDDEN_LOGIT, masked_softmax
from keras_graphattn.types import Bool, Float, Tensor

_SMALLEST = 1e-30
_NARROW = 20.0  # a bias of a smaller range makes no weight so small by itself


def biased_softmax(
    scores: Float[Tensor, "B N T S"],
    bias: Float[Tensor, "B? N? T? S"],
    visible: Bool[Tensor, "B? N? T? S?"] | None = None,
    overwrite: bool = False,
) -> Float[Tensor, "B N T S"]:
    """`masked_softmax(scores + bias, visible)`.

    With `overwrite`, the weights may take the memory of the scores.
    """
    masks = [] if visible is None else [visible]
    if not torch_gradient.are_ordinary((scores, bias, *masks)):
        return masked_softmax(scores + bias, *masks)
    overwrite = overwrite and not (scores.is_leaf and scores.requires_grad)
    return _BiasedSoftmax.apply(overwrite, scores, bias, *masks)


class _BiasedSoftmax(torch.autograd.Function):  # type: ignore[misc]
    """Keeps the weights only: the gradient, and that of the gradient, are functions of them."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, overwrite: bool, scores: Tensor, bias: Tensor, *masks: Tensor
    ) -> Tensor:
        if overwrite:
            ctx.mark_dirty(scores)
        out = scores.add_(bias) if overwrite else scores + bias
        for visible in masks:
            out.masked_fill_(~visible, HIDDEN_LOGIT)
        torch.softmax(out, -1, out=out)
        ranges = bias.amax((0, 2, 3)) - bias.amin((0, 2, 3))  # of each head, or of all
        for head, size in enumerate(ranges.tolist()):
            if not size < _NARROW:  # NaN too
                weights = out if len(ranges) == 1 else out[:, head]
                torch.nn.functional.threshold_(weights, _SMALLEST, 0.0)
        for visible in masks:  # a row that sees nothing is 0, not an average
            out.mul_(visible)
        ctx.save_for_backward(out)
        ctx.shape, ctx.masks = bias.shape, len(masks)
        return out

    @staticmethod
    def backward(ctx: FunctionCtx, upstream: Tensor) -> torch_gradient.Gradients:
        (weights,) = ctx.saved_tensors
        slopes = torch._softmax_backward_data(upstream, weights, -1, weights.dtype)
        of_bias = slopes.sum_to_size(ctx.shape) if ctx.needs_input_grad[2] else None
        return None, slopes, of_bias, *[None] * ctx.masks
