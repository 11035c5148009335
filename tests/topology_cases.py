"""Tree, diffusion, hypercube and walk masks, each with its matrix node by node."""

import keras
import numpy as np
import torch

from keras_graphattn.masks import GraphDiffusion, GraphRandomFeatures, Hypercube, RandomWalk, Tree
from tests import reference_topology as reference
from tests.numerics import (
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

HEADS, WIDTH = 2, 3


# Each mask with its inputs at a call, and its matrix (B or 1, N, T, T) as a function of its weights


def built(mask, count):
    mask.build((None, count, HEADS, WIDTH))
    return mask


def of_forests(parents, lengths=None, **options):
    """A tree mask of one forest (T,), or of forests (B, T) that come with a call."""
    if parents.ndim == 1:
        mask, inputs = Tree(parents, lengths, **options), {}
    else:
        mask = Tree(edge_weights=lengths is not None, **options)
        inputs = {"parents": parents.astype("int32")}
        inputs |= {} if lengths is None else {"edge_weights": lengths}
    lengths = np.ones(parents.shape) if lengths is None else lengths.astype("float64")
    each = [
        reference.shortest_paths(len(above), links, [weights[node] for node, _ in links])
        for above, weights in zip(np.atleast_2d(parents), np.atleast_2d(lengths), strict=True)
        for links in [reference.parent_edges(above)]
    ]

    def matrix(*weights):
        if mask.function == "table":
            return torch.stack([reference.table_matrix(d, torch.exp(weights[0])) for d in each])
        return torch.stack([reference.exponential_matrix(d, *weights) for d in each])

    return built(mask, parents.shape[-1]), inputs, matrix


def of_graphs(graphs, count, operator, weights=None, **options):
    """A diffusion mask of the edges of one graph, or of a list of graphs that come with a call."""
    if not isinstance(graphs, list):
        mask, inputs = GraphDiffusion(graphs, weights, count, operator=operator, **options), {}
        graphs = [graphs]
    else:
        edges = np.full((len(graphs), max(map(len, graphs)), 2), -1, "int32")
        for example, own in enumerate(graphs):
            edges[example, : len(own)] = own
        bound = None if operator == "normalized_laplacian" else 2.0 * count
        mask = GraphDiffusion(operator=operator, spectral_bound=bound, **options)
        inputs = {"edges": edges}
    weights = None if weights is None else torch.tensor(weights)
    each = [reference.graph_matrix(count, own, operator, weights) for own in graphs]

    def matrix(logit):
        time = mask.max_time * torch.sigmoid(logit)
        return torch.stack([reference.positive_exponential(m, time, operator) for m in each])

    return built(mask, count), inputs, matrix


def of_walks(walks, **options):
    """A mask of walks (T, walks, L), or of walks (B, T, walks, L) that come with a call."""
    if walks.ndim == 3:
        mask, inputs = RandomWalk(walks=walks, learn_decay=True, **options), {}
        walks = walks[None]
    else:
        mask, inputs = RandomWalk(learn_decay=True, **options), {"walks": walks.astype("int32")}

    def matrix(log):
        each = [reference.walk_features(own, torch.exp(log)) for own in walks]
        return torch.stack([reference.walk_matrix(one, mask.normalization) for one in each])

    return built(mask, walks.shape[1]), inputs, matrix


def of_random_features(edges, weights, count, walked=1.0, **options):
    """A mask of graph random features; `walked` is 0 for the steps that a head never takes."""
    mask = built(GraphRandomFeatures(edges, weights, count, **options), count)
    settings = {"number": mask.num_walks, "halt": mask.halt_probability, "operator": mask.operator}

    def matrix(log):
        own = mask._adjacency, mask.seed, walked * torch.exp(log)
        return reference.random_feature_matrix(*own, **settings)[None]

    return mask, {}, matrix


def hypercube(length=16, dimension=None, time=(0.4, 0.9)):
    mask = built(Hypercube(time, dimension), length)
    return mask, {}, lambda log_time: reference.hypercube_matrix(length, torch.exp(log_time))[None]


# The same with fixed settings


def tree(count=23, kind="random", function="exponential", weighted=True, seed=0):
    weighted = weighted and function == "exponential"
    lengths = np.random.default_rng(seed).uniform(0.2, 1.5, count) if weighted else None
    return of_forests(reference.random_parents(count, kind, seed), lengths, function=function)


def trees_of_batch(function="exponential", count=11):
    batch = np.stack([reference.random_parents(count, kind, 3) for kind in ("random", "path")])
    options = {"max_distance": 4} if function == "table" else {}
    return of_forests(batch, function=function, **options)


def diffusion(count=21, operator="laplacian", seed=0):
    edges = reference.random_edges(count, seed=seed)
    weights = np.random.default_rng(seed).uniform(0.3, 2.0, len(edges))
    return of_graphs(edges, count, operator, weights, initial_time=[0.3, 0.9])


def diffusion_of_batch(operator, count=9):
    each = [reference.random_edges(count, 2.0, seed)[:14] for seed in (1, 2)]
    return of_graphs(each, count, operator, initial_time=[0.2, 0.7])


def walks_of(count=13, **options):
    walks = np.random.default_rng(0).integers(-1, count, (count, 3, 3))
    walks[:, :, 0] = np.arange(count)[:, None]
    return of_walks(walks, decay=[0.5, 0.9], **options)


def walks_of_batch(count=7):
    return of_walks(np.random.default_rng(1).integers(-1, count, (2, count, 2, 3)), decay=0.7)


def random_features_of(count=13, operator="normalized_adjacency"):
    edges = reference.random_edges(count, seed=1)
    weights = np.random.default_rng(0).uniform(0.3, 2.0, len(edges))
    series = [[1.0, 2.0], [1.0, 0.0], [0.7, 1.1]]  # a step of the second head is never seen
    walked = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    options = {"series": series, "num_walks": 3, "halt_probability": 0.2, "seed": 4}
    return of_random_features(edges, weights, count, walked, operator=operator, **options)


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
        full = matrix(*weights).expand(len(x), HEADS, -1, -1)
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
