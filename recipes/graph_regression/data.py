"""Molecules with a number to predict: ZINC or PCQM4M from files, or generated graphs like them.

A generated molecule is a random tree of 10 to 24 atoms, with up to three rings.
No two rings share a bond. Then atoms get types, and some bonds become double or triple; no atom has
more bonds than its valence. Its property is `penalised_property`.

The input of Graphormer is here, too: the types of the bonds along shortest paths.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.sparse.csgraph import shortest_path

from keras_graphattn.graphs import Graph
from recipes.common.command.parsing import UsageError
from recipes.common.data.graphs import GraphProblem
from recipes.common.data.pcqm4m import BOND_TYPES, read_pcqm4m
from recipes.common.data.sources import refuse_missing
from recipes.common.data.zinc import PARTS, Molecule, read_zinc

MADE, SUBSET, FULL, QUANTUM = "made", "zinc", "zinc_full", "pcqm4m"  # data sets
BONDS = 3  # types of bonds: single, double, triple
ZINC_ATOMS, LARGEST_DEGREE = 28, 6

# types of generated atoms: carbon, nitrogen, oxygen, sulphur, fluorine
VALENCES = np.array([4, 3, 2, 2, 1])
SHARES = np.array([0.65, 0.14, 0.12, 0.04, 0.05])
CONTRIBUTIONS = np.array([0.3, -0.5, -0.4, 0.2, 0.4])
UNSATURATION = 0.3
SHORTEST_RING, LONGEST_RING, FREE_OF_PENALTY = 5, 9, 6  # atoms


def load(options: argparse.Namespace) -> GraphProblem:
    """The three splits.

    Raises:
        UsageError: If the files of ZINC or PCQM4M cannot be read.
    """
    if options.dataset == MADE:
        sizes = (options.train_examples, options.evaluation_examples, options.evaluation_examples)
        splits = [
            [make(np.random.default_rng([options.data_seed, part, i])) for i in range(size)]
            for part, size in enumerate(sizes)
        ]
        return GraphProblem(MADE, [], *splits)
    files = ", ".join(f"{name}.pickle" for name in PARTS.values())
    if options.dataset == QUANTUM:
        refuse_missing({"rdkit": "rdkit"})
        files = "split_dict.pt and raw/data.csv.gz"
    if options.data_dir is None:
        raise UsageError(f"--dataset {options.dataset} needs --data-dir, with {files} in it")
    try:
        splits = (_quantum if options.dataset == QUANTUM else _zinc)(options)
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        raise UsageError(f"--data-dir {options.data_dir} has no {missing}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"--dataset {options.dataset} cannot be read: {error}") from error
    return GraphProblem(options.dataset, [], *splits)


def _zinc(options: argparse.Namespace) -> list[list[Graph]]:
    """The three parts of ZINC."""
    molecules = read_zinc(options.data_dir, options.dataset == SUBSET)
    return [[graph_of(molecule, ZINC_ATOMS) for molecule in molecules[part]] for part in PARTS]


def _quantum(options: argparse.Namespace) -> list[list[Graph]]:
    """PCQM4M: a part of its training molecules to validate on, its validation molecules to test."""
    parts = read_pcqm4m(options.data_dir, options.train_examples, options.data_seed)
    training, test = parts.values()
    order = np.random.default_rng([options.data_seed, 1]).permutation(len(training))
    held_out = math.ceil(options.validation_fraction * len(training))
    if held_out == len(training):
        raise UsageError(
            f"--validation-fraction {options.validation_fraction} leaves none of the "
            f"{len(training)} training molecules to train on"
        )
    validation, train = ([training[i] for i in np.sort(p)] for p in np.split(order, [held_out]))
    return [train, validation, test]


def bond_types(options: argparse.Namespace) -> int:
    """The number of types of bonds of a data set."""
    return BOND_TYPES if options.dataset == QUANTUM else BONDS


def graph_of(molecule: Molecule, atom_types: int) -> Graph:
    """The graph: a node's features are its type and its degree, each as a one-hot vector."""
    atoms, bonds = (np.asarray(array).astype("int64") for array in molecule[:2])
    if not 0 <= atoms.min() <= atoms.max() < atom_types or not 0 <= bonds.min() <= bonds.max():
        raise ValueError(f"types of atoms must be from 0 to {atom_types - 1}")
    if bonds.max() > BONDS:
        raise ValueError(f"types of bonds must be from 1 to {BONDS}; one is {bonds.max()}")
    degrees = np.minimum((bonds > 0).sum(axis=1), LARGEST_DEGREE)
    features = np.hstack([np.eye(atom_types)[atoms], np.eye(LARGEST_DEGREE + 1)[degrees]])
    edges = np.argwhere(np.triu(bonds))
    return Graph(
        edges,
        node_features=features,
        edge_features=bonds[tuple(edges.T)][:, None] - 1,
        label=np.float32(molecule.label),
    )


