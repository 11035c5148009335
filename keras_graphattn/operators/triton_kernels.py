"""Triton kernels of flash-linear-attention for two operators, for torch on a GPU.

They have one kernel for the whole of a chunk, where the portable forms have one for each product.
Their exponents are differences of sums over a chunk. So a decay of less than exp(-60) counts as
exp(-60): a smaller one would take the digits of the other decays of its chunk, and 1e15 times
exp(-60) is 1e-11.

Source: Yang and Zhang, "FLA: A Triton-Based Library for Hardware-Efficient Implementations of
Linear Attention Mechanism", https://github.com/fla-org/flash-linear-attention.
"""

from collections.abc import Callable

import torch
from fla.ops.gated_delta_rule import chunk_gated_delta_rule
from fla.ops.simple_gla import chunk_simple_gla

from keras_graphattn.numerics.torch_gradient import by_kernel
from keras_graphattn.types import Float, Tensor

SMALLEST = -60.0  # the logarithm of a decay
WIDEST = 256  # channels of a key that `delta_rule` takes

Tensors = tuple[Tensor, ...]


def decayed_attention(
    portable: Callable[..., Tensor],
    query: Float[Tensor, "B T N m"],
    key: Float[Tensor, "B T N m"],
    x: Float[Tensor, "B T N D"],
    log_gates: Float[Tensor, "B T N"],
) -> Float[Tensor, "B T N D"]:
    """out_i = sum_(j <= i) exp(g_(j+1) + ... + g_i) (q_i . k_j) x_j, for gates g of at most 0.

    Args:
        portable: The same function of the four tensors, which can be differentiated again.
        query: Features of the queries, (B, T, N, m).
        key: Features of the keys, (B, T, N, m).
        x: Signal of shape (B, T, N, D).
        log_gates: Logarithms of the gates, (B, T, N), at most 0.

    Returns:
        A tensor of shape (B, T, N, D).
    """

    def kernel(query: Tensor, key: Tensor, x: Tensor, log_gates: Tensor) -> Tensors:
        gates = torch.clamp(log_gates, min=SMALLEST)
        return chunk_simple_gla(query, key, x, g=gates, scale=1.0)[:1]  # type: ignore[no-any-return]

    tensors = query, key, x, log_gates
    return by_kernel(lambda *given: (portable(*given),), kernel, *tensors)[0]


def delta_rule(
    portable: Callable[..., Tensors],
    query: Float[Tensor, "B T N H"],
    key: Float[Tensor, "B T N H"],
    x: Float[Tensor, "B T N D"],
    log_decay: Float[Tensor, "B T N"],
    strength: Float[Tensor, "B T N"],
    state: Float[Tensor, "B N H D"],
) -> Tensors:
    """The outputs of the gated delta rule, (B, T, N, D), and the state after the last token.

    Args:
        portable: The same function of the six tensors, which can be differentiated again.
        query: Queries, (B, T, N, H).
        key: Keys, (B, T, N, H), of at most length 1.
        x: Signal of shape (B, T, N, D).
        log_decay: Logarithms of the decays, (B, T, N), at most 0.
        strength: Strengths of the writes, (B, T, N), from 0 to 1.
        state: The state before the first token, (B, N, H, D).
    """

    def kernel(
        query: Tensor, key: Tensor, x: Tensor, log_decay: Tensor, strength: Tensor, state: Tensor
    ) -> Tensors:
        decay = torch.clamp(log_decay, min=SMALLEST)
        options = {"scale": 1.0, "initial_state": state, "output_final_state": True}
        found: Tensors = chunk_gated_delta_rule(query, key, x, decay, strength, **options)
        return found

    return by_kernel(portable, kernel, query, key, x, log_decay, strength, state)
