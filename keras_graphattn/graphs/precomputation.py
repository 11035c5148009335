"""Data computed from graphs once, before training: walks, distances, paths.

The results are kept in a folder if one is given. A file in it is always complete.
"""

import hashlib
import json
import os
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
from scipy.sparse.csgraph import shortest_path

from keras_graphattn.checks import Array, flag, is_list, one_of, optional, whole
from keras_graphattn.checks import folder as local_folder
from keras_graphattn.files import whole_file
from keras_graphattn.graphs.graph import Graph
from keras_graphattn.masks.graphs.walks import halt_rule, random_walks
from keras_graphattn.types import Float, Int

FORM_OF_FILES = 2  # counts up if the same call computes something else


def precompute(
    graphs: Sequence[Graph],
    kind: str,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    **options: float,
) -> list[Array]:
    """Computes walks, distances or paths of graphs, with a progress bar.

    `GraphBatches` takes walks as `node_arrays`, and the other results as `pair_arrays`.

    Args:
        graphs: The graphs.
        kind: `"walks"`, `"distances"`, `"paths"` or `"walk_probabilities"`.
            `"walks"`: integers (n, num_walks, walk_length), random walks from each node with
            probabilities proportional to edge weights, and -1 after the end of a walk. Options
            `num_walks=50`, `walk_length=4`, `halt_probability=0.0`, `seed=0`. Every graph has its
            own seed, from `seed` and its place in the list.
            `"distances"`: integers (n, n), the least number of edges from node to node, and -1
            where there is no way. This is O(n^2) memory for each graph.
            `"paths"`: integers (n, n, hops), the numbers of the edges on a shortest path from node
            to node, rows of `graph.edges`, and -1 after the end of the path. Where several paths
            are shortest, it is one of them. Option `hops=5`: how many edges of a path count, the
            first ones.
            `"walk_probabilities"`: numbers (n, n, num_steps), where entry k is the probability that
            a random walk from the first node is at the second after k steps, [I, M, M^2, ...] with
            M = D^-1 W. A node without edges has no walks. Option `num_steps=8`.
        cache_dir: A folder where results are kept and found again. The file's name depends on the
            graphs and on all options. A damaged file is computed again. If the folder cannot be
            written to, there is a warning, and the results are returned.
        verbose: Whether to show a progress bar.
        **options: Those of the kind.

    Returns:
        A list with an array for each graph.

    Raises:
        ValueError: For anything but a list of graphs, an unknown kind, and wrong options.

    Example:

    >>> path = Graph([[0, 1], [1, 2]], num_nodes=4)
    >>> precompute([path], "distances", verbose=False)[0].tolist()
    [[0, 1, 2, -1], [1, 0, 1, -1], [2, 1, 0, -1], [-1, -1, -1, 0]]

    Source: walks: Choromanski et al., arXiv 2107.07999, Section 4.2. Edges on paths:
    Ying et al., arXiv 2106.05234, Section 3.1.3. Probabilities of walks: Ma et al.,
    arXiv 2305.17589, Section 3.1.
    """
    graphs = checked_graphs(graphs)
    compute, defaults = _KINDS[one_of(*_KINDS)("kind", kind, {})]
    if set(options) - set(defaults):
        raise ValueError(
            f"The options of {kind!r} are {sorted(defaults)}. Received: {sorted(options)}"
        )
    rules = {"seed": whole(0), "halt_probability": halt_rule}
    options = {
        name: rules.get(name, whole())(name, options.get(name, default), {})
        for name, default in defaults.items()
    }
    flag("verbose", verbose)
    folder = optional(local_folder)("cache_dir", cache_dir, {})
    file = None if folder is None else folder / f"{kind}-{_digest(graphs, options)}.npz"
    results = None if file is None else _read(file)
    if results is not None:
        return results
    results = []
    bar = keras.utils.Progbar(len(graphs), verbose=int(verbose), unit_name="graph")
    for place, graph in enumerate(graphs):
        results.append(compute(place, graph, **options))
        bar.update(place + 1)
    if file is not None:
        try:
            _write(file, results)
        except OSError as error:
            warnings.warn(f"The {kind} were not kept in {folder}: {error}", stacklevel=2)
    return results


