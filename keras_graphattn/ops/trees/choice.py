"""The choice of the fastest path through a forest, from measured costs.

The costs are microseconds on a CPU with two cores: for each step of a sweep up and down, and for
each row that a step works on, with 64 columns. They fit the times that
benchmarks/tree_and_graph_masks.py measures at 1000, 10 000 and 100 000 nodes. Unrolled levels work
on each node once, with one step per level. Pointer doubling works on each node once per bit of its
depth, with a logarithmic number of steps. A scan pads all levels to the widest one.
"""

from typing import NamedTuple

import keras
import numpy as np

from keras_graphattn.ops.trees.forests import Forest

UNROLLED_LEVELS = 256  # more levels are never unrolled: the graph would take too long to build
CACHED_NUMBERS = 2**21  # a signal with at most so many numbers stays in a processor's cache


class Costs(NamedTuple):
    """Microseconds per level or doubling step, and per row of 64 columns.

    `cached` multiplies the cost of a row if the signal stays in the cache.
    """

    level: float
    scanned_level: float
    doubling: float
    row: float
    scanned_row: float
    doubled_row: float
    cached: float


COSTS = {
    "jax": Costs(5.0, 0.42, 30.0, 0.23, 0.51, 0.21, 0.31),
    "tensorflow": Costs(13.0, 21.0, 190.0, 0.29, 0.30, 0.21, 1.0),
    "tensorflow xla": Costs(6.0, 0.60, 15.0, 0.23, 0.45, 0.22, 0.54),
    "torch": Costs(220.0, 220.0, 400.0, 0.37, 0.33, 0.28, 1.0),
}


def way_of_running() -> str:
    """Returns the key of `COSTS` for the code that runs or is traced now."""
    backend: str = keras.backend.backend()
    return "tensorflow xla" if backend == "tensorflow" and _under_xla() else backend


def _under_xla() -> bool:
    import tensorflow as tf

    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()  # set by `tf.function(jit_compile=True)`
        while context is not None:
            if context.IsXLAContext():
                return True
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
    return False


def sweep_path(forest: Forest, way: str, columns: int = 64) -> str:
    """Returns `"levels"`, `"scan"` or `"doubling"`: the path with the least expected time.

    Args:
        forest: The trees.
        way: A key of `COSTS`.
        columns: Number of columns of the signal, over all sequences of the batch.
    """
    costs, width = COSTS[way], columns / 64.0
    width *= costs.cached if forest.size * columns <= CACHED_NUMBERS else 1.0
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
    """Returns `"depths"` or `"centroids"`, for a function of distances up to `last`."""
    return "depths" if last <= 0.6 * np.log2(forest.size + 1) else "centroids"
