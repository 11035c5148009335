"""Functions of tensors with a custom gradient: correct at any order, compiled once on jax.

A custom gradient often needs results of the forward pass. TensorFlow and jax know how these depend
on the arguments. torch does not: there, a second derivative would treat them as constants and be
wrong without an error. So on torch, a gradient that will itself be differentiated computes them
again from the arguments. Nothing else is computed twice.

On jax each `FunctionWithGradient` is compiled once for each set of shapes. Make it once and keep
it: a new one for each call would be compiled at each call.

Forward mode (`jax.jvp`, `torch.func.jvp`, `tf.autodiff.ForwardAccumulator`) is correct on
tensorflow and torch. jax refuses it with a `TypeError`; its `jvp` of a gradient is correct.
"""

import functools
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import keras
from keras import ops

from keras_graphattn.checks import traced_by_torch
from keras_graphattn.types import Tensor

Result = TypeVar("Result")
Tensors = tuple[Tensor, ...]
Value = Callable[..., tuple[Tensors, Tensors]]  # outputs, and results that the gradient needs
Gradient = Callable[[Tensors, Tensors, Tensors], tuple[Tensor | None, ...]]


def compiled_once(
    function: Callable[..., Result], *settings: Hashable, keep: bool = True
) -> Callable[..., Result]:
    """`function(*settings, ...)` as a function of tensors; on jax, equal settings compile once.

    Without it, jax compiles loops over closures at each call that it does not trace. The function
    and its settings are kept, so the function must be defined at module level; `keep` is `False`
    for settings with a layer.
    """
    if keras.backend.backend() != "jax" or not keep:
        return lambda *tensors: function(*settings, *tensors)
    return _compiled(function, settings)


@functools.lru_cache(maxsize=256)
def _compiled(
    function: Callable[..., Result], settings: tuple[Hashable, ...]
) -> Callable[..., Result]:
    import jax

    compiled: Callable[..., Result] = jax.jit(functools.partial(function, *settings))
    return compiled


def kept_with(owner: object, make: Callable[..., Any], *settings: Hashable) -> Any:
    """The result of the first `make(owner, *settings)`, kept as long as `owner` lives.

    Results that torch makes while it traces are not kept.
    """
    kept = owner.__dict__.get("_kept", {})
    if (make, *settings) in kept:
        return kept[make, *settings]
    result = make(owner, *settings)
    if not traced_by_torch():
        owner.__dict__["_kept"] = {**kept, (make, *settings): result}
    return result


class FunctionWithGradient:
    """A function of tensors whose gradient is another function.

    Args:
        value: Callable of the tensors. Returns a tuple of outputs, and a tuple of results of the
            forward pass that the gradient needs. It must be differentiable and must not capture a
            tensor that needs a gradient.
        gradient: Callable of the tensors (a tuple), of the results that `value` returned for it,
            and of the gradients of the outputs (a tuple). Returns a tuple with one gradient for
            each tensor, `None` for a tensor without a gradient, such as a mask. It must be
            differentiable too.

    """

    def __init__(self, value: Value, gradient: Gradient) -> None:
        self.value, self.gradient = value, gradient
        makers = {"jax": _on_jax, "tensorflow": _on_tensorflow, "torch": _on_torch}
        self._run = makers[keras.backend.backend()](self)

    def __call__(self, *tensors: Tensor) -> Tensors:
        outputs: Tensors = self._run(*(ops.convert_to_tensor(tensor) for tensor in tensors))
        return outputs

    def __getstate__(self) -> dict[str, Callable[..., tuple[Tensor, ...]]]:
        return {"value": self.value, "gradient": self.gradient}  # without compiled functions

    def __setstate__(self, state: dict[str, Callable[..., tuple[Tensor, ...]]]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def _on_jax(function: FunctionWithGradient) -> Callable[..., Tensors]:
    import jax

    run = jax.custom_vjp(lambda *tensors: function.value(*tensors)[0])

    def forward(*tensors: Tensor) -> tuple[Tensors, tuple[Tensors, Tensors]]:
        outputs, kept = function.value(*tensors)
        return outputs, (tensors, kept)

    def backward(saved: tuple[Tensors, Tensors], upstream: Tensors) -> tuple[Tensor | None, ...]:
        return function.gradient(*saved, upstream)

    run.defvjp(forward, backward)
    compiled: Callable[..., Tensors] = jax.jit(run)
    return compiled


def _on_tensorflow(function: FunctionWithGradient) -> Callable[..., Tensors]:
    @ops.custom_gradient  # type: ignore[untyped-decorator]
    def run(*tensors: Tensor) -> tuple[Tensors, Callable[..., tuple[Tensor | None, ...]]]:
        outputs, kept = function.value(*tensors)

        def gradient(*upstream: Tensor) -> tuple[Tensor | None, ...]:
            return function.gradient(tensors, kept, upstream)

        return outputs, gradient

    def as_tuple(*tensors: Tensor) -> Tensors:
        outputs = run(*tensors)
        return tuple(outputs) if isinstance(outputs, (list, tuple)) else (outputs,)

    return as_tuple


def _on_torch(function: FunctionWithGradient) -> Callable[..., Tensors]:
    from keras_graphattn.numerics.torch_gradient import with_gradient

    return lambda *tensors: with_gradient(function.value, function.gradient, *tensors)
