"""The forest of a `Tree` mask: read from the arguments, and written to the config."""

from typing import Any

import numpy as np

from keras_graphattn.checks import numpy_of
from keras_graphattn.ops.trees.forests import Forest, forest_from_graph, forest_from_parents


def read_forest(forest: Any, edge_weights: Any, num_nodes: int | None) -> Forest:
    """Reads a flat list as the parents of nodes, and anything else as a graph.

    Raises:
        ValueError: For a forest that cannot be read. The error says how it was read.
        TypeError: The same, for a wrong type.
    """
    has_parents = isinstance(forest, (list, tuple, np.ndarray)) and numpy_of(forest).ndim == 1
    if has_parents and num_nodes not in (None, len(forest)):
        raise ValueError(
            f"`forest` must have one parent for each node. Received: {len(forest)} parents and "
            f"num_nodes={num_nodes}. Leave `num_nodes` out."
        )
    try:
        if has_parents:
            return forest_from_parents(forest, edge_weights)
        return forest_from_graph(forest, num_nodes, edge_weights)
    except (TypeError, ValueError) as error:
        kind = "each node's parent" if has_parents else "a graph"
        refusal = TypeError if isinstance(error, TypeError) else ValueError
        raise refusal(f"`forest` was read as {kind}: {error}") from error


def forest_config(forest: Forest) -> dict[str, Any]:
    """The arguments `forest` and, if a length is not 1, `edge_weights` that give a forest."""
    parents = np.where(forest.depth > 0, forest.order[forest.parents], -1)  # in breadth-first order
    config = {"forest": parents[forest.position].tolist()}
    if (forest.weights[forest.depth > 0] != 1.0).any():
        config["edge_weights"] = forest.weights[forest.position].tolist()
    return config
