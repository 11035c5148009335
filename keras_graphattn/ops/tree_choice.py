"""Which way through a forest is fastest, from what was measured.

The numbers are microseconds on a CPU of two cores: for each step of a sweep up and down, and for
each row that a step works on with 64 columns. They come from benchmarks/tree_and_graph_masks.py.
Unrolled levels do the least work (each node once) at one step per level; pointer doubling works on
each node once per bit of its depth, at a logarithmic number of steps; a scan has levels padded to
the widest.
"""

from typing import NamedTuple

import numpy as np

from keras_graphattn.ops.forests import Forest

UNROLLED_LEVELS = 256  # more are never unrolled: the graph would take too long to build


class Costs(NamedTuple):
    """Microseconds per level or doubling step, and per row at 64 columns."""

    level: float
    scanned_level: float
    doubling: float
    row: float
    scanned_row: float
    doubled_row: float


COSTS = {
    "jax": Costs(15.0, 2.5, 60.0, 0.30, 0.40, 0.20),
    "tensorflow": Costs(20.0, 20.0, 200.0, 0.30, 0.35, 0.27),
    "torch": Costs(180.0, 170.0, 450.0, 0.30, 0.35, 0.28),
}


def sweep_path(forest: Forest, backend: str, columns: int = 64) -> str:
    """`"levels"`, `"scan"` or `"doubling"`: the least expected time.

    Args:
        forest: The trees.
        backend: The Keras backend.
        columns: Number of columns of the signal, all sequences of the batch together.
    """
    costs, width = COSTS[backend], columns / 64.0
    levels, steps = forest.height + 1, int(forest.height).bit_length()
    moved = sum(forest.size - int(forest.starts[2**k]) for k in range(steps))
    padded = levels * forest.widest
    expected = {
        "levels": costs.level * levels + costs.row * width * forest.size,
        "scan": costs.scanned_level * levels
        + width * (costs.row * forest.size + costs.scanned_row * padded),
        "doubling": costs.doubling * steps
        + costs.doubled_row * width * max(moved, 1.5 * forest.size),
    }
    if levels > UNROLLED_LEVELS:
        del expected["levels"]
    return min(expected, key=lambda name: expected[name])


def distance_path(forest: Forest, last: int) -> str:
    """`"depths"` or `"centroids"` for a function of distances up to `last`."""
    return "depths" if last <= 0.6 * np.log2(forest.size + 1) else "centroids"
