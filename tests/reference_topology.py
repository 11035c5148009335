"""Naive tree, graph and walk matrices, node by node, for torch tensors in float64."""

import numpy as np
import torch

from keras_graphattn.ops import random_walks


def random_parents(count, kind="random", seed=0, cut=0.1):
    """Parents of a forest, with nodes in random order. Some are cut off: single nodes occur."""
    generator = np.random.default_rng(seed)
    above = np.full(count, -1)
    reach = {"random": count, "path": 1, "deep": 4, "balanced": 0, "star": 0}.get(kind)
    for node in range(1, count):
        if kind == "balanced":
            above[node] = (node - 1) // 2
        elif kind == "star":
            above[node] = 0
        elif kind == "caterpillar":  # half of the nodes form a path, the others are attached to it
            spine = (count + 1) // 2
            above[node] = node - 1 if node < spine else generator.integers(0, spine)
        else:
            above[node] = node - 1 - generator.integers(0, min(reach, node))
        if generator.random() < cut:
            above[node] = -1
    names = generator.permutation(count)
    parents = np.full(count, -1)
    for node in range(count):
        parents[names[node]] = names[above[node]] if above[node] >= 0 else -1
    return parents


def random_edges(count, degree=3.0, seed=0):
    """Edges of a random graph; some nodes have no edge."""
    generator = np.random.default_rng(seed)
    rows, columns = np.triu_indices(count, 1)
    chosen = generator.random(len(rows)) < degree / max(count - 1, 1)
    return np.stack([rows[chosen], columns[chosen]], axis=1)


def parent_edges(parents):
    return [(node, int(above)) for node, above in enumerate(parents) if above >= 0]


def shortest_paths(count, edges, weights=None):
    """All distances, by a search from every node; infinite if there is no path."""
    near = [[] for _ in range(count)]
    weights = np.ones(len(edges)) if weights is None else weights
    for (one, other), weight in zip(edges, weights, strict=True):
        near[one].append((other, weight))
        near[other].append((one, weight))
    distances = np.full((count, count), np.inf)
    for start in range(count):
        found = {start: 0.0}
        waiting = [start]
        for node in waiting:  # in a forest there is only one path
            for other, weight in near[node]:
                if other not in found:
                    found[other] = found[node] + weight
                    waiting.append(other)
        distances[start, waiting] = [found[node] for node in waiting]
    return distances


def exponential_matrix(distances, rate, offset):
    """exp(a dist + b) within trees, 0 between trees, of shape (N, T, T)."""
    distances = torch.as_tensor(distances)
    known = torch.isfinite(distances)
    factors = torch.exp(
        rate[:, None, None] * torch.where(known, distances, 0.0) + offset[:, None, None]
    )
    return torch.where(known, factors, 0.0)


def table_matrix(distances, table):
    """table[dist] within trees, of shape (N, T, T); 0 between trees and beyond the table."""
    distances = torch.as_tensor(distances)
    places = torch.where(distances < len(table), distances, float(len(table))).long()
    padded = torch.cat([table, torch.zeros_like(table[:1])])
    return padded[places].permute(2, 0, 1)


def graph_matrix(count, edges, operator, weights=None):
    """The plain or normalised Laplacian, or the adjacency matrix, entry by entry."""
    weights = torch.ones(len(edges), dtype=torch.float64) if weights is None else weights
    adjacency = torch.zeros((count, count), dtype=torch.float64)
    one, other = torch.as_tensor(np.asarray(edges, "int64").reshape((-1, 2))).T
    adjacency = adjacency.index_put((one, other), torch.as_tensor(weights))
    adjacency = adjacency + adjacency.T
    degrees = adjacency.sum(1)
    if operator == "adjacency":
        return adjacency
    if operator == "laplacian":
        return torch.diag(degrees) - adjacency
    scale = torch.where(degrees > 0, torch.where(degrees > 0, degrees, 1.0) ** -0.5, 0.0)
    kept = torch.diag((degrees > 0).double())
    return kept - scale[:, None] * adjacency * scale


def diffusion_matrix(matrix, time):
    """exp(-t S) for each head, of shape (N, T, T)."""
    return torch.linalg.matrix_exp(-time[:, None, None] * matrix)


def positive_exponential(matrix, time, operator):
    """exp(-t L) or exp(t A) by only positive terms and squares, so that each entry is exact."""
    shift = 0.0 if operator == "adjacency" else matrix.diagonal().max()
    identity = torch.eye(len(matrix), dtype=torch.float64)
    positive = matrix if operator == "adjacency" else shift * identity - matrix
    largest = float((time.max() * positive.sum(1).max()).detach())
    halvings = max(0, int(np.ceil(np.log2(max(largest, 1e-9)))))
    step = time[:, None, None] / 2**halvings
    term = total = identity.expand(len(time), -1, -1)
    for k in range(1, 30):
        term = step / k * (positive @ term)
        total = total + term
    total = total * torch.exp(-step * shift)
    for _ in range(halvings):
        total = total @ total
    return total


def hypercube_matrix(length, time):
    """exp(-t L) of the hypercube for each head; `time` of shape (N,) or (d, N)."""
    result = torch.eye(length, dtype=torch.float64).expand(time.shape[-1], -1, -1)
    for bit in range(length.bit_length() - 1):
        edges = [(i, i ^ (1 << bit)) for i in range(length) if not i >> bit & 1]
        of_bit = time if time.ndim == 1 else time[bit]
        result = diffusion_matrix(graph_matrix(length, edges, "laplacian"), of_bit) @ result
    return result


def walk_features(walks, decay):
    """f_v by counting, of shape (N, T, T)."""
    count, number, length = walks.shape
    features = torch.zeros((len(decay), count, count), dtype=torch.float64)
    for node in range(count):
        for walk in walks[node]:
            for step in range(length):
                if walk[step] >= 0:
                    place = torch.zeros_like(features)
                    place[:, node, walk[step]] = 1.0
                    features = features + (decay**step)[:, None, None] * place / number
    return features


def walk_matrix(features, normalization=1.0):
    norms = features.norm(dim=-1) ** normalization
    products = features @ features.transpose(1, 2)
    return products / torch.clamp(norms[:, :, None] * norms[:, None, :], min=1e-300)


def loaded_features(adjacency, walks, halt, normalized):
    """sum over walks of their loads, walk by walk: (L, T, T). Loads come from single steps."""
    count, number, length = walks.shape
    degrees = adjacency.sum(axis=1)
    features = np.zeros((length, count, count))
    for start, walk in np.ndindex(count, number):
        load = 1.0
        for step, node in enumerate(walks[start, walk]):
            if node < 0:
                break
            if step:
                before = walks[start, walk, step - 1]
                probability = (1.0 - halt) * adjacency[before, node] / degrees[before]
                weight = adjacency[before, node]
                if normalized:
                    weight = weight / np.sqrt(degrees[before] * degrees[node])
                load = load * weight / probability
            features[step, start, node] += load / number
    return torch.tensor(features)


def random_feature_matrix(graph, seed, modulation, number, halt, operator):
    """F G^T from the walks that the mask draws; the modulation has shape (L, N)."""
    walks = random_walks(graph, 2 * number, len(modulation), seed, halt)
    left, right = (
        torch.einsum(
            "ln,lvi->nvi",
            modulation,
            loaded_features(graph.toarray(), some, halt, operator == "normalized_adjacency"),
        )
        for some in (walks[:, :number], walks[:, number:])
    )
    return left @ right.transpose(1, 2)
