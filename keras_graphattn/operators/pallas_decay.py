"""Causal kernel attention under a decay as one Pallas kernel, for jax on a TPU.

    out_i = sum_(j <= i) exp(g_(j+1) + ... + g_i) (q_i . k_j) x_j

The chunks of a head run in order, and share the sum over all earlier chunks, (m, D), in fast
memory. The portable form of `keras_graphattn.masks.chunked` writes each sum to the device's memory;
this never does. All sums of gates are sums of numbers that are at most 0, never differences, so
nothing cancels.

The gradients are three calls of the same kernel. Those for keys and signal run from the last token
to the first. Forward mode is refused, also of a gradient.

Source: the chunks of Yang et al., "Gated Linear Attention Transformers", arXiv 2312.06635, Section
4, with one gate for each head and token. Ours: the sums of gates, and the gradients by the kernel.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu

from keras_graphattn.types import Float, Tensor

CHUNK = 64  # tokens in a chunk
NARROWEST = 16  # of the matrices that are multiplied
SMALLEST = -110.0  # exp of it is 0 in float32; sums of less would lose digits

Tensors = tuple[Tensor, ...]


def decayed_attention(
    query: Float[Tensor, "B T N m"],
    key: Float[Tensor, "B T N m"],
    x: Float[Tensor, "B T N D"],
    log_gates: Float[Tensor, "B T N"],
    *,
    interpret: bool = False,
) -> Float[Tensor, "B T N D"]:
    """The formula above for float32 tensors, and gates g of at most 0.

    Args:
        query: Features of the queries, (B, T, N, m).
        key: Features of the keys, (B, T, N, m).
        x: Signal of shape (B, T, N, D).
        log_gates: Logarithms of the gates, (B, T, N), at most 0.
        interpret: Whether to run the kernel step by step on any device, for tests.

    Returns:
        A tensor of shape (B, T, N, D).
    """
    tensors = (query, key, x, jnp.maximum(log_gates, SMALLEST)[..., None])
    outputs = _function(interpret)(*map(heads_apart, tensors))
    return heads_together(outputs, len(query))


@functools.lru_cache(maxsize=8)
def _function(interpret: bool) -> Callable[..., Tensor]:
    run = functools.partial(_run, interpret=interpret)
    attend: Any = jax.custom_vjp(run)

    def forward(*tensors: Tensor) -> tuple[Tensor, Tensors]:
        return attend(*tensors), tensors  # not `run`: this is differentiated a second time

    attend.defvjp(forward, lambda tensors, upstream: _gradient(attend, tensors, upstream))
    compiled: Callable[..., Tensor] = jax.jit(attend)
    return compiled


def _gradient(attend: Callable[..., Tensor], tensors: Tensors, upstream: Tensor) -> Tensors:
    """The gradients for query, key, x and gates, each (B N, T, _).

    M[i, j] = exp(L_i - L_j) with the sums L of gates. So the gradient for L_i is that of row i less
    that of column i, and the gate g_l is in all L_i with i >= l.
    """
    query, key, x, gates = tensors
    to_query = attend(upstream, x, key, gates)
    # Column j of A has the rows i >= j. In reversed order this is causal again, and each token has
    # the gate of the token before it.
    reverse = functools.partial(jnp.flip, axis=1)
    shifted = jnp.pad(reverse(gates)[:, :-1], ((0, 0), (1, 0), (0, 0)))
    to_key = attend(reverse(x), reverse(upstream), reverse(query), shifted)
    to_x = attend(reverse(key), reverse(query), reverse(upstream), shifted)
    to_key, to_x = reverse(to_key), reverse(to_x)
    of_sums = jnp.sum(query * to_query, -1) - jnp.sum(key * to_key, -1)
    to_gates = reverse(jnp.cumsum(reverse(of_sums), axis=1))[..., None]
    return to_query, to_key, to_x, to_gates


def _run(
    query: Float[Tensor, "G T m"],
    key: Float[Tensor, "G T m"],
    x: Float[Tensor, "G T D"],
    gates: Float[Tensor, "G T 1"],
    *,
    interpret: bool,
) -> Float[Tensor, "G T D"]:
    """The kernel on whole chunks, with channels filled up with zeros to powers of two."""
    length, width = x.shape[1:]
    rows = -length % CHUNK
    tensors = [filled(tensor, rows) for tensor in (query, key, x)]
    gates = jnp.pad(gates, ((0, 0), (0, rows), (0, 0)))
    in_chunks = gates.reshape(gates.shape[0], -1, CHUNK)
    up_to = jnp.cumsum(in_chunks, axis=-1)
    from_here = jnp.flip(jnp.cumsum(jnp.flip(in_chunks, -1), axis=-1), -1)
    behind = jnp.pad(from_here[..., 1:], ((0, 0), (0, 0), (0, 1)))
    tensors += [gates, up_to.reshape(gates.shape), behind.reshape(gates.shape)]
    return _in_chunks(tensors, interpret)[:, :length, :width]


def heads_apart(x: Float[Tensor, "B T N _"]) -> Float[Tensor, "_ T _"]:
    """The tokens of each head of each example, (B N, T, _)."""
    batch, length, heads, _ = x.shape
    return jnp.swapaxes(x, 1, 2).reshape(batch * heads, length, -1)


def heads_together(x: Float[Tensor, "_ T _"], batch: int) -> Float[Tensor, "B T N _"]:
    """The inverse of `heads_apart`."""
    return jnp.swapaxes(x.reshape(batch, -1, *x.shape[1:]), 1, 2)


def filled(x: Float[Tensor, "G T _"], rows: int) -> Float[Tensor, "G _ _"]:
    """The tensor with more rows of zeros, and with channels of zeros up to a power of two."""
    size = max(NARROWEST, pl.next_power_of_2(x.shape[-1]))
    return jnp.pad(x, ((0, 0), (0, rows), (0, size - x.shape[-1])))


def _chunk(
    state: Float[Tensor, "m D"],
    query: Float[Tensor, "c m"],
    key: Float[Tensor, "c m"],
    x: Float[Tensor, "c D"],
    gates: Float[Tensor, "c 1"],
    up_to: Float[Tensor, "c 1"],
    behind: Float[Tensor, "c 1"],
) -> tuple[Float[Tensor, "c D"], Float[Tensor, "m D"]]:
    """The outputs of a chunk, and the sum over all tokens up to its end.

    `up_to` is g_first + ... + g_i for each token, `behind` is g_(j+1) + ... + g_last.
    """
    dot = functools.partial(jnp.dot, precision=jax.lax.Precision.HIGHEST)  # float32, not less
    row = jax.lax.broadcasted_iota(jnp.int32, (CHUNK, CHUNK), 0)
    column = jax.lax.broadcasted_iota(jnp.int32, (CHUNK, CHUNK), 1)
    is_seen = row >= column
    # between[i, j] = sum_l [l <= i] [l > j] g_l
    between = dot(is_seen.astype(gates.dtype), jnp.where(row > column, gates, 0.0))
    scores = jnp.where(is_seen, dot(query, key.T) * jnp.exp(between), 0.0)
    outputs = dot(scores, x) + jnp.exp(up_to) * dot(query, state)
    added = dot((key * jnp.exp(behind)).T, x)
    return outputs, jnp.exp(jnp.sum(gates)) * state + added


def _in_chunks(tensors: list[Tensor], interpret: bool) -> Float[Tensor, "G T D"]:
    """A grid of heads and chunks. The chunks of a head run in order, and share the state."""
    query, _, x, *_ = tensors
    groups, length, width = x.shape

    def kernel(*refs: Tensor) -> None:
        *inputs, outputs, state = refs

        @pl.when(pl.program_id(1) == 0)  # type: ignore[untyped-decorator]
        def _start() -> None:
            state[...] = jnp.zeros_like(state)

        outputs[...], state[...] = _chunk(state[...], *(ref[...] for ref in inputs))

    def of_chunk(tensor: Tensor) -> pl.BlockSpec:
        return pl.BlockSpec((None, CHUNK, tensor.shape[-1]), lambda group, index: (group, index, 0))

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(groups, length // CHUNK),
        in_specs=[of_chunk(tensor) for tensor in tensors],
        out_specs=of_chunk(x),
        scratch_shapes=[tpu.VMEM((query.shape[-1], width), x.dtype)],
        interpret=interpret,
        compiler_params=tpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )(*tensors)
