"""Softmax of scores plus a bias with torch on a CPU, without weights that slow the CPU down.

Under a bias that grows with the distance, the weights of far tokens are subnormal numbers, and a
CPU multiplies these many times as slowly as others. TensorFlow and jax round them to 0 by
themselves. Here, in heads whose bias has a wide range, weights below 1e-30 become 0, so that
products with small gradients stay normal numbers too: their sum is far below the rounding of a row,
whose weights sum to 1.
"""

from functools import partial

import torch

from keras_graphattn.numerics.precision import hidden_logit, masked_softmax
from keras_graphattn.numerics.torch_gradient import Gradients, Tensors, in_place
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

    With `overwrite`, the weights may take the memory of the scores if no gradient is recorded.
    """
    masks = [] if visible is None else [visible]
    (weights,) = in_place(_plain, partial(_value, overwrite), _gradient, scores, bias, *masks)
    return weights


def _plain(scores: Tensor, bias: Tensor, *masks: Tensor) -> Tensors:
    return (masked_softmax(scores + bias, *masks),)


def _value(
    overwrite: bool, keep: bool, scores: Tensor, bias: Tensor, *masks: Tensor
) -> tuple[Tensors, Tensors]:
    out = scores.add_(bias) if overwrite and not keep else scores + bias
    for visible in masks:
        out.masked_fill_(~visible, hidden_logit())
    out = torch.softmax(out, -1, out=out)
    ranges = bias.amax((0, 2, 3)) - bias.amin((0, 2, 3))  # of each head, or of all
    for head, size in enumerate(ranges.tolist()):
        if not size < _NARROW:  # NaN too
            weights = out if len(ranges) == 1 else out[:, head]
            torch.nn.functional.threshold_(weights, _SMALLEST, 0.0)
    for visible in masks:  # a row that sees nothing is 0, not an average
        out.mul_(visible)
    return (out,), (out,) if keep else ()


def _gradient(tensors: Tensors, kept: Tensors, upstream: Tensors) -> Gradients:
    scores, bias, *masks = tensors
    slopes = torch._softmax_backward_data(upstream[0], kept[0], -1, scores.dtype)
    of_bias = slopes.sum_to_size(bias.shape) if bias.requires_grad else None
    return slopes, of_bias, *(None for _ in masks)
