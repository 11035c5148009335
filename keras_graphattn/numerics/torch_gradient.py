"""Functions with a custom gradient on torch.

`in_place` is for those that have a second form, quicker on a CPU: it works on few numbers at a
time and overwrites them, so it cannot be differentiated. `by_kernel` is for those with a kernel
that can be differentiated once.
"""

from collections.abc import Callable

import torch
from torch.autograd import forward_ad
from torch.autograd.function import FunctionCtx

from keras_graphattn.checks import traced_by_torch
from keras_graphattn.numerics.precision import HIDDEN_LOGIT
from keras_graphattn.types import Num, Tensor

Tensors = tuple[Tensor, ...]
Gradients = tuple[Tensor | None, ...]
Value = Callable[..., tuple[Tensors, Tensors]]  # outputs, and results that the gradient needs
Gradient = Callable[[Tensors, Tensors, Tensors], Gradients]


def with_gradient(value: Value, gradient: Gradient, *tensors: Tensor) -> Tensors:
    """The outputs of `value(*tensors)`, with `gradient` for their gradient."""
    needs_none = not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors)
    if needs_none or torch.jit.is_tracing() or _in_forward_mode(tensors):  # ONNX has no gradient
        return value(*tensors)[0]
    outputs: Tensors = _WithGradient.apply(value, gradient, *tensors)
    return outputs


def in_place(
    plain: Callable[..., Tensors],
    value: Callable[..., tuple[Tensors, Tensors] | None],
    gradient: Gradient,
    *tensors: Tensor,
) -> Tensors:
    """`plain(*tensors)`, by `value` and `gradient` where the tensors are ordinary ones on a CPU.

    Args:
        plain: Differentiable function of the tensors that returns a tuple. It gives the outputs
            where `value` cannot, and all derivatives but the first.
        value: Callable of `keep` (whether a gradient will be taken) and of the tensors. Returns
            the outputs, and what the gradient needs; or `None` where `plain` must be taken.
        gradient: Callable of the tensors, of what `value` kept and of the gradients of the
            outputs. Returns one gradient, or `None`, for each tensor.
    """
    if not are_ordinary(tensors):
        return plain(*tensors)
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    with torch.no_grad():
        results = value(keep, *tensors)
    if results is None:
        return plain(*tensors)
    outputs, kept = results
    if keep:
        outputs = _InPlace.apply(plain, gradient, outputs, kept, *tensors)
    return outputs


def by_kernel(
    plain: Callable[..., Tensors], kernel: Callable[..., Tensors], *tensors: Tensor
) -> Tensors:
    """`plain(*tensors)`, by `kernel` where the tensors are ordinary ones of float32.

    Both are functions of the tensors that return a tuple. The first derivatives come from `kernel`,
    all others from `plain`.
    """
    first = tensors[0]
    if first.dtype != torch.float32 or not are_ordinary(tensors, first.device.type):
        return plain(*tensors)
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    given = [x.detach().requires_grad_(keep) for x in tensors]
    outputs = kernel(*given)
    if not keep:
        return outputs

    def gradient(_: Tensors, __: Tensors, upstream: Tensors) -> Gradients:
        slopes: Gradients = torch.autograd.grad(outputs, given, upstream, retain_graph=True)
        return slopes

    found = tuple(x.detach() for x in outputs)
    results: Tensors = _InPlace.apply(plain, gradient, found, (), *tensors)
    return results


def are_ordinary(tensors: Tensors, device: str = "cpu") -> bool:
    """Whether these are tensors of one float type on a device, not traced or transformed."""
    if traced_by_torch() or torch._C._are_functorch_transforms_active():
        return False
    kinds = (torch.Tensor, torch.nn.Parameter)
    ordinary = all(type(x) in kinds and x.numel() for x in tensors)
    dtypes = {x.dtype for x in tensors if x.is_floating_point()}
    return (
        ordinary
        and (dtypes == {torch.float32} or dtypes == {torch.float64})
        and all(x.device.type == device for x in tensors)
        and not _in_forward_mode(tensors)
    )


class _InPlace(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: FunctionCtx,
        plain: Callable[..., Tensors],
        gradient: Gradient,
        outputs: Tensors,
        kept: Tensors,
        *tensors: Tensor,
    ) -> Tensors:
        ctx.plain, ctx.gradient, ctx.count = plain, gradient, len(tensors)
        ctx.save_for_backward(*tensors, *kept)
        return outputs

    @staticmethod
    def backward(ctx: FunctionCtx, *upstream: Tensor) -> Gradients:
        saved = ctx.saved_tensors
        tensors, kept = saved[: ctx.count], saved[ctx.count :]
        if torch.is_grad_enabled():  # this gradient will be differentiated
            gradients = _gradients_of(ctx.plain, tensors, upstream)
        else:
            gradients = ctx.gradient(tensors, kept, upstream)
        return None, None, None, None, *gradients


def _gradients_of(
    plain: Callable[..., Tensors], tensors: Tensors, upstream: Tensors
) -> list[Tensor | None]:
    tensors = tuple(x.view_as(x) for x in tensors)  # one tensor may stand for two arguments
    places = [i for i, x in enumerate(tensors) if x.requires_grad]
    slopes = torch.autograd.grad(
        plain(*tensors),
        [tensors[i] for i in places],
        upstream,
        create_graph=True,
        allow_unused=True,
    )
    gradients: list[Tensor | None] = [None] * len(tensors)
    for i, slope in zip(places, slopes, strict=True):
        gradients[i] = slope
    return gradients


def _in_forward_mode(tensors: Tensors) -> bool:
    """Whether torch computes tangents: then it differentiates every step of `value`."""
    return any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)


class _WithGradient(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: FunctionCtx, value: Value, gradient: Gradient, *tensors: Tensor) -> Tensors:
        outputs, kept = value(*tensors)
        ctx.value, ctx.gradient, ctx.count = value, gradient, len(tensors)
        ctx.save_for_backward(*tensors, *kept)
        return outputs

    @staticmethod
    def backward(ctx: FunctionCtx, *upstream: Tensor) -> Gradients:
        saved = ctx.saved_tensors  # once: under rematerialisation they are computed for this
        tensors, kept = saved[: ctx.count], saved[ctx.count :]
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # this gradient will be differentiated, so the kept values must be a function of
            # the arguments
            _, kept = ctx.value(*tensors)
        return None, None, *ctx.gradient(tensors, kept, upstream)


def softmax_of(scores: Tensor, visible: Tensor | None) -> Tensor:
    """The softmax of scores in place, over what `visible`, 1 or 0 in their dtype, lets through."""
    if visible is None:
        return torch.softmax(scores, -1, out=scores)
    scores.mul_(visible).sub_(1.0 - visible, alpha=-HIDDEN_LOGIT)
    return torch.softmax(scores, -1, out=scores).mul_(visible)  # 0 in rows that see nothing


def heads_first(x: Num[Tensor, "B T N ..."]) -> Num[Tensor, "_ T ..."]:
    """(B, T, N, ...) -> (B N, T, ...)."""
    return x.transpose(1, 2).flatten(0, 1).contiguous()


def heads_last(x: Num[Tensor, "_ T ..."], batch: int) -> Num[Tensor, "_ T _ ..."]:
    """(B N, T, ...) -> (B, T, N, ...)."""
    return x.unflatten(0, (batch, -1)).transpose(1, 2)
