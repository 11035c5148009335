"""Values of one component of a graph or forest never reach another, not even NaN."""

import numpy as np
import pytest
import scipy.sparse
from keras import ops

from keras_graphattn.masks import (
    GraphDiffusion,
    GraphRandomFeatures,
    Product,
    RandomWalk,
    Toeplitz,
    Tree,
)
from keras_graphattn.masks.graphs.edges import spectral_radius
from tests import reference_topology as reference
from tests.numerics import assert_close, to_numpy, value_and_gradients

COUNT, HEADS = 24, 2
BOUND = 2e-6 + 2e-7 * 100.0  # error of a series: tolerance + 1e-6 + 2e-7 t r
EDGES = np.array(
    [(0, node) for node in range(1, 8)]
    + [(7, 8), (8, 9), (9, 10), (10, 11), (1, 2), (3, 4)]
    + [(12, node) for node in range(13, 17)]
    + [(16, 17), (17, 18), (18, 19)]
)
# shuffled, so that node 0 of a layout or of a class of rows is not always in one component
ORDER = np.random.default_rng(5).permutation(COUNT)
TREE = ORDER[np.array([edge for edge in EDGES.tolist() if edge not in ([1, 2], [3, 4])])]
PATHS = ORDER[np.array([[i, i + 1] for i in range(23) if i not in (11, 19, 20, 21, 22)])]
WALKS = np.where(
    np.arange(3) < 3,
    np.random.default_rng(0).permuted(np.tile(ORDER[:12], (COUNT, 2, 1)), axis=-1)[..., :3],
    -1,
)
WALKS[ORDER[12:]] = ORDER[12:][:, None, None]


def parents_of(links):
    return Tree(links, num_nodes=COUNT).get_config()["forest"]


EXAMPLES = {"edges": np.stack([ORDER[EDGES], EDGES]).astype("int32")}
PARENTS = {"parents": np.stack([parents_of(TREE)] * 2).astype("int32")}
CASES = {
    "laplacian": (lambda: GraphDiffusion(ORDER[EDGES], num_nodes=COUNT), {}),
    "normalized laplacian": (
        lambda: GraphDiffusion(
            ORDER[EDGES], num_nodes=COUNT, operator="normalized_laplacian", initial_time=20.0
        ),
        {},
    ),
    "adjacency": (lambda: GraphDiffusion(ORDER[EDGES], num_nodes=COUNT, operator="adjacency"), {}),
    "graphs of examples": (
        lambda: GraphDiffusion(operator="laplacian", spectral_bound=16.0, initial_time=0.2),
        EXAMPLES,
    ),
    "walks": (lambda: RandomWalk(ORDER[EDGES], num_nodes=COUNT, learn_decay=True), {}),
    "expected walks": (lambda: RandomWalk(ORDER[EDGES], num_nodes=COUNT, exact=True), {}),
    "random features": (lambda: GraphRandomFeatures(ORDER[EDGES], num_nodes=COUNT), {}),
    "walks of examples": (lambda: RandomWalk(), {"walks": np.stack([WALKS] * 2).astype("int32")}),
    "tree": (lambda: Tree(TREE, num_nodes=COUNT), {}),
    "growing tree": (lambda: Tree(TREE, num_nodes=COUNT, initial_rate=1.0), {}),
    "table": (lambda: Tree(TREE, num_nodes=COUNT, function="table"), {}),
    "table of paths": (lambda: Tree(PATHS, num_nodes=COUNT, function="table"), {}),
    "trees of examples": (lambda: Tree(), PARENTS),
    "growing trees of examples": (lambda: Tree(initial_rate=0.5), PARENTS),
    "tables of examples": (lambda: Tree(function="table", max_distance=6), PARENTS),
    "product": (
        lambda: Product([GraphDiffusion(ORDER[EDGES], num_nodes=COUNT), Toeplitz(COUNT)]),
        {},
    ),
}


def paths_of(name):
    """Paths that never form M, and so never multiply its zeros with hidden values."""
    return [path for path in CASES[name][0]().paths if path not in ("dense", "blockwise")]


EVERY = [(name, path) for name in CASES for path in paths_of(name)]


def parts_of(inputs):
    """For each of two examples: nodes that see each other, and nodes that they must not see."""
    seen = [ORDER[:12], np.arange(12) if inputs is EXAMPLES else ORDER[:12]]
    return seen, [np.setdiff1d(np.arange(COUNT), nodes) for nodes in seen]


@pytest.mark.parametrize("name", CASES)
def test_entries_between_components_are_zero(name):
    make, inputs = CASES[name]
    mask = make()
    mask.build((None, COUNT, HEADS, 2))
    matrix = np.broadcast_to(to_numpy(mask.dense(COUNT, **inputs)), (2, HEADS, COUNT, COUNT))
    rows = np.broadcast_to(to_numpy(mask.rows(ORDER, COUNT, **inputs)), matrix.shape)
    np.testing.assert_allclose(rows, matrix[:, :, ORDER], rtol=1e-4, atol=1e-7)
    for example, (seen, other) in enumerate(zip(*parts_of(inputs), strict=True)):
        assert not matrix[example][:, seen][:, :, other].any()
        assert not matrix[example][:, other][:, :, seen].any()