def checked_graphs(graphs: Sequence[Graph]) -> list[Graph]:
    """Returns a list of at least one graph, or raises a `ValueError`."""
    if not is_list(graphs) or not len(graphs) or not all(isinstance(g, Graph) for g in graphs):
        raise ValueError(
            f"`graphs` must be a list of keras_graphattn.graphs.Graph. Received: {graphs!r:.200}"
        )
    return list(graphs)


def _walks(
    place: int, graph: Graph, num_walks: int, walk_length: int, halt_probability: float, seed: int
) -> Int[Array, "n W L"]:
    own_seed = int(np.random.SeedSequence([seed, place]).generate_state(1)[0] >> 1)
    walks = random_walks(graph.adjacency(), num_walks, walk_length, own_seed, halt_probability)
    return walks.astype("int32")


def _distances(place: int, graph: Graph) -> Int[Array, "n n"]:
    edges = shortest_path(graph.adjacency(), unweighted=True, directed=False)
    return np.where(np.isfinite(edges), edges, -1.0).astype("int32")


def _paths(place: int, graph: Graph, hops: int) -> Int[Array, "n n hops"]:
    _, before = shortest_path(
        graph.adjacency(), unweighted=True, directed=False, return_predecessors=True
    )
    numbers = np.full((graph.num_nodes,) * 2, -1, "int32")
    for ends in (graph.edges, graph.edges[:, ::-1]):
        numbers[tuple(ends.T)] = np.arange(len(graph.edges))
    here, target = np.indices(numbers.shape)
    paths = np.full((*numbers.shape, hops), -1, "int32")
    for hop in range(hops):
        # the node before `here` on the way from the target is the next on the way to it
        onward = before[target, here]
        arrived = onward < 0
        onward = np.where(arrived, here, onward)
        paths[..., hop] = np.where(arrived, -1, numbers[here, onward])
        here = onward
    return paths


def _walk_probabilities(place: int, graph: Graph, num_steps: int) -> Float[Array, "n n num_steps"]:
    weights = graph.adjacency().toarray().astype("float64")
    total = weights.sum(axis=1, keepdims=True)
    step = weights / np.where(total > 0.0, total, 1.0)
    powers = [np.eye(graph.num_nodes)]
    for _ in range(num_steps - 1):
        powers.append(powers[-1] @ step)
    return np.stack(powers, axis=-1).astype("float32")


# The function of each kind, and its options with their defaults.
_KINDS: dict[str, tuple[Callable[..., Array], dict[str, float]]] = {
    "walks": (_walks, {"num_walks": 50, "walk_length": 4, "halt_probability": 0.0, "seed": 0}),
    "distances": (_distances, {}),
    "paths": (_paths, {"hops": 5}),
    "walk_probabilities": (_walk_probabilities, {"num_steps": 8}),
}


def _digest(graphs: list[Graph], options: dict[str, float]) -> str:
    """A fingerprint of the graphs' edges and of the options."""
    digest = hashlib.sha256(json.dumps([FORM_OF_FILES, options]).encode())
    for graph in graphs:
        digest.update(f"{graph.num_nodes} {len(graph.edges)} ".encode())
        digest.update(graph.edges.tobytes() + graph.edge_weights.tobytes())
    return digest.hexdigest()[:20]


def _write(file: Path, arrays: list[Array]) -> None:
    """Writes arrays of the same dtype and number of axes, one after the other in one array."""
    values = np.concatenate([array.ravel() for array in arrays])
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file) as path, path.open("wb") as opened:
        np.savez(opened, values=values, shapes=np.array([array.shape for array in arrays]))


def _read(file: Path) -> list[Array] | None:
    """The arrays of a file; `None` without a file, or if it is damaged."""
    try:
        with np.load(file) as loaded:
            values, shapes = loaded["values"], loaded["shapes"]
        ends = np.cumsum(shapes.prod(axis=1))[:-1]
        parts = np.split(values, ends)
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile):
        return None
