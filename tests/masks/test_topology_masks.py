"""Tree, diffusion, hypercube and walk masks answer to brute-force matrices, gradients and all."""

import json

import keras
import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_graphattn.masks import GraphDiffusion, Hypercube, RandomWalk, Tree
from tests import reference_topology as reference
from tests.numerics import (
    BACKEND,
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

HEADS, WIDTH = 2, 3


def tree(count=23, kind="random", function="exponential", weighted=True, seed=0):
    """A tree mask with its matrix as a function of its weights."""
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


def diffusion(count=21, operator="laplacian", function="heat", seed=0):
    edges = reference.random_edges(count, seed=seed)
    weights = np.random.default_rng(seed).uniform(0.3, 2.0, len(edges))
    mask = GraphDiffusion(
        edges, weights, count, operator=operator, function=function, initial_time=[0.3, 0.9]
    )
    mask.build((None, count, HEADS, WIDTH))
    matrix = reference.graph_matrix(count, edges, operator, torch.tensor(weights))

    def full(logit):
        time = mask.max_time * torch.sigmoid(logit)
        if function == "resolvent":
            return torch.linalg.inv(torch.eye(count) + time[:, None, None] * matrix)
        return reference.diffusion_matrix(matrix, time, 1.0 if operator == "adjacency" else -1.0)

    return mask, {}, full


def diffusion_of_batch(operator, count=9):
    edges = np.full((2, 14, 2), -1, "int32")
    for example, seed in enumerate((1, 2)):
        found = reference.random_edges(count, 2.0, seed)[:14]
        edges[example, : len(found)] = found
    bound = None if operator == "normalized_laplacian" else 2.0 * count
    mask = GraphDiffusion(operator=operator, spectral_bound=bound, initial_time=0.2)
    mask.build((None, count, HEADS, WIDTH))

    def full(logit):
        time, sign = mask.max_time * torch.sigmoid(logit), 1.0 if operator == "adjacency" else -1.0
        each = [[tuple(edge) for edge in example if edge[0] >= 0] for example in edges]
        found = [reference.graph_matrix(count, one, operator) for one in each]
        return torch.stack([reference.diffusion_matrix(one, time, sign) for one in found])

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


def walks_of_batch(count=7):
    walks = np.random.default_rng(1).integers(-1, count, (2, count, 2, 3)).astype("int32")
    mask = RandomWalk(learn_decay=True, decay=0.7)
    mask.build((None, count, HEADS, WIDTH))

    def full(log):
        each = [reference.walk_features(w, torch.exp(log)) for w in walks]
        return torch.stack([reference.walk_matrix(features) for features in each])

    return mask, {"walks": walks}, full


CASES = {
    "tree": tree,
    "deep tree": lambda: tree(kind="deep"),
    "tree table": lambda: tree(function="table"),
    "path table": lambda: tree(kind="path", function="table"),
    "caterpillar table": lambda: tree(kind="caterpillar", function="table"),
    "tree per example": trees_of_batch,
    "table per example": lambda: trees_of_batch("table"),
    "laplacian": diffusion,
    "normalized laplacian": lambda: diffusion(operator="normalized_laplacian"),
    "adjacency": lambda: diffusion(operator="adjacency"),
    "resolvent": lambda: diffusion(function="resolvent"),
    "graph per example": lambda: diffusion_of_batch("normalized_laplacian"),
    "plain graph per example": lambda: diffusion_of_batch("laplacian"),
    "hypercube": hypercube,
    "hypercube by bit": lambda: hypercube(dimension=4),
    "walks": walks_of,
    "walks, inner products": lambda: walks_of(normalization=0.0),
    "walks per example": walks_of_batch,
}
PATHS = [
    (name, path) for name, make in CASES.items() for path in make()[0].paths if path != "blockwise"
]


def arrays_of(mask, count, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((2, count, HEADS, WIDTH)).astype("float32")
    noise = [0.2 * generator.standard_normal(tuple(w.shape)) for w in mask.trainable_variables]
    weights = [to_numpy(w) + n for w, n in zip(mask.trainable_variables, noise, strict=True)]
    return x, weights


def applied(mask, path, inputs):
    """x and the mask's weights -> M x, to differentiate."""

    def function(x, *values):
        pairs = zip(mask.trainable_variables, values, strict=True)
        with keras.StatelessScope(state_mapping=list(pairs)):
            return mask.apply(x, path, **inputs)

    return function


def expected(matrix, x, weights):
    def naive(x, *weights):
        full = matrix(*weights)
        full = full if full.ndim == 4 else full[None].expand(len(x), -1, -1, -1)
        return torch.einsum("bnts,bsnd->btnd", full, x)

    return reference_value_and_gradients(naive, x, *weights)


def check(mask, inputs, matrix, count, path, seed=0):
    x, weights = arrays_of(mask, count, seed)
    value, gradients = value_and_gradients(applied(mask, path, inputs), x, *weights)
    right, right_gradients = expected(matrix, x, weights)
    assert_close(value, right, 1e-5)
    assert_all_close(gradients, right_gradients, 1e-5)


def length_of(mask, inputs):
    if mask.num_nodes is not None:
        return mask.num_nodes
    return 16 if not inputs else next(iter(mask_length(inputs)))


def mask_length(inputs):
    for name, tensor in inputs.items():
        yield 9 if name == "edges" else tensor.shape[1]


@pytest.mark.parametrize(("name", "path"), PATHS)
def test_answers_to_brute_force(name, path):
    mask, inputs, matrix = CASES[name]()
    check(mask, inputs, matrix, length_of(mask, inputs), path)


@pytest.mark.parametrize("name", CASES)
def test_matrix_and_rows(name):
    mask, inputs, matrix = CASES[name]()
    length = length_of(mask, inputs)
    dense = to_numpy(mask.dense(length, **inputs))
    weights = [torch.tensor(to_numpy(w)) for w in mask.trainable_variables]
    right = matrix(*weights).detach().numpy()
    assert_close(dense, right if right.ndim == 4 else right[None], 1e-5)
    rows = to_numpy(mask.rows([0, length - 1, 2], length, **inputs))
    assert_close(rows, dense[:, :, [0, length - 1, 2]], 1e-5)


FORESTS = st.tuples(
    st.integers(1, 40),
    st.sampled_from(["random", "path", "deep", "balanced", "star", "caterpillar"]),
)


@settings(max_examples=8)
@given(shape=FORESTS, seed=st.integers(0, 100), data=st.data())
def test_any_forest(shape, seed, data):
    function = data.draw(st.sampled_from(["exponential", "table"]))
    mask, inputs, matrix = tree(*shape, function, weighted=bool(seed % 2), seed=seed)
    check(mask, inputs, matrix, shape[0], data.draw(st.sampled_from(mask.paths)), seed)


@settings(max_examples=5)
@given(count=st.integers(1, 40), seed=st.integers(0, 100), data=st.data())
def test_any_graph(count, seed, data):
    operator = data.draw(st.sampled_from(["laplacian", "normalized_laplacian", "adjacency"]))
    check(*diffusion(count, operator, seed=seed), count, "series", seed)


@pytest.mark.parametrize(
    ("kind", "function", "path"),
    [
        ("random", "exponential", "levels"),
        ("deep", "exponential", "scan"),
        ("path", "exponential", "doubling"),
        ("random", "table", "depths"),
        ("path", "table", "centroids"),
        ("caterpillar", "table", "spines"),
    ],
)
def test_a_thousand_nodes(kind, function, path):
    mask, inputs, matrix = tree(1000, kind, function)
    check(mask, inputs, matrix, 1000, path)


def test_rows_without_the_matrix(monkeypatch):
    monkeypatch.setattr("keras_graphattn.masks.topology.ROWS_FROM_MATRIX", 3)
    for make in (tree, trees_of_batch, diffusion, walks_of):
        mask, inputs, _ = make()
        dense = to_numpy(mask.dense(**inputs))
        assert_close(to_numpy(mask.rows([4, 1], **inputs)), dense[:, :, [4, 1]], 1e-5)


@pytest.mark.parametrize("operator", ["laplacian", "normalized_laplacian", "adjacency"])
def test_diffusion_agrees_with_scipy(operator):
    count, edges = 60, reference.random_edges(60, seed=5)
    matrix = reference.graph_matrix(count, edges, operator).numpy()
    radius = np.abs(np.linalg.eigvalsh(matrix)).max()
    x = np.random.default_rng(0).standard_normal((1, count, 4, 2)).astype("float32")
    times = np.array([0.1, 1.0, 10.0, 50.0]) / radius
    for head, time in enumerate(times):
        mask = GraphDiffusion(
            edges, num_nodes=count, operator=operator, initial_time=time, learn_time=False
        )
        sign = 1.0 if operator == "adjacency" else -1.0
        right = scipy.linalg.expm(sign * time * matrix) @ x[0, :, head]
        found = to_numpy(mask.apply(x[:, :, head : head + 1], "series"))[0, :, 0]
        assert_close(found, right, 1e-5, what=f"time {time}")


def test_walks_converge_to_their_expectation():
    edges = reference.random_edges(30, 4.0, 2)
    exact = RandomWalk(edges, num_nodes=30, exact=True, decay=0.8)
    right = exact._features.steps.matrix.toarray()
    errors = []
    for number in (100, 1600):
        each = [
            RandomWalk(edges, num_nodes=30, num_walks=number, decay=0.8, seed=seed)
            for seed in range(4)
        ]
        found = [mask._features.steps.matrix.toarray() for mask in each]
        errors.append(np.sqrt(np.mean([(f - right) ** 2 for f in found])))
    assert 3.0 < errors[0] / errors[1] < 5.3  # sixteen times the walks, a quarter of the error


def test_steps_follow_edge_weights():
    mask = RandomWalk([[0, 1], [0, 2]], [3.0, 1.0], num_walks=4000, walk_length=2, seed=3)
    features = mask._features.steps.matrix.toarray()
    assert features[0] == pytest.approx([1.0, 0.75, 0.25], abs=0.03)


@pytest.mark.skipif(BACKEND == "torch", reason="torch has no such compiler here")
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("tree", "levels"),
        ("tree", "scan"),
        ("tree", "doubling"),
        ("tree table", "depths"),
        ("caterpillar table", "centroids"),
        ("caterpillar table", "spines"),
        ("tree per example", "doubling"),
        ("laplacian", "series"),
        ("graph per example", "series"),
        ("hypercube", "butterfly"),
        ("walks", "features"),
    ],
)
def test_eager_and_compiled(name, path):
    mask, inputs, matrix = CASES[name]()
    x, weights = arrays_of(mask, length_of(mask, inputs))
    right, right_gradients = expected(matrix, x, weights)
    function = applied(mask, path, inputs)
    if BACKEND == "jax":  # the other tests are compiled
        assert_close(to_numpy(function(x, *map(np.float32, weights))), right, 1e-5)
        return
    import tensorflow as tf

    cotangent = np.random.default_rng(7).standard_normal(x.shape).astype("float32")

    @tf.function(jit_compile=True)
    def compiled(*arrays):
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            value = function(*arrays)
            loss = tf.reduce_sum(value * cotangent)
        return value, tape.gradient(loss, arrays)

    value, gradients = compiled(*(tf.constant(a, "float32") for a in (x, *weights)))
    assert_close(to_numpy(value), right, 1e-5)
    assert_all_close({i: to_numpy(g) for i, g in enumerate(gradients)}, right_gradients, 1e-5)


