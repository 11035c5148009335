"""Draws pictures of masks, and makes figures without a window; needs matplotlib."""

from typing import TYPE_CHECKING

from keras import ops

from keras_graphattn.masks import Mask
from keras_graphattn.types import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> "Figure":
    """A new figure of this size in inches; an `ImportError` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Pictures need matplotlib, which is not installed. Run `pip install matplotlib`."
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def plot_mask(
    mask: Mask,
    length: int | None = None,
    head: int = 0,
    axis: "Axes | None" = None,
    **inputs: Tensor,
) -> "Axes":
    """Draws `mask.dense()` of one head: rows are queries, columns are keys, counted from 0.

    Black is the factor 0, or the lowest factor if the mask has negative factors. The brightest
    colour is the highest factor. The colour bar shows which colour is which number.

    Args:
        mask: A built mask of `keras_graphattn.masks`.
        length: Number of tokens. Optional if the mask or its inputs determine it.
        head: Index of the head to draw, if the heads differ.
        axis: A matplotlib axis to draw on. By default, a new figure is created.
        **inputs: The tensors that the mask needs at each call. Only the first example of a batch
            is drawn.

    Returns:
        The matplotlib axis.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If `mask` is not a mask, or if it has no head with this index.

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
    matrix = ops.convert_to_numpy(mask.dense(length, **inputs))[0]  # (N or 1, T, T)
    heads = getattr(mask, "num_heads", len(matrix))
    if not 0 <= head < heads:
        raise ValueError(f"`head` must be from 0 to {heads - 1}. Received: head={head}")
    axis = axis or new_figure(4.8, 4.0).add_subplot()
    from matplotlib.ticker import MaxNLocator

    factors = matrix[head if len(matrix) > 1 else 0]  # (T, T); one matrix may serve all heads
    lowest, highest = min(0.0, factors.min(initial=0.0)), factors.max(initial=0.0)
    highest = highest if highest > lowest else lowest + 1.0  # all factors may be 0
    image = axis.imshow(factors, vmin=lowest, vmax=highest, cmap="magma")
    axis.set(title=type(mask).__name__, xlabel="key", ylabel="query")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    axis.figure.colorbar(image, ax=axis, fraction=0.046, pad=0.04).set_label("factor")
    return axis
