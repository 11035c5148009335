"""p-Laplacian attention on torch and a CPU: a few heads at a time, in place.

An n x n temporary that fits into the cache costs a fraction of one that does not. The formulas
are those of `keras_graphattn.operators.p_laplacian`.
"""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from keras_graphattn.numerics.torch_gradient import heads_first, heads_last, in_place, softmax_of

Tensors = tuple[Tensor, ...]

_NUMBERS = 2**18  # of one temporary: 1 MiB of float32
_PAIRS = 2**12  # whose differences are formed at a time


class Settings(NamedTuple):
    """The settings of the attention, without its tensors."""

    p: tuple[float, ...]
    least: float  # what is added to every squared distance
    least_share: float  # times the exponent: see `pair_distances`
    drop_diagonal: bool
    has_centre: bool
    has_mask: bool


def rows_of_output(
    plain: Callable[..., Tensor], settings: Settings, rows: Tensor, *tensors: Tensor
) -> Tensor:
    """`plain(rows, *tensors)`: some rows of the output, (B, T, N, D).

    The tensors are queries (B, T, N, H), keys (B, S, N, H), values of the rows (B, T, N, D) and
    of the columns (B, S, N, D), their centre (B, 1, N, D) if there is one, and the mask that
    broadcasts to (B, N, T, S) if there is one.
    """
    (outputs,) = in_place(
        lambda *operands: (plain(*operands),),
        functools.partial(_value, settings),
        functools.partial(_gradient, settings),
        rows,
        *tensors,
    )
    return outputs


class _Heads(NamedTuple):
    """Some or all heads: tensors of shape (heads, T or S, ...)."""

    query: Tensor
    key: Tensor
    row_values: Tensor
    values: Tensor  # of the columns
    rows: Tensor  # the same two, less the centre
    columns: Tensor
    exponents: Tensor  # (heads, 1, 1)

    def of(self, part: slice) -> "_Heads":
        return _Heads(*(x[part] for x in self))


def _all_heads(settings: Settings, *tensors: Tensor) -> _Heads:
    query, key, row_values, values, *others = tensors
    exponents = query.new_tensor([(x - 2) / 2 for x in settings.p]).repeat(len(query))
    query, key, row_values, values = (heads_first(x) for x in (query, key, row_values, values))
    centre = heads_first(others[0]) if settings.has_centre else None
    rows, columns = (x if centre is None else x - centre for x in (row_values, values))
    return _Heads(query, key, row_values, values, rows, columns, exponents[:, None, None])


