"""Tree, diffusion, hypercube and walk masks, each with its matrix node by node."""

import keras
import numpy as np
import torch

from keras_graphattn.masks import (
    GraphDiffusion,
    GraphRandomFeatures,
    Hypercube,
    RandomWalk,
    Tree,
)
from tests import reference_topology as reference
from tests.numerics import (
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

HEADS, WIDTH = 2, 3


def tree(count=23, kind="random", function="exponential", weighted=True, seed=0):
    """Makes a tree mask, and its matrix as a function of its weights."""
    parents = reference.random_parents(count, kind, seed)
    weighted = weighted and function == "exponential"
    lengths = np.random.default_rng(seed).uniform(0.2, 1.5, count) if weighted else None
    links = reference.parent_edges(parents)
    distances = reference.shortest_paths(
        count, links, None if lengths is None else [lengths[node] for node, _ in links]
    )
    mask = Tree(parents, lengths, function=function)
    mask.build((None, count, HEADS, WIDTH))
    if function == "table":
        return mask, {}, lambda log_table: reference.table_matrix(distances, torch.exp(log_table))
    return mask, {}, lambda *weights: reference.exponential_matrix(distances, *weights)


def trees_of_batch(function="exponential", count=11):
    batch = np.stack([reference.random_parents(count, kind, 3) for kind in ("random", "path")])
    options = {"max_distance": 4} if function == "table" else {}
    mask = Tree(function=function, **options)
    mask.build((None, count, HEADS, WIDTH))
    each = [reference.shortest_paths(count, reference.parent_edges(p)) for p in batch]

    def matrix(*weights):
        if function == "table":
            found = [reference.table_matrix(d, torch.exp(weights[0])) for d in each]
        else:
            found = [reference.exponential_matrix(d, *weights) for d in each]
        return torch.stack(found)

    return mask, {"parents": batch.astype("int32")}, matrix


def diffusion(count=21, operator="laplacian", seed=0):
    edges = reference.random_edges(count, seed=seed)
    weights = np.random.default_rng(seed).uniform(0.3, 2.0, len(edges))
    mask = GraphDiffusion(edges, weights, count, operator=operator, initial_time=[0.3, 0.9])
    mask.build((None, count, HEADS, WIDTH))
    matrix = reference.graph_matrix(count, edges, operator, torch.tensor(weights))

    def full(logit):
        time = mask.max_time * torch.sigmoid(logit)
        return reference.heat_matrix(matrix, time, operator)

    return mask, {}, full


def diffusion_of_batch(operator, count=9):
    edges = np.full((2, 14, 2), -1, "int32")
    for example, seed in enumerate((1, 2)):
        found = reference.random_edges(count, 2.0, seed)[:14]
        edges[example, : len(found)] = found
    bound = None if operator == "normalized_laplacian" else 2.0 * count
    mask = GraphDiffusion(operator=operator, spectral_bound=bound, initial_time=[0.2, 0.7])
    mask.build((None, count, HEADS, WIDTH))

    def full(logit):
        time = mask.max_time * torch.sigmoid(logit)
        each = [[tuple(edge) for edge in example if edge[0] >= 0] for example in edges]
        found = [reference.graph_matrix(count, one, operator) for one in each]
        return torch.stack([reference.heat_matrix(one, time, operator) for one in found])

    return mask, {"edges": edges}, full


def hypercube(length=16, dimension=None):
    mask = Hypercube([0.4, 0.9], dimension)
    mask.build((None, length, HEADS, WIDTH))
    return mask, {}, lambda log_time: reference.hypercube_matrix(length, torch.exp(log_time))


def walks_of(count=13, **options):
    generator = np.random.default_rng(0)
    walks = generator.integers(-1, count, (count, 3, 3))
    walks[:, :, 0] = np.arange(count)[:, None]
    mask = RandomWalk(walks=walks, learn_decay=True, decay=[0.5, 0.9], **options)
    mask.build((None, count, HEADS, WIDTH))
    a = mask.normalization
    return (
        mask,
        {},
        lambda log: reference.walk_matrix(reference.walk_features(walks, torch.exp(log)), a),
    )


def random_features_of(count=13, operator="normalized_adjacency"):
    edges = reference.random_edges(count, seed=1)
    weights = np.random.default_rng(0).uniform(0.3, 2.0, len(edges))
    series = [[1.0, 2.0], [1.0, 0.0], [0.7, 1.1]]  # a step of the second head is never seen
    options = {"series": series, "operator": operator, "num_walks": 3, "halt_probability": 0.2}
    mask = GraphRandomFeatures(edges, weights, count, seed=4, **options)
    mask.build((None, count, HEADS, WIDTH))
    seen = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)

    def matrix(log):
        graph, settings = mask._adjacency, {"number": 3, "halt": 0.2, "operator": operator}
        return reference.random_feature_matrix(graph, 4, seen * torch.exp(log), **settings)

    return mask, {}, matrix


def walks_of_batch(count=7):
    walks = np.random.default_rng(1).integers(-1, count, (2, count, 2, 3)).astype("int32")
    mask = RandomWalk(learn_decay=True, decay=0.7)
    mask.build((None, count, HEADS, WIDTH))

    def full(log):
        each = [reference.walk_features(w, torch.exp(log)) for w in walks]
        return torch.stack([reference.walk_matrix(features) for features in each])

    return mask, {"walks": walks}, full


def arrays_of(mask, count, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((2, count, HEADS, WIDTH)).astype("float32")
    noise = [0.2 * generator.standard_normal(tuple(w.shape)) for w in mask.trainable_variables]
    weights = [to_numpy(w) + n for w, n in zip(mask.trainable_variables, noise, strict=True)]
    return x, weights


def applied(mask, path, inputs):
    """Returns a function from x and the mask's weights to M x, to differentiate."""

    def function(x, *values):
        pairs = zip(mask.trainable_variables, values, strict=True)
        with keras.StatelessScope(state_mapping=list(pairs)):
            return mask.apply(x, path, **inputs)

    return function


def expected(matrix, x, weights):
    """Returns M x and its gradients, by the matrix as a function of the mask's weights."""

    def naive(x, *weights):
        full = matrix(*weights)
        full = full if full.ndim == 4 else full[None].expand(len(x), -1, -1, -1)
        return torch.einsum("bnts,bsnd->btnd", full, x)

    return reference_value_and_gradients(naive, x, *weights)


def check(mask, inputs, matrix, count, path, seed=0, way=None, floor=None):
    """Compares the mask's product and all gradients with those of the matrix.

    The gradient of a weight is a sum over all nodes with random signs. Its size is usually about
    |M x|. If the sum cancels, its error is measured relative to `floor` times this size.
    """
    x, weights = arrays_of(mask, count, seed)
    function = applied(mask, path, inputs)
    value, gradients = value_and_gradients(function, x, *weights, way=way)
    right, right_gradients = expected(matrix, x, weights)
    assert_close(value, right, 1e-5)
    if floor is None:
        assert_all_close(gradients, right_gradients, 1e-5)
        return
    assert_close(gradients[0], right_gradients[0], 1e-5, what="gradient 0")
    least = floor * np.linalg.norm(right)
    for k in range(1, len(right_gradients)):
        assert_close(gradients[k], right_gradients[k], 1e-5, least, f"gradient {k}")
