"""The choice of the operator for tokens that a distribution splits over devices (JAX)."""

from keras import ops

from keras_graphattn.operators.operator import Operator, Visibility
from keras_graphattn.operators.p_laplacian import PLaplacian
from keras_graphattn.operators.softmax import Logits
from keras_graphattn.sequence_parallel import parallel_of
from keras_graphattn.types import Float, Tensor

Weighting = tuple[PLaplacian, Float[Tensor, "B T N D"]]


def ring_of(
    query: Float[Tensor, "B T N H"],
    key: Float[Tensor, "B T N H"],
    visibility: Visibility,
    scale: float | None,
    block_size: int,
    logits: Logits | None,
    weighting: Weighting | None = None,
) -> Operator | None:
    """Softmax attention over a ring of devices; `None` if one device has all tokens.

    With a `weighting`, the numbers of p-LaT and the values, it is re-weighted by their distances.

    Raises:
        ValueError: If something is added to the scores, or the devices cannot evenly divide the
            tokens.
    """
    parallel = parallel_of(ops.shape(key))
    if parallel is None:
        return None
    if logits is not None and not logits.is_plain:
        added = "attention_bias" if logits.source is None else type(logits.source.source).__name__
        raise ValueError(
            "Attention over a ring of devices adds nothing to the scores: each device would need "
            f"the numbers of all pairs. Received: {added} under a SequenceParallel distribution. "
            'Use attention_path="dense", which gathers all tokens on each device, or leave it out.'
        )
    from keras_graphattn.operators.jax_ring import RingOperator

    return RingOperator(query, key, visibility, scale, block_size, parallel, weighting)
