"""Whether operators run on kernels: only if asked for, on a TPU (jax) or a GPU (torch)."""

from importlib.util import find_spec
from typing import NamedTuple

import keras

from keras_graphattn.checks import flag


class Kernels(NamedTuple):
    """How the kernels run: step by step, as in tests on a CPU, or compiled."""

    interpret: bool = False


_chosen: Kernels | None = None


def use_kernels(use: bool = True) -> None:
    """Lets operators run on kernels from now on, or no longer.

    There is a kernel for kernel attention under `Causal`, `Exponential(causal=True)` and
    `GatedDecay` masks, for lengths that are known and beyond 64 tokens. JAX on a TPU runs it in
    Pallas, torch on a GPU in Triton. JAX has another one for two products in a row with softmax
    attention in blocks, as GFSA has them, for known lengths beyond one block, heads of at most 128
    channels, and neither biases nor windows. torch has another one for `GatedDeltaRule`, for known
    lengths beyond 32 tokens and keys of at most 256 channels. All other calls stay as they are. So
    do calls under a `keras.distribution`, because XLA cannot split a kernel over devices, and calls
    that `torch.compile` compiles. Call this before a model is compiled.

    All compute in float32. The Triton kernels are those of flash-linear-attention, which the extra
    `triton` of this package installs. Triton rounds the factors of a product to TF32,
    unless the environment has `TRITON_F32_DEFAULT=ieee`.

    Step by step on a CPU, the kernels give the values and gradients of the portable form. No device
    has run them yet, and nobody has measured that they are faster, so they are off by default.

    Args:
        use: Whether to use them.

    Raises:
        ValueError: If the backend is neither JAX with a TPU nor torch with a CUDA device and
            flash-linear-attention.

    Example:

    >>> use_kernels(False)
    """
    global _chosen
    if flag("use", use) and (platform := _platform()) not in ("tpu", "cuda"):
        raise ValueError(
            "`use_kernels` needs JAX with a TPU, or torch with a CUDA device and the extra "
            f"`triton`: the kernels run only there. Received: {platform}. Leave the call out: the "
            "portable form gives equal results."
        )
    _chosen = Kernels() if use else None


def chosen_kernels() -> Kernels | None:
    """The kernels to run on, or `None` for the portable form."""
    return _chosen if keras.distribution.distribution() is None else None


def _platform() -> str:
    backend: str = keras.backend.backend()
    if backend == "jax":
        import jax

        platform: str = jax.default_backend()
        return platform if platform == "tpu" else f"jax on {platform}"
    if backend == "torch":
        import torch

        if not torch.cuda.is_available():
            return "torch without a CUDA device"
        return "cuda" if find_spec("fla") else "torch without the module `fla`"
    return f"the backend {backend}"