def bonds_on_paths(graph: Graph, paths: np.ndarray) -> np.ndarray:
    """The types of the bonds on shortest paths, (n, n, hops); -1 after the end of a path.

    The paths are numbers of edges, as `precompute(graphs, "paths")` has them.
    """
    return np.append(graph.edge_features[:, 0], -1)[paths].astype("int8")


def make(random: np.random.Generator) -> Graph:
    """One molecule with its property."""
    bonds = random_tree(random, int(random.integers(10, 25)))
    rings = close_rings(random, bonds, int(random.integers(0, 4)))
    degrees = (bonds > 0).sum(axis=1)
    shares = SHARES * (degrees[:, None] <= VALENCES)  # (n, types)
    shares = np.cumsum(shares / shares.sum(axis=1, keepdims=True), axis=1)
    atoms = (random.random((len(degrees), 1)) > shares).sum(axis=1)
    for first, second in random.permutation(np.argwhere(np.triu(bonds))):
        free = (VALENCES[atoms] - bonds.sum(axis=1))[[first, second]].min()
        more = min(int(free), int(random.choice(BONDS, p=[0.7, 0.25, 0.05])))
        bonds[first, second] = bonds[second, first] = 1 + more
    label = penalised_property(atoms, bonds, rings)
    return graph_of(Molecule(atoms, bonds, label), len(VALENCES))


def penalised_property(atoms: np.ndarray, bonds: np.ndarray, rings: Sequence[int]) -> float:
    """The sum of the atoms' numbers, minus 0.3 for each bond above a single one, minus penalties.

    The penalty of a ring is the number of its atoms above six. Atoms (n,) and bonds (n, n) are
    types; 0 is no bond. Rings are numbers of atoms.
    """
    above_single = np.maximum(np.triu(bonds) - 1, 0).sum()
    penalty = sum(max(size - FREE_OF_PENALTY, 0) for size in rings)
    return float(CONTRIBUTIONS[atoms].sum() - UNSATURATION * above_single - penalty)


def random_tree(random: np.random.Generator, nodes: int) -> np.ndarray:
    """A tree as single bonds, (n, n); no atom has more than three. Half of it grows in chains."""
    bonds = np.zeros((nodes, nodes), "int64")
    for node in range(1, nodes):
        open_places = np.flatnonzero(bonds[:node].sum(axis=1) < 3)
        last = node - 1
        parent = last if random.random() < 0.5 else int(random.choice(open_places))
        bonds[node, parent] = bonds[parent, node] = 1
    return bonds


def close_rings(random: np.random.Generator, bonds: np.ndarray, count: int) -> list[int]:
    """Closes up to `count` rings by new bonds, in place; returns their numbers of atoms.

    No bond is in two rings, and no atom has more than four bonds.
    """
    distances, before = shortest_path(bonds, unweighted=True, return_predecessors=True)
    free = bonds > 0  # the bonds that are in no ring
    sizes = []
    for _ in range(count):
        allowed = (bonds.sum(axis=1) < 4)[:, None] & (bonds.sum(axis=1) < 4)
        allowed &= (distances + 1 >= SHORTEST_RING) & (distances + 1 <= LONGEST_RING)
        for first, second in random.permutation(np.argwhere(np.triu(allowed))):
            path = [int(second)]
            while path[-1] != first:
                path.append(int(before[first, path[-1]]))
            steps = (path[:-1], path[1:])
            if free[steps].all():
                free[steps] = free[steps[::-1]] = False
                bonds[first, second] = bonds[second, first] = 1
                sizes.append(len(path))
                break
    return sizes
