"""Functions with a gradient of their own on torch: see `own_gradient`."""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

Tensor = Any
Tensors = tuple[Tensor, ...]


def with_gradient(value: Callable[..., Any], gradient: Callable[..., Any], *tensors: Tensor) -> Any:
    """The outputs of `value(*tensors)`, with `gradient` for their gradient."""
    needs_none = not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors)
    if needs_none or _in_forward_mode(tensors):
        return value(*tensors)[0]
    return _WithGradient.apply(value, gradient, *tensors)


def _in_forward_mode(tensors: Tensors) -> bool:
    """Whether torch carries tangents along: it takes them through every step of `value` then."""
    return any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)


class _WithGradient(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, value: Any, gradient: Any, *tensors: Tensor) -> Tensors:
        outputs: Tensors
        outputs, kept = value(*tensors)
        ctx.value, ctx.gradient, ctx.count = value, gradient, len(tensors)
        ctx.save_for_backward(*tensors, *kept)
        return outputs

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: under rematerialisation they are computed for this
        tensors, kept = saved[: ctx.count], saved[ctx.count :]
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # this gradient will be differentiated: what was kept must be known as a function of
            # the arguments
            _, kept = ctx.value(*tensors)
        return None, None, *ctx.gradient(tensors, kept, upstream)
