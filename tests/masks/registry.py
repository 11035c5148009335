"""Every mask class with random settings, its inputs for a call, and its matrix in float64.

A case is a function of a NumPy generator and a length. It returns a built mask, its inputs, its
matrix as a function of its weights (torch, float64), and the largest allowed error. The error is
relative to the largest entry of its row.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from keras import ops

from keras_graphattn import masks
from keras_graphattn.ops import Forest
from tests import reference_kernel, topology_cases
from tests import reference_topology as reference
from tests.masks import sequence_cases

HEADS = 2
BOUND = 5e-6

# Paths with a transform or a difference of sums are exact only relative to the largest row.
RELATIVE_TO_LARGEST = {
    ("Toeplitz", "fft"),
    ("BlockToeplitz", "fft"),
    ("Tree", "centroids"),
    ("Tree", "depths"),
}


@dataclass
class Case:
    mask: Any
    matrix: Any  # function of the weights: (B or 1, N or 1, T, T), float64
    length: int
    inputs: dict = field(default_factory=dict)
    bound: float = BOUND
    batch: int = 1


def built(mask, length):
    mask.build((None, length, HEADS, 3))
    return mask


def of_sequence(mask, length, matrix, **options):
    """A built mask whose matrix is a function of the length and of its weights by name."""
    names = [weight.name for weight in mask.trainable_variables]
    fixed = {
        x.name: torch.tensor(ops.convert_to_numpy(x)).double() for x in mask.non_trainable_variables
    }

    def of_weights(*weights):
        return matrix(length, dict(zip(names, weights, strict=True)) | fixed, **options)

    return Case(mask, of_weights, length)


def of_topology(made, length, bound=BOUND, batch=1):
    mask, inputs, matrix = made
    return Case(mask, matrix, length, inputs, bound, batch)


def hubs(generator, length):
    """Edges of a graph with two hubs, a path, sparse random edges, and isolated nodes."""
    count = max(1, length - length // 6)
    edges = {(0, node) for node in range(1, count // 3)}
    edges |= {(count // 4, node) for node in range(count // 4 + 1, count // 2)}
    edges |= {(node, node + 1) for node in range(count // 2 + 2, count - 1)}
    for _ in range(count // 4):
        one, other = np.sort(generator.integers(0, count, 2))
        if (one < count // 2 + 2) == (other < count // 2 + 2):  # keeps two components separate
            edges.add((int(one), int(other)))
    names = generator.permutation(length)
    edges = [(one, other) for one, other in edges if one < other]
    return names[np.array(sorted(edges), "int64").reshape((-1, 2))]


def causal(generator, length):
    return Case(masks.Causal(), lambda: reference_kernel.causal_matrix(length), length)


def segments(generator, length):
    ids = np.sort(generator.integers(-1, 4, (2, length)))
    matrix = reference_kernel.segment_matrix(ids)
    return Case(masks.Segments(), lambda: matrix, length, {"segment_ids": ids}, batch=2)


def entries(generator, length):
    shape = [(length, length), (2, length, length), (2, HEADS, length, length)]
    drawn = generator.uniform(0.0, 1.0, shape[generator.integers(3)]) ** 9
    given = drawn.astype("float32")
    full = torch.tensor(given.astype("float64"))
    full = full[None, None] if full.ndim == 2 else full[:, None] if full.ndim == 3 else full
    batch = 1 if given.ndim == 2 else 2
    return Case(masks.Entries(), lambda: full, length, {"entries": given}, batch=batch)


def distance_table(generator, length):
    mask = built(masks.DistanceTable(int(generator.integers(1, 6))), length)
    mask.log_table.assign(generator.uniform(-3.0, 3.0, tuple(mask.log_table.shape)))
    distances = generator.integers(-2, 9, (2, length, length)).astype("int32")

    def matrix(log_table):
        rows = np.where(distances == -2, mask.max_distance + 1, distances)
        rows = np.where(distances > mask.max_distance, mask.max_distance, rows)
        factors = torch.exp(log_table)[np.maximum(rows, 0)].permute(0, 3, 1, 2)
        return factors * torch.tensor(distances != -1)[:, None]

    return Case(mask, matrix, length, {"distances": distances}, batch=2)


def exponential(generator, length):
    decays = int(generator.integers(1, 3))
    rates = 10.0 ** generator.uniform(-6, 1.5, (HEADS, decays))
    two_sided = not generator.integers(2)
    mask = built(masks.Exponential(decays, not two_sided, rates), length)
    case = of_sequence(mask, length, sequence_cases.exponential)
    if two_sided:
        return case
    return Case(mask, lambda *weights: torch.tril(case.matrix(*weights)), length)


def gated_decay(generator, length):
    gates = -(10.0 ** generator.uniform(-6, 2, (2, length, HEADS)))
    gates[generator.random(gates.shape) < 0.1] = 0.0
    gates[generator.random(gates.shape) < 0.05] = -np.inf
    gates = gates.astype("float32")
    matrix = reference_kernel.gated_matrix(torch.tensor(gates.astype("float64")))
    return Case(masks.GatedDecay(), lambda: matrix, length, {"log_gates": gates}, batch=2)


def toeplitz(generator, length):
    slopes = (None, 10.0 ** generator.uniform(-4, 1, HEADS))[generator.integers(2)]
    is_causal = bool(generator.integers(2))
    mask = built(masks.Toeplitz(length + 3, is_causal, slopes), length)
    spread = 0.0 if mask._in_tiles and slopes is not None else 3.0
    if spread:
        drawn = generator.uniform(-spread, spread, tuple(mask.log_factors.shape))
        mask.log_factors.assign(drawn)
    return of_sequence(mask, length, sequence_cases.toeplitz, one_sided=is_causal)


def block_toeplitz(generator, length):
    grid = [(length,), (2, 3), (2, 2, 3)][generator.integers(3)]
    prefix = int(generator.integers(0, 3))
    mask = built(masks.BlockToeplitz(grid, prefix), int(np.prod(grid)) + prefix)
    mask.log_factors.assign(generator.uniform(-3.0, 3.0, tuple(mask.log_factors.shape)))
    return of_sequence(mask, mask.length, sequence_cases.grid, shape=grid, prefix=prefix)


def low_rank(generator, length):
    mask = built(masks.LowRank(int(generator.integers(1, 4)), length + 2), length)
    for weight in mask.weights:
        weight.assign(generator.uniform(-6.0, 3.0, tuple(weight.shape)))
    return of_sequence(mask, length, sequence_cases.low_rank, name="")


def exponential_positions(generator, length):
    sizes = [int(generator.integers(1, 4)) for _ in range(2)]
    mask = masks.ExponentialPositions(length + 2, *sizes, seed=int(generator.integers(1000)))
    built(mask, length)
    for weight in (mask.left_positions, mask.right_positions):
        weight.assign(generator.uniform(-1.5, 1.5, tuple(weight.shape)))
    return of_sequence(mask, length, sequence_cases.exponential_positions, name="")


def stochastic_positions(generator, length):
    mask = masks.StochasticPositions(3, True, int(generator.integers(1000)))
    built(mask, length)
    for weight in (mask.gain_logits, mask.phases):
        weight.assign(generator.uniform(-2.0, 2.0, tuple(weight.shape)))
    return of_sequence(mask, length, sequence_cases.stochastic, name="")


def hypercube(generator, length):
    length = [2, 4, 16][generator.integers(3)]
    dimension = (None, length.bit_length() - 1)[generator.integers(2)]
    time = 10.0 ** generator.uniform(-5, 2, HEADS)
    return of_topology(topology_cases.hypercube(length, dimension, time), length)


def tree(generator, length):
    kind = ["random", "path", "deep", "balanced", "star", "caterpillar"][generator.integers(6)]
    cut = [0.0, 0.15][generator.integers(2)]  # one tree, or several
    parents = reference.random_parents(length, kind, int(generator.integers(1000)), cut=cut)
    if generator.integers(2):
        last = [None, int(generator.integers(0, 6))][generator.integers(2)]
        made = topology_cases.of_forests(parents, function="table", max_distance=last)
        table = made[0].log_table
        table.assign(generator.uniform(-3.0, 3.0, tuple(table.shape)))
        return of_topology(made, length)
    lengths = generator.uniform(0.0, 1.5, length)
    farthest = Forest(parents, lengths).farthest_distance()
    rates = [10.0 ** generator.uniform(-3, 1.5), -(10.0 ** generator.uniform(-3, 1.5))]
    rates = np.minimum(rates, 60.0 / max(farthest, 1.0))  # so that exp(a z) fits into float32
    start = {"initial_rate": rates, "initial_offset": generator.uniform(-60.0, 15.0, HEADS)}
    # the exponent, up to 60, is rounded to 6e-8 of it
    return of_topology(topology_cases.of_forests(parents, lengths, **start), length, bound=1e-5)


def trees_of_examples(generator, length):
    kinds = ["random", "path", "deep", "star"]
    drawn = [kinds[generator.integers(4)] for _ in range(2)]
    batch = np.stack([reference.random_parents(length, kind, 5, cut=0.15) for kind in drawn])
    lengths, options = None, {"function": "table", "max_distance": 4}
    function = ["exponential", "weighted", "table"][generator.integers(3)]
    if function != "table":
        rate = [-(10.0 ** generator.uniform(-3, 1.5)), 10.0 ** generator.uniform(-3, 0)]
        options = {"initial_rate": rate, "initial_offset": generator.uniform(-9.0, 9.0)}
    if function == "weighted":
        lengths = (10.0 ** generator.uniform(-4, 4, (2, length))).astype("float32")
        rate[1] = -(10.0 ** generator.uniform(-6, 3))
    return of_topology(topology_cases.of_forests(batch, lengths, **options), length, 1e-5, 2)


def diffusion(generator, length, operator="laplacian", longest=300.0):
    edges = hubs(generator, length)
    weights = 10.0 ** generator.uniform(-2, 1, len(edges)) if generator.integers(2) else None
    weights = None if weights is None else weights.astype("float32").astype("float64")
    whole = None if weights is None else torch.tensor(weights)
    matrix = reference.graph_matrix(length, edges, operator, whole)
    radius = float(torch.linalg.eigvalsh(matrix).abs().max()) or 1.0
    start = 10.0 ** generator.uniform(-4, np.log10(longest / 2), HEADS) / radius
    made = topology_cases.of_graphs(edges, length, operator, weights, initial_time=start)
    return of_topology(made, length, 3e-6 + 3e-7 * float(np.max(start)) * radius)


def graphs_of_examples(generator, length):
    operator = ["normalized_laplacian", "laplacian", "adjacency"][generator.integers(3)]
    each = [hubs(generator, length) for _ in range(2)]
    start = 4.0 if operator == "normalized_laplacian" else 3.0 / length
    return of_topology(
        topology_cases.of_graphs(each, length, operator, initial_time=start), length, batch=2
    )


def random_walk(generator, length):
    edges = hubs(generator, length)
    # powers of larger decays and norms are refused
    exact, a = bool(generator.integers(2)), generator.uniform(-1.0, 3.0)
    decay, steps = 10.0 ** generator.uniform(-1, 1, HEADS), int(generator.integers(1, 6))
    options = {"walk_length": steps, "learn_decay": True, "decay": decay, "normalization": a}
    options |= {"exact": True} if exact else {"num_walks": 3}
    mask = masks.RandomWalk(edges, num_nodes=length, **options)
    built(mask, length)
    parts = np.stack([step.toarray() for step in mask._features.steps])
    parts = torch.tensor(parts)

    def matrix(log_decay):
        powers = torch.exp(log_decay)[:, None] ** torch.arange(steps)
        features = torch.einsum("lvi,nl->nvi", parts, powers)
        return reference.walk_matrix(features, a)[None]

    return Case(mask, matrix, length, bound=1e-5)


def walks_of_examples(generator, length):
    walks = generator.integers(-1, length, (2, length, 2, 3))
    batch = int(generator.integers(1, 3))  # one example: walks that are given once
    made = topology_cases.of_walks(
        walks if batch > 1 else walks[0], decay=generator.uniform(0.3, 3.0)
    )
    return of_topology(made, length, batch=batch)


def random_features(generator, length):
    weights = 10.0 ** generator.uniform(-1, 1, len(edges := hubs(generator, length)))
    operator = ("normalized_adjacency", "adjacency")[generator.integers(2)]
    strength = generator.uniform(0.1, 1.0, HEADS) / (1.0 if operator[0] == "n" else 3.0 * length)
    options = {"series": "regularized_laplacian", "strength": strength, "operator": operator}
    options |= {"num_walks": 3, "walk_length": 4, "halt_probability": 0.3, "seed": 5}
    made = topology_cases.of_random_features(edges, weights, length, **options)
    return of_topology(made, length)


def product(generator, length):
    makers = [(exponential, causal), (toeplitz, causal), (low_rank, tree), (segments, diffusion)]
    makers += [(exponential, gated_decay), (gated_decay, segments)]
    one, other = (make(generator, length) for make in makers[generator.integers(len(makers))])
    mask = built(masks.Product([one.mask, other.mask]), length)
    count = len(one.mask.trainable_variables)

    def matrix(*weights):
        return one.matrix(*weights[:count]) * other.matrix(*weights[count:])

    inputs, batch = one.inputs | other.inputs, max(one.batch, other.batch)
    return Case(mask, matrix, length, inputs, bound=one.bound + other.bound, batch=batch)


CASES = {
    "Causal": [causal],
    "Segments": [segments],
    "DistanceTable": [distance_table],
    "Entries": [entries],
    "Exponential": [exponential],
    "GatedDecay": [gated_decay],
    "Toeplitz": [toeplitz],
    "BlockToeplitz": [block_toeplitz],
    "ExponentialPositions": [exponential_positions],
    "LowRank": [low_rank],
    "StochasticPositions": [stochastic_positions],
    "Hypercube": [hypercube],
    "Tree": [tree, trees_of_examples],
    "GraphDiffusion": [
        diffusion,
        lambda g, n: diffusion(g, n, "normalized_laplacian"),
        lambda g, n: diffusion(g, n, "adjacency", longest=60.0),
        graphs_of_examples,
    ],
    "RandomWalk": [random_walk, walks_of_examples],
    "GraphRandomFeatures": [random_features],
    "Product": [product],
}
EVERY = [(name, k) for name, makers in CASES.items() for k in range(len(makers))]
