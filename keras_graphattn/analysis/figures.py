"""Figures that no window shows. matplotlib is needed only for pictures."""

from typing import Any


def new_figure(width: float, height: float) -> Any:
    """A figure of so many inches.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Pictures need matplotlib, which is not installed. Run `pip install matplotlib`."
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def own_or_new_axis(axis: Any, width: float, height: float) -> Any:
    """The axis, or that of a new figure of so many inches if it is `None`."""
    return new_figure(width, height).add_subplot() if axis is None else axis