def test_gradients_reach_edge_weights_of_a_batch():
    parents = reference.random_parents(9, seed=1)[None].astype("int32")
    lengths = np.random.default_rng(0).uniform(0.5, 1.5, (1, 9))
    mask = Tree(edge_weights=True)
    mask.build((None, None, 1, 2))
    x = np.random.default_rng(1).standard_normal((1, 9, 1, 2))

    def naive(lengths):
        powers = torch.eye(9, dtype=torch.float64)  # from each node to its ancestors
        has = torch.tensor(parents[0] >= 0)
        steps = torch.zeros((9, 9), dtype=torch.float64)
        steps[torch.arange(9), torch.tensor(parents[0]).clamp(min=0).long()] = 1.0
        steps = steps * has[:, None]
        ancestors = powers.clone()
        for _ in range(9):
            powers = powers @ steps
            ancestors = ancestors + powers
        weights = torch.where(has, lengths[0], 0.0)
        heights = ancestors @ weights
        common = (ancestors * weights) @ ancestors.T
        distances = heights[:, None] + heights[None] - 2 * common
        same = ancestors @ ancestors.T > 0
        matrix = torch.where(same, torch.exp(-distances), 0.0)
        return torch.einsum("ts,bsnd->btnd", matrix, torch.tensor(x))

    right, right_gradients = reference_value_and_gradients(naive, lengths)
    for path in mask.paths:
        value, gradients = value_and_gradients(
            lambda w, path=path: mask.apply(
                x.astype("float32"), path, parents=parents, edge_weights=w
            ),
            lengths,
        )
        assert_close(value, right, 1e-5)
        assert_all_close(gradients, right_gradients, 1e-5)


