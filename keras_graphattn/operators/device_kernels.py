"""Whether operators run on Pallas kernels of jax: only if asked for, on a TPU."""

from typing import NamedTuple

import keras

from keras_graphattn.checks import flag


class Kernels(NamedTuple):
    """How the kernels run: step by step, as in tests on a CPU, or compiled."""

    interpret: bool = False


_chosen: Kernels | None = None


def use_kernels(use: bool = True) -> None:
    """Lets operators run on Pallas kernels from now on, or no longer.

    There is a kernel for kernel attention under `Causal`, `Exponential(causal=True)` and
    `GatedDecay` masks, for lengths that are known and beyond 64 tokens. Another one is for two
    products in a row with softmax attention in blocks, as GFSA has them, for known lengths beyond
    one block, heads of at most 128 channels, and neither biases nor windows. Both compute in
    float32. All other calls stay as they are, and so do calls under a `keras.distribution`, because
    XLA cannot split a kernel over devices. Call this before a model is compiled.

    Step by step on a CPU, the kernels give the values and gradients of the portable form. No TPU
    has run them yet, and nobody has measured that they are faster, so they are off by default.

    Args:
        use: Whether to use them.

    Raises:
        ValueError: If the backend is not JAX, or JAX has no TPU.

    Example:

    >>> use_kernels(False)
    """
    global _chosen
    if flag("use", use) and (platform := _platform()) != "tpu":
        raise ValueError(
            "`use_kernels` needs JAX with a TPU: the Pallas kernels run only there. Received: "
            f"{platform}. Leave the call out: the portable form gives equal results."
        )
    _chosen = Kernels() if use else None


def chosen_kernels() -> Kernels | None:
    """The kernels to run on, or `None` for the portable form."""
    return _chosen if keras.distribution.distribution() is None else None


def _platform() -> str:
    if keras.backend.backend() != "jax":
        return f"the backend {keras.backend.backend()}"
    import jax

    platform: str = jax.default_backend()
    return platform if platform == "tpu" else f"jax on {platform}"
