"""Pictures of masks: the matrix of factors that a mask stands for."""

from typing import Any

from keras import ops

from keras_graphattn.masks.mask import Mask

Tensor = Any


def plot_mask(
    mask: Mask,
    length: int | None = None,
    head: int = 0,
    axis: Any = None,
    **inputs: Tensor,
) -> Any:
    """Draws `mask.dense()` of one head: rows are queries, columns are keys, dark is 0.

    Args:
        mask: A built mask of `keras_graphattn.masks`.
        length: Number of tokens; may be left out where the mask or its inputs know it.
        head: Which head to draw, where heads differ.
        axis: A matplotlib axis to draw on; by default a new figure's.
        **inputs: The tensors that the mask needs at each call. Of a batch, the first is drawn.

    Returns:
        The matplotlib axis.

    Raises:
        ImportError: Without matplotlib.
        ValueError: For something that is not a mask, and for a head that it does not have.

    Example:

    >>> from keras_graphattn.masks import Toeplitz
    >>> mask = Toeplitz.alibi(max_length=16)
    >>> mask.build((None, None, 2, 8))
    >>> axis = plot_mask(mask, 12)
    >>> axis.get_title()
    'Toeplitz'
    """
    if not isinstance(mask, Mask):
        raise ValueError(f"`mask` must be a mask of keras_graphattn.masks. Received: mask={mask!r}")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "`plot_mask` needs matplotlib, which is not installed. Run `pip install matplotlib`."
        ) from error
    matrix = ops.convert_to_numpy(mask.dense(length, **inputs))[0]
    heads = getattr(mask, "num_heads", len(matrix))
    if not 0 <= head < heads:
        raise ValueError(f"`head` must be from 0 to {heads - 1}. Received: head={head}")
    if axis is None:
        axis = Figure(figsize=(4, 4)).add_subplot()
    axis.imshow(matrix[head if len(matrix) > 1 else 0], vmin=0.0, cmap="magma")
    axis.set(title=type(mask).__name__, xlabel="key", ylabel="query", xticks=[], yticks=[])
    return axis
