"""Work on a few query rows at a time: O(n * block) memory, backward pass included."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import keras
from keras import ops

from keras_graphattn.checks import traced_by_torch
from keras_graphattn.numerics.precision import pad, positions_of, take
from keras_graphattn.types import Bool, Int, Num, Size, Tensor

Carried = TypeVar("Carried")


def map_query_blocks(
    function: Callable[[Tensor, Mapping[str, Tensor]], Tensor],
    by_row: Mapping[str, Tensor],
    whole: Mapping[str, Tensor],
    length: Size,
    block_size: int,
) -> Num[Tensor, "B T ..."]:
    """Calls `function` for each block of query rows and joins what it returns.

    The intermediate tensors of a block are not kept for the backward pass but computed again,
    so nothing of size n x n is ever alive. `function` must not capture tensors that need a
    gradient (TensorFlow's rematerialisation silently drops it): pass them as arguments.

    Args:
        function: Callable of `rows`, an integer tensor of shape (block,) with the positions of
            the block's rows, and `tensors`, a dictionary with the block's part of each tensor
            of `by_row` and with all of each tensor of `whole`. Returns a (B, block, ...) tensor.
        by_row: Tensors of shape (B, T, ...), cut into blocks. Rows beyond T are zeros.
        whole: Tensors that every block sees entirely.
        length: T, the number of query rows.
        block_size: Number of query rows at a time.
    """
    if fits_one_block(length, block_size):
        return function(positions_of(length), {**by_row, **whole})
    rows = cut_rows(length, block_size)
    blocks = [cut_into_blocks(_without_booleans(x), block_size) for x in by_row.values()]
    names = (*by_row, *whole)
    is_mask = [_is_boolean(x) for x in (*by_row.values(), *whole.values())]

    def one_block(block_rows: Tensor, *tensors: Tensor) -> Tensor:
        masks_restored = (
            ops.cast(x, "bool") if mask else x for x, mask in zip(tensors, is_mask, strict=True)
        )
        return function(block_rows, dict(zip(names, masks_restored, strict=True)))

    rematerialised = keras.remat(one_block)
    shared = [_without_booleans(x) for x in whole.values()]
    joined = map_in_turn(lambda block: rematerialised(*block, *shared), (rows, *blocks))
    return join_blocks(joined, length)


def map_in_turn(
    function: Callable[[tuple[Tensor, ...]], Tensor], blocks: Sequence[Tensor]
) -> Num[Tensor, "..."]:
    """`keras.ops.map` with one block alive at a time; TensorFlow would run ten at once."""
    if keras.backend.backend() != "tensorflow":
        return ops.map(function, blocks)
    import tensorflow as tf

    output = function(tf.nest.map_structure(lambda x: x[0], blocks))
    return tf.map_fn(
        function,
        blocks,
        parallel_iterations=1,
        fn_output_signature=tf.TensorSpec.from_tensor(output),
    )


def map_over_blocks(count: Size, function: Callable[[int | Tensor], Tensor]) -> Num[Tensor, "..."]:
    """`function` of 0 ... count - 1, with one block alive at a time.

    On torch the numbers are integers: its compiler cannot read an index from a tensor.
    """
    if keras.backend.backend() == "torch":
        return ops.stack([function(index) for index in range(count)])
    return map_in_turn(function, positions_of(count))


def loop_in_turn(
    count: Size, body: Callable[[Tensor, Carried], Carried], start: Carried
) -> Carried:
    """`keras.ops.fori_loop` from 0 to `count` with one step alive at a time, on TensorFlow too."""
    result: Carried
    if keras.backend.backend() != "tensorflow":
        result = ops.fori_loop(0, count, body, start)
        return result
    import tensorflow as tf

    _, result = tf.while_loop(
        lambda index, state: index < count,
        lambda index, state: (index + 1, body(index, state)),
        (0, start),
        parallel_iterations=1,
    )
    return result


def loop_over_blocks(
    count: Size,
    body: Callable[[Tensor, Carried], tuple[Carried, Tensor]],
    start: Carried,
    like: Num[Tensor, "..."],
    backwards: bool = False,
) -> tuple[Carried, Num[Tensor, "..."]]:
    """`keras.ops.scan` over 0 ... count - 1 with one step alive at a time, and all derivatives.

    Args:
        count: Number of steps.
        body: Callable of a step's number and of what is carried. Returns what is carried on, and
            a tensor.
        start: What is carried first.
        like: A tensor of the shape and dtype of those that `body` returns.
        backwards: Whether the steps go from count - 1 to 0.

    Returns:
        What is carried last, and the tensors of all steps, (count, ...).
    """
    backend = keras.backend.backend()
    if backend == "torch":
        carried, blocks = start, []
        for index in reversed(range(count)) if backwards else range(count):
            carried, block = body(index, carried)
            blocks.append(block)
        return carried, ops.stack(blocks[::-1] if backwards else blocks)
    if backend != "tensorflow":
        steps = positions_of(count)
        last: tuple[Carried, Tensor] = ops.scan(
            lambda carry, i: body(i, carry), start, steps, reverse=backwards
        )
        return last
    import tensorflow as tf

    def step(index: Tensor, carried: Carried, blocks: Tensor) -> tuple[Tensor, Carried, Tensor]:
        place = count - 1 - index if backwards else index
        carried, block = body(place, carried)
        return index + 1, carried, blocks.write(place, block)

    array = tf.TensorArray(like.dtype, count, element_shape=like.shape)
    _, carried, array = tf.while_loop(
        lambda index, *_: index < count, step, (tf.constant(0), start, array), parallel_iterations=1
    )
    return carried, array.stack()


def where_needed(
    condition: Bool[Tensor, ""], function: Callable[[], Tensor], otherwise: Callable[[], Tensor]
) -> Num[Tensor, "..."]:
    """`function()` if the condition holds, else `otherwise()`, of the same shape and dtype.

    While torch traces, it is `function()`, which must be right for any condition. Outside `jit`,
    jax would compile a branch of `cond` again at each call; there the condition is read instead.
    """
    if traced_by_torch():
        return function()
    if keras.backend.backend() == "jax":
        import jax

        if not isinstance(condition, jax.core.Tracer):
            return function() if bool(condition) else otherwise()
    return ops.cond(condition, function, otherwise)


def fits_one_block(length: Size, block_size: int) -> bool:
    """Whether there is nothing to cut.

    A length that is not known before the run is cut. But torch unrolls loops, so it uses one block
    for such a length.
    """
    if isinstance(length, int):
        return length <= block_size
    return bool(keras.backend.backend() == "torch")


def number_of_blocks(length: Size, block_size: int) -> Size:
    """How many blocks hold `length` rows: an integer, or a tensor if `length` is one.

    JAX and torch can derive shapes of an open length, as in exports, only from other formulas. The
    formula for JAX has one block too many at multiples of `block_size`. That for torch always has
    one too many: a number of blocks that may be 1 would stay 1.
    """
    if not isinstance(length, int) and keras.backend.backend() == "jax":
        return length // block_size + 1
    if not isinstance(length, int) and keras.backend.backend() == "torch":
        return (length + 2 * block_size - 1) // block_size
    return (length + block_size - 1) // block_size


def cut_rows(length: Size, block_size: int) -> Int[Tensor, "_ _"]:
    """The positions 0, 1, ... of each block's rows, beyond `length` in the last: (count, block)."""
    count = number_of_blocks(length, block_size)
    return ops.reshape(positions_of(count * block_size), (count, block_size))


def cut_into_blocks(x: Num[Tensor, "B T ..."], block_size: int) -> Num[Tensor, "_ B ..."]:
    """(B, T, ...) -> (count, B, block_size, ...), filled up with zeros."""
    batch, length, *others = ops.shape(x)
    count = number_of_blocks(length, block_size)
    missing = count * block_size - length
    if not (isinstance(missing, int) and missing == 0):
        zeros = ops.zeros((batch, missing, *others), dtype=x.dtype)
        x = ops.concatenate([x, zeros], axis=1)
    x = ops.reshape(x, (batch, count, block_size, *others))
    return ops.transpose(x, (1, 0, *range(2, len(x.shape))))


def join_blocks(blocks: Num[Tensor, "_ B ..."], length: Size) -> Num[Tensor, "B ..."]:
    """(count, B, block_size, ...) -> (B, length, ...), what `cut_into_blocks` cut."""
    blocks = ops.transpose(blocks, (1, 0, *range(2, len(blocks.shape))))
    batch, count, size, *others = ops.shape(blocks)
    return ops.reshape(blocks, (batch, count * size, *others))[:, :length]


def cut_into_chunks(
    x: Num[Tensor, "B N T ..."], size: int, fill: float = 0
) -> Num[Tensor, "B N _ ..."]:
    """(B, N, T, ...) -> (B, N, count, size, ...), filled up at the end."""
    batch, heads, length, *others = ops.shape(x)
    count = number_of_blocks(length, size)
    missing = count * size - length
    most = missing if isinstance(missing, int) else 2 * size
    if most:
        widths = ((0, 0), (0, 0), (0, most), *((0, 0) for _ in others))
        x = pad(x, widths, fill)
    if not isinstance(missing, int):
        x = first_of(x, length + missing, axis=2)
    return ops.reshape(x, (batch, heads, count, size, *others))


def first_of(x: Num[Tensor, "..."], count: Size, axis: int) -> Num[Tensor, "..."]:
    """The first entries of an axis.

    For an open length, torch cannot know if a slice changes `x`, and JAX cannot know if an axis of
    a known size is long enough.
    """
    backend, is_known = keras.backend.backend(), isinstance(x.shape[axis], int)
    if not isinstance(count, int) and (backend == "torch" or (backend == "jax" and is_known)):
        return take(x, positions_of(count), axis=axis)
    return x[(*[slice(None)] * axis, slice(count))]


def _is_boolean(x: Num[Tensor, "..."]) -> bool:
    return bool(keras.backend.standardize_dtype(x.dtype) == "bool")


def _without_booleans(x: Num[Tensor, "..."]) -> Num[Tensor, "..."]:
    """Masks as integers: TensorFlow's loops cannot sum the gradients of booleans."""
    return ops.cast(x, "uint8") if _is_boolean(x) else x
