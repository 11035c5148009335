"""Two applications of attention in a row on torch and a CPU: one head at a time, in place.

One head's matrix takes no more memory than a block of rows of all heads. So it is formed once for
both applications, instead of twice. The formulas are those of
`keras_graphattn.operators.blockwise`.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from keras_graphattn.numerics.torch_gradient import heads_first, heads_last, in_place, softmax_of

Tensors = tuple[Tensor, ...]

_NUMBERS = 2**18  # of the rows that are worked on at a time: 1 MiB of float32


def twice(
    plain: Callable[..., Tensors], query: Tensor, key: Tensor, x: Tensor, mask: Tensor | None
) -> Tensors:
    """A x and A A x of queries and keys (B, T, N, H), x (B, T, N, D) and a mask (B, N, T, T).

    The differentiable `plain(query, key, x)` gives them where nothing can be done in place.
    """
    masks = () if mask is None else (mask,)
    return in_place(
        lambda *operands: plain(*operands[:3]), _value, _gradient, query, key, x, *masks
    )


class _Head(NamedTuple):
    """The tensors of one head: (T, H), (T, H), (T, D), and the mask (T, T) if there is one."""

    query: Tensor
    key: Tensor
    x: Tensor
    visible: Tensor | None

    def blocks(self) -> Iterator[slice]:
        """Rows that fit into the cache together."""
        length = len(self.key)
        step = max(1, _NUMBERS // length)
        return (slice(i, i + step) for i in range(0, length, step))

    def weights(self, rows: slice, out: Tensor) -> Tensor:
        """Some rows of A."""
        torch.mm(self.query[rows], self.key.T, out=out)
        return softmax_of(out, None if self.visible is None else self.visible[rows].to(out.dtype))


def _heads(query: Tensor, key: Tensor, x: Tensor, *masks: Tensor) -> Iterator[_Head]:
    batch, length, heads, _ = query.shape
    query, key, x = (heads_first(z) for z in (query, key, x))
    visible = masks[0].expand(batch, heads, length, length) if masks else None
    for index in range(batch * heads):
        seen = None if visible is None else visible[index // heads, index % heads]
        yield _Head(query[index], key[index], x[index], seen)


def _value(
    keep: bool, query: Tensor, key: Tensor, x: Tensor, *masks: Tensor
) -> tuple[Tensors, Tensors] | None:
    batch, length, heads, size = x.shape
    once, second = (x.new_empty((batch * heads, length, size)) for _ in range(2))
    matrix = x.new_empty((length, length))
    for index, head in enumerate(_heads(query, key, x, *masks)):
        for rows in head.blocks():
            torch.mm(head.weights(rows, matrix[rows]), head.x, out=once[index, rows])
        torch.mm(matrix, once[index], out=second[index])
    if masks and not second.isfinite().all():
        return None  # what is hidden may be infinite, and 0 times that is not 0
    outputs = heads_last(once, batch), heads_last(second, batch)
    return outputs, outputs


def _gradient(tensors: Tensors, kept: Tensors, upstream: Tensors) -> tuple[Tensor | None, ...]:
    batch, length = tensors[0].shape[:2]
    others = [heads_first(z) for z in (*kept, *upstream)]
    matrix = others[0].new_empty((length, length))
    of_heads = [
        _gradient_of_head(head, matrix, *(z[index] for z in others))
        for index, head in enumerate(_heads(*tensors))
    ]
    gradients = (heads_last(torch.stack(z), batch) for z in zip(*of_heads, strict=True))
    return *gradients, *(None for _ in tensors[3:])


def _gradient_of_head(
    head: _Head, matrix: Tensor, once: Tensor, second: Tensor, to_once: Tensor, to_second: Tensor
) -> Tensors:
    """Gradients for the query, the key and x of one head; x^T A is quicker than A^T x."""
    total = to_once.T.contiguous()
    for rows in head.blocks():
        total.addmm_(to_second[rows].T, head.weights(rows, matrix[rows]))
    to_once = total.T.contiguous()
    row_sums = (once * to_once + second * to_second).sum(-1, keepdim=True)
    signals = torch.cat([once, head.x], -1)
    to_signals = torch.cat([to_second, to_once], -1)
    to_query = torch.empty_like(head.query)
    to_key, to_x = torch.zeros_like(head.key).T.contiguous(), torch.zeros_like(total)
    for rows in head.blocks():
        weights = matrix[rows]
        to_x.addmm_(to_once[rows].T, weights)
        to_scores = torch.mm(to_signals[rows], signals.T)
        to_scores.sub_(row_sums[rows]).mul_(weights)
        torch.mm(to_scores, head.key, out=to_query[rows])
        to_key.addmm_(head.query[rows].T, to_scores)
    return to_query, to_key.T, to_x.T
