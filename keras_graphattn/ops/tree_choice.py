"""Which way through a forest is fastest, from what was measured.

The numbers are microseconds: a fixed cost for each step of a graph, and a cost for each node. They
come from benchmarks/tree_and_graph_masks.py with 64 columns on a CPU of two cores.
"""

import numpy as np

from keras_graphattn.ops.forests import Forest

UNROLLED_LEVELS = 200  # more levels than this are never unrolled: the graph would be too large

# per unrolled level, scanned level, doubling step; then per node: levels, scan, doubling step
STEP_COSTS = {
    "jax": ((40.0, 6.0, 60.0), (0.30, 0.30, 0.20)),
    "tensorflow": ((60.0, 300.0, 80.0), (0.20, 0.30, 0.12)),
    "torch": ((40.0, 150.0, 60.0), (0.15, 0.30, 0.10)),
}


def sweep_path(forest: Forest, backend: str) -> str:
    """`"levels"`, `"scan"` or `"doubling"`: the least expected time."""
    (level, scanned, doubled), (by_level, by_scan, by_doubling) = STEP_COSTS[backend]
    levels = forest.height + 1
    padded = levels * forest.widest
    moved = sum(
        forest.size - int(forest.starts[2**k]) for k in range(int(forest.height).bit_length())
    )
    costs = {
        "levels": level * levels + by_level * forest.size,
        "scan": scanned * levels + by_scan * padded,
        "doubling": doubled * np.log2(levels + 1) + by_doubling * (moved + forest.size),
    }
    if levels > UNROLLED_LEVELS:
        del costs["levels"]
    if padded > 8 * forest.size:
        del costs["scan"]
    return min(costs, key=lambda name: costs[name])


def distance_path(forest: Forest, last: int) -> str:
    """`"depths"` or `"centroids"` for a function of distances up to `last`."""
    return "depths" if last <= 4 * np.log2(forest.size + 1) else "centroids"