def _groups(count: int, heads: int, numbers: int) -> Iterator[slice]:
    """Heads to take together: some of one example, or all of some examples."""
    most = max(1, _NUMBERS // numbers)
    if most >= heads:
        most -= most % heads
        yield from (slice(i, min(i + most, count)) for i in range(0, count, most))
        return
    for first in range(0, count, heads):
        end = first + heads
        yield from (slice(i, min(i + most, end)) for i in range(first, end, most))


def _value(
    settings: Settings, keep: bool, positions: Tensor, *tensors: Tensor
) -> tuple[Tensors, Tensors] | None:
    """The outputs; softmax, weights and distances, (B N, T, S), and which pairs are near."""
    heads, offset = _all_heads(settings, *tensors), int(positions[0])
    gram, outputs = _gram_operands(settings, heads), torch.empty_like(heads.rows)
    batch, shape = len(tensors[0]), (len(outputs[0]), len(heads.key[0]))
    groups = list(_groups(len(outputs), len(settings.p), shape[0] * shape[1]))
    held = len(outputs) if keep else groups[0].stop
    space = [outputs.new_empty((held, *shape)) for _ in range(3)]
    near, mask = [], None
    if settings.has_mask:
        mask = tensors[-1].to(outputs.dtype).expand(batch, len(settings.p), *shape)
    for part in groups:
        some, of_part = heads.of(part), _Gram(*(x[part] for x in gram))
        held_part = part if keep else slice(0, part.stop - part.start)
        softmax, weights, distances = (x[held_part] for x in space)
        visible = None if mask is None else _part_of(mask, part, len(settings.p))
        near.append(_distances(settings.least, some, of_part, visible, offset, distances))
        softmax_of(torch.bmm(some.query, some.key.mT, out=softmax), visible)
        torch.log(distances, out=weights).mul_(some.exponents).exp_().mul_(softmax)
        if settings.drop_diagonal:
            diagonal = weights.diagonal(offset, -2, -1)
            diagonal.masked_fill_(some.exponents[:, 0] != 0.0, 0.0)
        torch.bmm(weights, some.values, out=outputs[part])
    if mask is not None and not outputs.isfinite().all():
        return None  # what is hidden may be infinite, and 0 times that is not 0
    return (heads_last(outputs, batch),), (*space, *_joined(near, groups, shape)) if keep else ()


def _joined(near: list[Tensor | None], groups: list[slice], shape: tuple[int, int]) -> Tensors:
    """Which pairs of all heads are near; nothing if no pair is near."""
    if all(x is None for x in near):
        return ()
    sizes = [part.stop - part.start for part in groups]
    flags = [
        torch.zeros((size, *shape), dtype=torch.bool) if x is None else x
        for x, size in zip(near, sizes, strict=True)
    ]
    return (torch.cat(flags),)


def _part_of(visible: Tensor, part: slice, heads: int) -> Tensor:
    """The mask (B, N, T, S) of some heads, (heads, T, S)."""
    examples = slice(part.start // heads, (part.stop - 1) // heads + 1)
    first, number = part.start % heads, part.stop - part.start
    return visible[examples, first : first + number].flatten(0, 1)


class _Gram(NamedTuple):
    """left right^T is the Gram form; it is too inaccurate if it is below `rows` + `columns`^T."""

    left: Tensor
    right: Tensor
    rows: Tensor  # (heads, T, 1)
    columns: Tensor  # (heads, S, 1)


def _gram_operands(settings: Settings, heads: _Heads) -> _Gram:
    rows, columns = heads.rows, heads.columns
    of_rows, of_columns = (x.square().sum(-1, keepdim=True) for x in (rows, columns))
    one = torch.ones_like
    left = torch.cat([of_rows + settings.least, one(of_rows), rows], -1)
    right = torch.cat([one(of_columns), of_columns, -2.0 * columns], -1)
    share = settings.least_share * heads.exponents.abs()
    return _Gram(left, right, share * of_rows, share * of_columns)


def _distances(
    least: float, heads: _Heads, gram: _Gram, visible: Tensor | None, offset: int, out: Tensor
) -> Tensor | None:
    """Squared distances plus `least`; which pairs are near, if some are.

    Pairs that do not count get a number above 0 that is not near.
    """
    torch.bmm(gram.left, gram.right.mT, out=out)
    most = gram.columns.flatten(1).amax(-1)[:, None, None]
    bound = gram.rows + 1.0001 * most  # above that of every pair
    far = bound.clamp(min=least)  # (heads, T, 1)
    if visible is not None:
        out.mul_(visible).addcmul_(1.0 - visible, far)
    for head in (heads.exponents.flatten() == 0.0).nonzero().flatten().tolist():
        out[head] = 1.0  # any distance to the power 0
    diagonal = out.diagonal(offset, -2, -1)
    diagonal.copy_(far[:, : diagonal.shape[-1], 0])
    near = None
    if (out.amin(-1, keepdim=True) < bound).any():
        near = out - gram.rows < gram.columns.mT
        for pair, difference in _near_pairs(heads, near):
            out[pair] = difference.square().sum(-1) + least
    diagonal.fill_(least)
    return near


def _near_pairs(heads: _Heads, near: Tensor) -> Iterator[tuple[Tensors, Tensor]]:
    """Places (head, row, column) of near pairs, a few at a time, and their differences."""
    for places in near.nonzero().split(_PAIRS):
        head, row, column = places.unbind(-1)
        yield (head, row, column), heads.row_values[head, row] - heads.values[head, column]


def _gradient(
    settings: Settings, tensors: Tensors, kept: Tensors, upstream: Tensors
) -> tuple[Tensor | None, ...]:
    heads, offset = _all_heads(settings, *tensors[1:]), int(tensors[0][0])
    batch, to_outputs = len(upstream[0]), heads_first(upstream[0])
    gradients = _empty_gradients(heads)
    for part in _groups(len(heads.query), len(settings.p), kept[0][0].numel()):
        _gradient_of_heads(
            heads.of(part),
            offset,
            tuple(x[part] for x in kept),
            to_outputs[part],
            _Gradients(*(x[part] for x in gradients)),
        )
    factor = 2.0 * heads.exponents
    to_rows = (heads.rows * gradients.row_sums).sub_(gradients.rows).mul_(factor)
    to_columns = (heads.columns * gradients.column_sums).sub_(gradients.columns).mul_(factor)
    of_inputs = gradients.query, gradients.key, to_rows, to_columns.add_(gradients.values)
    nothing = (None,) * (len(tensors) - 5)
    return None, *(heads_last(x, batch) for x in of_inputs), *nothing


class _Gradients(NamedTuple):
    """Where the gradients go; those through the distances are halves, without the sums."""

    query: Tensor
    key: Tensor
    rows: Tensor
    columns: Tensor
    values: Tensor
    row_sums: Tensor
    column_sums: Tensor


def _empty_gradients(heads: _Heads) -> _Gradients:
    """The gradients of columns are transposed: x^T A is quicker than A^T x."""

    def transposed(x: Tensor) -> Tensor:
        return torch.empty_like(x.mT, memory_format=torch.contiguous_format).mT

    sums = (x.new_empty((*x.shape[:2], 1)) for x in (heads.rows, heads.columns))
    return _Gradients(
        torch.empty_like(heads.query),
        transposed(heads.key),
        torch.empty_like(heads.rows),
        transposed(heads.columns),
        transposed(heads.values),
        *sums,
    )


def _gradient_of_heads(
    heads: _Heads, offset: int, kept: Tensors, to_outputs: Tensor, gradients: _Gradients
) -> None:
    softmax, weights, distances, *near = kept
    torch.bmm(to_outputs.mT, weights, out=gradients.values.mT)
    products = torch.bmm(to_outputs, heads.values.mT).mul_(weights)
    slopes = products / distances
    slopes.diagonal(offset, -2, -1).zero_()
    to_scores = products.addcmul_(softmax, products.sum(-1, keepdim=True), value=-1.0)
    torch.bmm(to_scores, heads.key, out=gradients.query)
    torch.bmm(heads.query.mT, to_scores, out=gradients.key.mT)
    _through_distances(heads, slopes, near, gradients)


def _through_distances(
    heads: _Heads, slopes: Tensor, near: list[Tensor], gradients: _Gradients
) -> None:
    """sum_j s_ij (v_i - v_j) of rows: the sum of s_ij, and sum_j s_ij v_j without near pairs."""
    pairs = [
        (places, difference * slopes[places][:, None])
        for which in near
        for places, difference in _near_pairs(heads, which)
    ]
    for which in near:
        slopes.masked_fill_(which, 0.0)
    torch.sum(slopes, -1, keepdim=True, out=gradients.row_sums)
    torch.sum(slopes, -2, keepdim=True, out=gradients.column_sums.mT)
    torch.bmm(slopes, heads.columns, out=gradients.rows)
    torch.bmm(heads.rows.mT, slopes, out=gradients.columns.mT)
    for (head, row, column), weighted in pairs:
        gradients.rows.index_put_((head, row), -weighted, accumulate=True)
        gradients.columns.index_put_((head, column), weighted, accumulate=True)