VALUES = [1.0, 1e4, 1e15, np.nan, np.inf]  # factors for the values of the other components


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize(("name", "path"), EVERY)
def test_a_component_never_hears_of_another(name, path):
    make, inputs = CASES[name]
    mask = make()
    mask.build((None, COUNT, HEADS, 2))
    x = np.random.default_rng(0).standard_normal((2, COUNT, HEADS, 2)).astype("float32")
    seen, other = parts_of(inputs)
    changed = np.stack([x] * len(VALUES))
    for k, value in enumerate(VALUES):
        for example in range(2):
            changed[k, example, other[example]] *= value
    repeated = {key: np.concatenate([given] * len(VALUES)) for key, given in inputs.items()}
    places = np.concatenate([seen] * len(VALUES)).astype("int32")[:, :, None, None]

    def seen_rows(x):
        found = mask.apply(x, path, **repeated)
        return ops.take_along_axis(found, ops.broadcast_to(places, (len(places), 12, 2, 2)), axis=1)

    rows, gradients = value_and_gradients(seen_rows, changed.reshape((-1, COUNT, HEADS, 2)))
    rows = rows.reshape((len(VALUES), 2, 12, HEADS, 2))
    np.testing.assert_array_equal(rows, np.broadcast_to(rows[:1], rows.shape))
    gradients = gradients[0].reshape(changed.shape)
    for example in range(2):
        assert not gradients[:, example, other[example]].any()


@pytest.mark.slow
@pytest.mark.parametrize("operator", ["laplacian", "normalized_laplacian", "adjacency"])
def test_long_times_on_a_large_graph_are_exact_row_by_row(operator):
    """Tests rows of hubs and of leaves: their entries differ by many orders of magnitude."""
    count = 2000
    generator = np.random.default_rng(0)
    edges = {(0, node) for node in range(1, 200)} | {(i, i + 1) for i in range(199, 1700)}
    edges |= {tuple(sorted(pair)) for pair in generator.integers(300, 1700, (1500, 2)).tolist()}
    edges = np.array(sorted((i, j) for i, j in edges if i != j))
    matrix = scipy.sparse.csr_array(reference.graph_matrix(count, edges, operator).numpy())
    radius = 2.0 if operator == "normalized_laplacian" else spectral_radius(abs(matrix))
    time = float(np.float32((40.0 if operator == "adjacency" else 200.0) / radius))
    mask = GraphDiffusion(
        edges, num_nodes=count, operator=operator, initial_time=time, learn_time=False
    )
    some = np.array([0, 1, 198, 199, 1000, 1500, 1999])
    columns = np.eye(count, dtype="float32")[:, some].reshape((1, count, 1, len(some)))
    found = to_numpy(mask.apply(columns, "series"))[0, :, 0]  # M[:, some]
    # exact relative to the largest entry by expm_multiply, and to each entry by positive terms
    shift = 0.0 if operator == "adjacency" else matrix.diagonal().max()
    positive = matrix if operator == "adjacency" else shift * scipy.sparse.eye(count) - matrix
    total = np.eye(count)[:, some]
    parts = int(np.ceil(time * max(radius, shift)))
    for _ in range(parts):
        term = total
        for k in range(1, 30):
            term = time / parts / k * (positive @ term)
            total = total + term
        total = total * np.exp(-shift * time / parts)
    row_of_each = np.abs(total).max(axis=0)  # M is symmetric: columns equal rows
    assert (np.abs(found - total) / row_of_each).max() < BOUND
    error = np.linalg.norm(found - total, axis=0) / np.linalg.norm(total, axis=0)
    assert error.max() < BOUND


def test_growing_factors_on_a_long_path():
    """exp(2 z) over 20 edges, one column of M at a time. Differences of sums lose digits here."""
    mask = Tree(np.arange(20) - 1, initial_rate=[2.0, 0.5])
    mask.build((None, 20, 2, 1))
    distance = np.abs(np.arange(20)[:, None] - np.arange(20))
    right = np.exp(np.array([2.0, 0.5])[:, None, None] * distance)
    x = np.broadcast_to(np.eye(20, dtype="float32")[:, None], (1, 20, 2, 20))
    for path in mask.paths:
        found = to_numpy(mask.apply(x, path))[0].transpose((1, 0, 2))
        np.testing.assert_allclose(found, right, rtol=1e-5, err_msg=path)


def test_isolated_nodes_keep_their_factor():
    """A tree with one node keeps f(0), even if f(1) is 10^9 times as large."""
    mask = Tree([-1, 0, -1], function="table", initial_table=[1e-6, 1e3])
    mask.build((None, 3, 1, 1))
    x = np.ones((1, 3, 1, 1), "float32")
    for path in mask.paths:
        assert_close(to_numpy(mask.apply(x, path))[0, 2], [[1e-6]], 1e-6, what=path)
