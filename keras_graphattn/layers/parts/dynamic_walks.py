"""The kernel of walks that follow the attention of a layer, as factors of this attention."""

from typing import Any

from keras import ops

from keras_graphattn.layers.parts.kernel_masks import is_key_mask
from keras_graphattn.layers.parts.multi_head import Masks
from keras_graphattn.masks.random_walk import RandomWalk
from keras_graphattn.numerics.precision import masked_softmax
from keras_graphattn.ops.graphs.dynamic_walks import kernel_of_steps
from keras_graphattn.ops.kernel.attention import SMALLEST

Tensor = Any


def check_walks(mask: Any, sliding_window: int | None) -> None:
    """Raises a `ValueError` for options that dynamic walks cannot honour."""
    if not isinstance(mask, RandomWalk):
        raise ValueError(
            "`dynamic_walks=True` needs the edges of a masks.RandomWalk. Received: "
            f"mask={type(mask).__name__}. Use RandomWalk, or leave out `dynamic_walks`."
        )
    if sliding_window is not None:
        raise ValueError(
            "`dynamic_walks=True` and `sliding_window` cannot be combined: a walk would leave the "
            f"window. Received: sliding_window={sliding_window}. Leave out one of them."
        )


def check_masks(masks: Masks) -> None:
    """Raises a `ValueError` for an `attention_mask` of pairs."""
    given = masks.attention
    if given is not None and not is_key_mask(given.shape):
        raise ValueError(
            "With `dynamic_walks=True`, a walk from a visible node may reach nodes that an "
            f"`attention_mask` of pairs hides. Received: attention_mask.shape={tuple(given.shape)}."
            " Use `query_mask` and `value_mask`, or a mask of keys of shape (B, 1, T)."
        )


def dynamic_factors(
    mask: RandomWalk, scores: Tensor, given: Tensor | None, masks: Masks
) -> tuple[Tensor, Tensor | None]:
    """The kernel of the expected walks whose steps are a softmax of the scores over edges.

    Args:
        mask: The mask with the edges, the decay and the normalization.
        scores: S, of shape (B, N, T, T), in at least float32.
        given: Which pairs the call lets through, broadcasting to (B, N, T, T), or `None`.
        masks: The masks of the call.

    Returns:
        M, of shape (B, N, T, T), with 0 for what is too small to invert, and which nodes have
        walks that depend on a broken token, (B, 1 or N, T), or `None` if no token can be broken.
    """
    inputs = dict(masks.inputs or {})
    edges = ops.cast(mask.edge_matrix(ops.shape(scores)[-1], **inputs), scores.dtype)
    seen = ops.logical_or(edges > 0.0, ops.isnan(edges))  # (1 or B, 1, T, T)
    # the weight of an edge is a factor of the probability of its step
    logits = scores + ops.log(ops.where(seen, edges, ops.cast(1.0, edges.dtype)))
    seen = seen if given is None else ops.logical_and(seen, given)
    steps, length = masked_softmax(logits, seen), mask.length_of_walks(inputs)
    decay = mask.parameters()["decay"]
    kernel = kernel_of_steps(steps, decay, length, mask.normalization)
    known = ops.logical_or(kernel >= SMALLEST, ops.isnan(kernel))
    kernel = ops.where(known, kernel, ops.cast(0.0, kernel.dtype))
    if masks.broken is None:
        return kernel, None
    broken = masks.broken[:, None]  # (B, 1, T)
    for _ in range(length - 1):
        near = ops.any(ops.logical_and(seen, broken[:, :, None]), axis=-1)
        broken = ops.logical_or(broken, near)
    return kernel, broken
