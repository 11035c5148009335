"""Softmax attention applied twice, A x and A A x, as Pallas kernels for jax on a TPU.

A kernel has some rows of A, of one head of one example. It takes the keys in blocks, and never
writes an entry of A to the device's memory. The first sweep finds the greatest score m_i and the
sum l_i of each row beside A x. The second one needs no maximum and no sum of its own:

    A_ij = exp(s_ij - m_i) / l_i

The gradient is that of the portable form, `keras_graphattn.operators.blockwise`. Forward mode is
refused. There is no form for GPUs: one that computed the same was slower there than the portable
form, which compiles to matrix products (`docs/pages/devices.md`).

Source: Dao, "FlashAttention-2", arXiv 2307.08691, Algorithm 1. Ours: the second sweep.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu

from keras_graphattn.operators.pallas_decay import filled, heads_apart, heads_together
from keras_graphattn.types import Bool, Float, Tensor

BLOCK = 128  # rows of A in a program, and keys at a time
WIDEST = 128  # channels of a head
HIDDEN = -1e30  # less than any score

Tensors = tuple[Tensor, ...]


def fits(query: Float[Tensor, "B T N H"], x: Float[Tensor, "B T N D"]) -> bool:
    """Whether the kernels take tensors of these sizes: known lengths, and narrow heads."""
    length, widths = query.shape[1], (query.shape[-1], x.shape[-1])
    return isinstance(length, int) and length > BLOCK and max(widths) <= WIDEST


def with_gradient(
    gradient: Callable[[Tensors, Tensors, Tensors], tuple[Tensor | None, ...]],
    causal: bool,
    interpret: bool,
) -> Callable[..., Tensors]:
    """A function from query, key, x and masks to A x and A A x, with this gradient.

    Args:
        gradient: Callable of the tensors, of the outputs and of the gradients of the outputs.
        causal: Whether a query sees no later key.
        interpret: Whether to run the kernels step by step on any device, for tests.
    """

    attend: Any = jax.custom_vjp(functools.partial(_twice, causal=causal, interpret=interpret))

    def forward(*tensors: Tensor) -> tuple[Tensors, tuple[Tensors, Tensors]]:
        outputs = attend(*tensors)  # not `_twice`: this is differentiated a second time
        return outputs, (tensors, outputs)

    def backward(kept: tuple[Tensors, Tensors], upstream: Tensors) -> tuple[Tensor | None, ...]:
        return gradient(*kept, upstream)

    attend.defvjp(forward, backward)
    compiled: Callable[..., Tensors] = jax.jit(attend)
    return compiled


def _twice(
    query: Float[Tensor, "B T N H"],
    key: Float[Tensor, "B T N H"],
    x: Float[Tensor, "B T N D"],
    queries: Bool[Tensor, "B T"],
    keys: Bool[Tensor, "B T"],
    *,
    causal: bool,
    interpret: bool,
) -> tuple[Float[Tensor, "B T N D"], Float[Tensor, "B T N D"]]:
    """A x and A A x; rows of queries that are `False`, and those that see no key, are 0."""
    batch, length, _, width = x.shape
    rows = -length % BLOCK
    seen = jnp.pad(keys.astype("float32"), ((0, 0), (0, rows)))[:, None]  # (B, 1, T')
    sees = queries[:, :, None, None]
    sweep = functools.partial(_sweep, seen=seen, causal=causal, interpret=interpret)

    def in_blocks(tensor: Tensor) -> Tensor:  # (B, T, N, _) -> (B N, T', _)
        return filled(heads_apart(tensor.astype("float32")), rows)

    def whole(outputs: Tensor) -> Tensor:
        outputs = heads_together(outputs[:, :length, :width], batch)
        return jnp.where(sees, outputs, 0.0).astype(x.dtype)

    query, key = in_blocks(query), in_blocks(key)
    outputs, *sums = sweep(query, key, in_blocks(x))
    once = whole(outputs)
    (outputs,) = sweep(query, key, in_blocks(once), *sums)
    return once, whole(outputs)


def _sweep(
    query: Float[Tensor, "G T H"],
    key: Float[Tensor, "G T H"],
    x: Float[Tensor, "G T D"],
    *sums: Float[Tensor, "G T 1"],
    seen: Float[Tensor, "B 1 T"],
    causal: bool,
    interpret: bool,
) -> list[Float[Tensor, "G T _"]]:
    """A x, with the greatest scores and the sums of the rows if they are not given."""
    column = jax.ShapeDtypeStruct((*x.shape[:2], 1), x.dtype)
    outputs = [jax.ShapeDtypeStruct(x.shape, x.dtype), *([] if sums else [column, column])]
    return _launched((query, *sums), (key, x), seen, outputs, causal, interpret)


def _start(rows: int, width: int) -> Tensors:
    """The sums, the greatest score and the sum of weights of rows before their first key."""
    greatest = jnp.full((rows, 1), HIDDEN, jnp.float32)
    return jnp.zeros((rows, width), jnp.float32), greatest, jnp.zeros((rows, 1), jnp.float32)


def _add_block(
    state: Tensors,
    of_rows: Tensors,
    key: Float[Tensor, "c H"],
    x: Float[Tensor, "c D"],
    seen: Float[Tensor, "1 c"],
    is_diagonal: Bool[Tensor, ""] | None,
) -> Tensors:
    """The state after one more block of keys; on the diagonal, only earlier keys are seen."""
    dot = functools.partial(jnp.dot, precision=jax.lax.Precision.HIGHEST)  # float32, not less
    query, *sums = of_rows
    is_seen = seen > 0.0
    if is_diagonal is not None:
        sizes = (query.shape[0], key.shape[0])
        row, column = (jax.lax.broadcasted_iota(jnp.int32, sizes, axis) for axis in (0, 1))
        is_seen = is_seen & (row >= jnp.where(is_diagonal, column, 0))
    scores = jnp.where(is_seen, dot(query, key.T), HIDDEN)
    total, greatest, weight = state
    if sums:
        weights = jnp.where(is_seen, jnp.exp(scores - sums[0]), 0.0)
        return total + dot(weights, x), greatest, weight
    now = jnp.maximum(greatest, jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.where(is_seen, jnp.exp(scores - now), 0.0)
    kept = jnp.exp(greatest - now)
    weight = kept * weight + jnp.sum(weights, axis=-1, keepdims=True)
    return kept * total + dot(weights, x), now, weight


def _results(state: Tensors, of_rows: Tensors) -> Tensors:
    """What a kernel writes for its rows."""
    total, greatest, weight = state
    if len(of_rows) > 1:
        return (total / of_rows[2],)
    weight = jnp.where(weight > 0.0, weight, 1.0)  # rows that see nothing become 0
    return total / weight, greatest, weight


def _launched(
    of_rows: Tensors,
    of_keys: Tensors,
    seen: Float[Tensor, "B 1 T"],
    outputs: list[Any],
    causal: bool,
    interpret: bool,
) -> list[Tensor]:
    """A grid of heads, rows and keys. The blocks of keys come in order, and share the state."""
    groups, length, width = of_keys[1].shape
    heads, blocks = groups // seen.shape[0], length // BLOCK

    def kernel(*refs: Any) -> None:
        refs, state = refs[:-3], refs[-3:]
        rows, (key, x, visible), results = _parted(refs, len(of_rows))
        row, column = pl.program_id(1), pl.program_id(2)

        @pl.when(column == 0)  # type: ignore[untyped-decorator]
        def _begin() -> None:
            for ref, value in zip(state, _start(BLOCK, width), strict=True):
                ref[...] = value

        @pl.when(column <= (row if causal else blocks))  # type: ignore[untyped-decorator]
        def _add() -> None:
            is_diagonal = (column == row) if causal else None
            before = tuple(ref[...] for ref in state)
            arguments = (key[...], x[...], visible[...], is_diagonal)
            after = _add_block(before, tuple(ref[...] for ref in rows), *arguments)
            for ref, value in zip(state, after, strict=True):
                ref[...] = value

        @pl.when(column == blocks - 1)  # type: ignore[untyped-decorator]
        def _end() -> None:
            values = _results(tuple(ref[...] for ref in state), tuple(ref[...] for ref in rows))
            for ref, value in zip(results, values, strict=True):
                ref[...] = value

    def of(place: int) -> Callable[[Any], pl.BlockSpec]:
        def spec(tensor: Any) -> pl.BlockSpec:
            shape = (None, BLOCK, tensor.shape[-1])
            return pl.BlockSpec(shape, lambda *index: (index[0], index[place], 0))

        return spec

    def of_mask(group: Any, _: Any, column: Any) -> tuple[Any, ...]:
        return jax.lax.div(group, heads), 0, column

    mask = pl.BlockSpec((None, 1, BLOCK), of_mask)
    kept = [(BLOCK, width), (BLOCK, 1), (BLOCK, 1)]
    return list(
        pl.pallas_call(
            kernel,
            out_shape=outputs,
            grid=(groups, blocks, blocks),
            in_specs=[*map(of(1), of_rows), *map(of(2), of_keys), mask],
            out_specs=[of(1)(one) for one in outputs],
            scratch_shapes=[tpu.VMEM(shape, jnp.float32) for shape in kept],
            interpret=interpret,
            compiler_params=tpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "arbitrary")
            ),
        )(*of_rows, *of_keys, seen)
    )


def _parted(refs: tuple[Any, ...], count: int) -> tuple[tuple[Any, ...], ...]:
    """References of rows, of keys with their mask, and of results."""
    return refs[:count], refs[count : count + 3], refs[count + 3 :]