@pytest.mark.parametrize("name", [n for n in CASES if "example" not in n])
def test_config_round_trip(name):
    mask, inputs, _ = CASES[name]()
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(mask)))
    again = keras.saving.deserialize_keras_object(config, safe_mode=True)
    assert again.built  # by the shape that the saved file remembers
    for old, new in zip(mask.weights, again.weights, strict=True):
        new.assign(old)
    length = length_of(mask, inputs)
    assert_close(to_numpy(again.dense(length)), to_numpy(mask.dense(length)), 1e-6)
    assert again.paths == mask.paths


@pytest.mark.parametrize("name", [n for n in CASES if "example" in n])
def test_config_round_trip_without_topology(name):
    mask, inputs, _ = CASES[name]()
    again = type(mask).from_config(json.loads(json.dumps(mask.get_config())))
    assert again.get_config() == mask.get_config()
    assert again.inputs_at_call == mask.inputs_at_call == tuple(inputs)


def test_half_precision_is_float32_inside():
    mask, _, _ = tree()
    x = np.random.default_rng(0).standard_normal((1, 23, HEADS, 2)).astype("float32")
    found = mask.apply(ops.cast(x, "bfloat16"))
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    right = mask.apply(ops.cast(ops.cast(x, "bfloat16"), "float32"))
    assert_close(to_numpy(found), to_numpy(right), 4e-3)
