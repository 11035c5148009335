"""Similarity of the tokens of a sequence, a measure of over-smoothing."""

from keras import ops

from keras_graphattn.checks import checked, mask, optional, tensor
from keras_graphattn.numerics.precision import at_least_float32, largest
from keras_graphattn.types import Bool, Float, Tensor


@checked(tokens=tensor("B T d"), mask=optional(mask("B T")))
def token_similarity(
    tokens: Float[Tensor, "B T d"], mask: Bool[Tensor, "B T"] | None = None
) -> Float[Tensor, " B"]:
    """Returns each sequence's mean cosine similarity over all pairs of different tokens.

    A value of 1 means that all tokens have the same direction. This is over-smoothing, which graph
    filters reduce. Time and memory are linear in the length: if u_t are the tokens scaled to unit
    length, the mean is `(|sum_t u_t|^2 - sum_t |u_t|^2) / (n (n - 1))`.

    Args:
        tokens: Tensor of shape (B, T, d).
        mask: Optional boolean tensor of shape (B, T). `False` marks padding, which is ignored.

    Returns:
        A float32 tensor of shape (B,), with values between -1 and 1. The value is 0 for a sequence
        of fewer than two tokens, which has no pairs. A token of zeros has similarity 0 to all
        others.

    Example:

    >>> similarity = token_similarity(np.array([[[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]]))
    >>> round(float(similarity[0]), 4)
    0.3333

    Source: Choi et al., arXiv 2312.04234, who plot it for each layer.
    """
    tokens = at_least_float32(tokens)
    if mask is None:
        mask = ops.ones_like(tokens[..., 0], dtype="bool")
    mask = ops.cast(mask, "bool")
    tokens = ops.where(mask[..., None], tokens, 0.0)
    scale = largest(ops.abs(tokens), axis=-1, keepdims=True)  # no square over- or underflows
    tokens = tokens / ops.where(scale > 0, scale, 1.0)
    norm = ops.sqrt(ops.sum(ops.square(tokens), axis=-1, keepdims=True))  # (B, T, 1)
    unit = tokens / ops.where(norm > 0, norm, 1.0)  # (B, T, d); a token of zeros stays 0
    count = ops.sum(ops.cast(mask, unit.dtype), axis=-1)  # (B,)
    all_pairs = ops.sum(ops.square(ops.sum(unit, axis=1)), axis=-1)
    with_itself = ops.sum(ops.square(unit), axis=(1, 2))
    return (all_pairs - with_itself) / ops.maximum(count * (count - 1.0), 1.0)
