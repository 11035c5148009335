"""Every bias class with its inputs for a call, and its matrix in float64 as a function of weights.

The inputs are those of one batch of two graphs of `LENGTH` nodes, of which the last are apart from
the others. The twins form the matrix entry by entry.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from keras_graphattn import biases, masks
from tests import reference_topology as topology
from tests.hub.t5_bias import bucket

LENGTH, BATCH, SPLIT, TYPES, HOPS, STEPS = 16, 2, 10, 3, 4, 5
PARENTS = np.array([-1, 0, 0, 1, 1, 2, 3, 5, 7, 8, -1, 10, 10, 11, 13, -1])
EDGES = np.array([[p, i] for i, p in enumerate(PARENTS) if p >= 0] + [[2, 4], [0, 9], [12, 14]])


# numbers of edges; -1 without a path
DISTANCES = np.nan_to_num(topology.shortest_paths(LENGTH, EDGES), posinf=-1).astype("int32")


def _inputs():
    """Distances, types of edges on paths, and probabilities of walks of the graph."""
    generator = np.random.default_rng(5)
    adjacency = np.zeros((LENGTH, LENGTH))
    adjacency[tuple(EDGES.T)] = adjacency[tuple(EDGES[:, ::-1].T)] = 1.0
    distances = DISTANCES.copy()
    distances[0, :] = distances[:, 0] = -2  # a virtual node
    paths = generator.integers(0, TYPES, (LENGTH, LENGTH, HOPS))
    paths[np.arange(HOPS) >= np.abs(distances)[..., None]] = -1
    paths[distances < 0] = -1
    step = adjacency / np.maximum(adjacency.sum(1, keepdims=True), 1.0)
    walks = np.stack([np.linalg.matrix_power(step, k) for k in range(STEPS)], axis=-1)
    both = {"distances": distances, "paths": paths.astype("int8"), "walk_probabilities": walks}
    return {name: np.repeat(x[None], BATCH, axis=0) for name, x in both.items()}


INPUTS = _inputs()
INPUTS["walk_probabilities"] = INPUTS["walk_probabilities"].astype("float32")


class Case(NamedTuple):
    make: Callable[..., Any]  # of the options that all biases share
    matrix: Callable[[dict[str, Any], int], Any]  # weights by name, T -> (B?, N?, T, T)
    is_bound: bool = False  # to LENGTH tokens, by its inputs


def inputs_of(bias):
    return {name: INPUTS[name] for name in bias.inputs_at_call}


def away(length):
    """j - i for all pairs."""
    order = torch.arange(length, dtype=torch.float64)
    return order[None, :] - order[:, None]


def alibi(weights, length):
    return -torch.exp(weights["log_slopes"])[:, None, None] * away(length).abs()


def relative(buckets, farthest, both):
    def matrix(weights, length):
        rows = [
            [bucket(j - i, not both, buckets, farthest) for j in range(length)]
            for i in range(length)
        ]
        return weights["buckets"][torch.tensor(rows)].permute(2, 0, 1)

    return matrix


def shortest_path(weights, length, most=3):
    table = weights["of_distance"]
    rows = [
        most + 1 if d == -1 else most + 2 if d == -2 else min(d, most)
        for d in INPUTS["distances"].ravel()
    ]
    rows = torch.tensor(rows).reshape(BATCH, LENGTH, LENGTH)
    return table[rows].permute(0, 3, 1, 2)


def edge_path(weights, length):
    paths, table = INPUTS["paths"], weights["of_edge"]
    matrix = torch.zeros((BATCH, table.shape[-1], LENGTH, LENGTH), dtype=torch.float64)
    for b, i, j in np.ndindex(BATCH, LENGTH, LENGTH):
        edges = [(hop, kind) for hop, kind in enumerate(paths[b, i, j]) if kind >= 0]
        if edges:
            matrix[b, :, i, j] = sum(table[hop, kind] for hop, kind in edges) / len(edges)
    return matrix


def walks(weights, length):
    numbers = torch.tensor(INPUTS["walk_probabilities"]).double()
    return torch.einsum("btsk,kn->bnts", numbers, weights["of_step"])


def hop_decay(weights, length, free=1.5):
    distances = torch.tensor(INPUTS["distances"])[:, None]
    above = (distances - free).clamp(min=0.0)
    matrix = -torch.exp(weights["log_rates"])[:, None, None] * above
    return torch.where(distances == -1, -torch.inf, matrix)


def exponentials(weights, length):
    """The logarithm of a causal sum of two exponentials."""
    rates, sizes = torch.exp(weights["mask/log_rates"]), torch.exp(weights["mask/log_weights"])
    powers = torch.exp(-rates[:, :, None, None] * away(length).abs()) * sizes[:, :, None, None]
    return torch.log(torch.tril(powers.sum(1)))


def added(*twins):
    """The sum of biases whose weights are those of `first`, `second`, ..."""

    def matrix(weights, length):
        total = 0.0
        for name, twin in zip(("first", "second"), twins, strict=True):
            own = {n.removeprefix(f"{name}/"): x for n, x in weights.items() if n.startswith(name)}
            total = total + twin(own, length)
        return total

    return matrix


CASES = {
    "Alibi": Case(biases.Alibi, alibi),
    "Alibi, learned": Case(lambda **o: biases.Alibi(0.3, trainable_slopes=True, **o), alibi),
    "RelativePositions": Case(biases.RelativePositions, relative(32, 128, True)),
    "RelativePositions, one side": Case(
        lambda **o: biases.RelativePositions(6, 9, bidirectional=False, **o), relative(6, 9, False)
    ),
    "ShortestPath": Case(lambda **o: biases.ShortestPath(3, **o), shortest_path, True),
    "EdgePath": Case(lambda **o: biases.EdgePath(TYPES, HOPS + 1, **o), edge_path, True),
    "WalkProbabilities": Case(lambda **o: biases.WalkProbabilities(STEPS, **o), walks, True),
    "HopDecay": Case(lambda **o: biases.HopDecay(1.5, 0.3, **o), hop_decay, True),
    "LogMask": Case(
        lambda **o: biases.LogMask(masks.Exponential(2, causal=True, name="mask"), **o),
        exponentials,
    ),
    "Sum": Case(
        lambda **o: biases.Sum(
            [biases.ShortestPath(3, name="first"), biases.EdgePath(TYPES, HOPS, name="second")], **o
        ),
        added(shortest_path, edge_path),
        True,
    ),
}
