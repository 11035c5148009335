"""Every function with a gradient of its own: right when differentiated again, and forward.

Hessian-vector products are compared with differences of gradients, forward mode with differences
of values; or both with those of a naive twin, in float64. A function that is not in `CASES` fails
`test_every_gradient_of_our_own_has_a_case`.
"""

import ast
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import keras
import numpy as np
import pytest
import scipy.sparse
import torch
from keras import ops

import keras_graphattn
from keras_graphattn.distribution import SequenceParallel
from keras_graphattn.masks.chunked import Form, attention_by_form
from keras_graphattn.masks.graphs.diffusion import Heat, positive_operator, series_sizes
from keras_graphattn.masks.graphs.edges import read_graph
from keras_graphattn.masks.graphs.sparse import SparseMatrix
from keras_graphattn.masks.graphs.walks import ExampleWalks
from keras_graphattn.masks.trees.sweeps import exponential_product_of_batch
from keras_graphattn.masks.trees.tables import table_product_of_batch
from keras_graphattn.operators import (
    BlockwiseOperator,
    DeltaRuleOperator,
    EdgeOperator,
    Visibility,
    device_kernels,
)
from keras_graphattn.operators.device_kernels import Kernels
from keras_graphattn.operators.p_laplacian import pair_distances
from keras_graphattn.operators.softmax import Logits, with_bias
from keras_graphattn.ops import (
    exponential_tree_product,
    forest_from_parents,
    graph_random_features,
    p_laplacian_attention,
    table_tree_product,
)
from tests import reference
from tests.numerics import (
    BACKEND,
    assert_close,
    cotangent,
    differentiated,
    reference_value_and_gradients,
    to_numpy,
)
from tests.topology_cases import (
    applied,
    arrays_of,
    diffusion,
    diffusion_of_batch,
    tree,
    trees_of_batch,
    walks_of,
    walks_of_batch,
)

MAKERS = ("custom_gradient", "custom_vjp", "custom_jvp", "RegisterGradient", "autograd.Function")
MAKERS += ("FunctionWithGradient", "SymmetricSeries")  # our own, made of these
MACHINERY = {"custom_gradient", "torch_gradient"}  # where they are made: no gradient of their own
REFUSALS = {
    "jax": ["can't apply forward-mode"],
    "tensorflow": ["Consider not using recompute_grad"],  # rematerialised blocks, a second time
    "torch": ["You must implement the jvp function"],
}
TOLERANCE = 2e-3  # of differences of float32 numbers; a wrong one is off by more than 0.1
EXACT = 1e-4  # of twins in float64

ROWS, HEADS, WIDTH = 7, 2, 3
PARENTS = [-1, 0, 1, 1, 0, 4, 5]
BATCH = np.array([[-1, 0, 1, 1, 0, 4, 5], [-1, -1, 1, 2, 3, 2, 0]], "int32")
DIRECTED = [[1, 0], [0, 1], [2, 1], [5, 1], [5, 1], [4, 5], [6, 4], [3, 3], [-1, -1]]
LENGTHS = np.random.default_rng(3).uniform(0.2, 1.0, 7)
RANDOM = np.random.default_rng(2)


class Case(NamedTuple):
    """A function of tensors; `sites` are the functions of the package that it is about."""

    function: object
    arrays: tuple
    sites: tuple = ()
    twin: object = None  # the same of float64 tensors of torch


def normal(*shape, seed=0):
    return 0.7 * np.random.default_rng(seed).standard_normal(shape).astype("float32")


def attention_arrays(heads=HEADS):
    return tuple(normal(2, ROWS, heads, WIDTH, seed=i) for i in range(3))


def masked(**parts):
    keys = np.arange(ROWS)[None] < np.array([[5], [7]])
    everything = {
        "keys": keys,
        "queries": keys,
        "entries": RANDOM.random((2, 1, ROWS, ROWS)) > 0.3,
        "causal": True,
        "window": 3,
    }
    return Visibility(**{name: everything[name] for name in parts if parts[name]})


def twice(**parts):
    mask = masked(**parts)
    return lambda q, k, x: ops.concatenate(
        BlockwiseOperator(q, k, mask, block_size=3).twice(x), axis=-1
    )


def once(q, k, x):
    return BlockwiseOperator(q, k, masked(causal=True, keys=True), block_size=3)(x)


def along_edges(q, k, x):
    operator = EdgeOperator(q, k, ops.convert_to_tensor(np.array([DIRECTED], "int32")))
    return operator(operator(x))


def delta_rule(q, k, x, gates):
    log_decay, strength = -ops.exp(gates), ops.sigmoid(gates)
    return DeltaRuleOperator(q, k, log_decay, strength)(x)


def decayed(q, k, x, gates):
    """Attention under gates, on jax by the Pallas kernel, which runs step by step."""
    log_gates = -ops.exp(gates)
    if BACKEND != "jax":
        return attention_by_form(q, k, x, Form(causal=True, log_gates=log_gates))
    from keras_graphattn.operators.pallas_decay import decayed_attention

    return decayed_attention(q, k, x, log_gates, interpret=True)


def swept(q, k, x):
    """Attention applied twice, on jax by the Pallas kernels, which run step by step."""
    operator = BlockwiseOperator(q, k, Visibility(causal=True), block_size=64)
    kernels = Kernels(interpret=True) if BACKEND == "jax" else None
    with mock.patch.object(device_kernels, "_chosen", kernels):
        once, second = operator.twice(x)
    return once * second


def around_a_ring(q, k, x):
    """Attention in blocks, on jax around a ring of one device."""
    mask = masked(causal=True, keys=True)
    if BACKEND != "jax":
        return BlockwiseOperator(q, k, mask, block_size=3)(x)
    from keras_graphattn.operators.jax_ring import RingOperator

    mesh = keras.distribution.DeviceMesh((1,), ("tokens",), keras.distribution.list_devices()[:1])
    return RingOperator(q, k, mask, None, 3, SequenceParallel(mesh, "tokens"))(x)


def long_arrays(length=70):
    """Queries, keys, signals and gates of more than one chunk."""
    shape = (1, length, HEADS)
    return (*(normal(*shape, WIDTH, seed=i) / 3.0 for i in range(3)), normal(*shape, seed=4))


def tree_product(path):
    return lambda x, rate, offset: exponential_tree_product(x, rate, offset, FOREST, path)


def batched_tree(x, rate, offset, edge_weights):
    parents = ops.convert_to_tensor(BATCH)
    return exponential_product_of_batch(x, rate, offset, parents, edge_weights, depth=6)


def p_laplacian(block_size, causal, sites=()):
    """Attention with values of which two are equal, and two nearly so."""
    p, seen = [1.5, 2.0, 4.0], np.tri(ROWS) if causal else np.ones((ROWS, ROWS))
    query, key, values = attention_arrays(len(p))
    values[:, 3], values[:, 4] = values[:, 1], values[:, 0] * (1 + 1e-3)

    def function(q, k, x):
        return p_laplacian_attention(q, k, x, p, masked(causal=causal), block_size=block_size)

    def twin(q, k, x):
        mask = torch.tensor(seen).expand(2, len(p), -1, -1)
        return reference.apply_matrix(reference.p_laplacian_matrix(q, k, x, p, 0.1, mask), x)

    return Case(function, (query, key, values), sites, twin)


def distances():
    rows, columns, _ = attention_arrays()
    columns[:, 2] = rows[:, 4]

    def squares(rows, columns):
        return pair_distances(rows, columns, 1.0 / 64.0) ** 2

    def twin(rows, columns):
        return ((rows[:, :, None] - columns[:, None]) ** 2).sum(-1).permute(0, 3, 1, 2) ** 2

    return Case(squares, (rows, columns), twin=twin)


FOREST = forest_from_parents(PARENTS, LENGTHS)
NODES = (normal(7, HEADS, WIDTH), np.array([-0.5, -1.0], "float32"), normal(HEADS))
TABLE = normal(4, HEADS, seed=4)
MATRIX = SparseMatrix(scipy.sparse.random_array((5, 7), density=0.5, rng=0))
CYCLE = read_graph([[i, (i + 1) % 7] for i in range(7)])
POSITIVE, SHIFT, RADIUS = positive_operator(CYCLE, "laplacian")
SIZES = [series_sizes(RADIUS, 1.0, 1e-6, longest) for longest in (32.0, 1.0)]
HEAT = Heat(POSITIVE, SHIFT, *SIZES)
WALKS = RANDOM.integers(-1, 7, (2, 7, 2, 3)).astype("int32")
LEFT, RIGHT = graph_random_features(CYCLE, 2, 4, 0)
VISIBLE = RANDOM.random((3, 1, 5, 7)) > 0.3

CASES = {
    "twice": Case(twice(), attention_arrays(), ("operators.blockwise._twice",)),
    "twice, causal, padded": Case(twice(causal=True, keys=True), attention_arrays()),
    "twice, all masks": Case(
        twice(causal=True, keys=True, queries=True, entries=True, window=True), attention_arrays()
    ),
    "once": Case(once, attention_arrays()),
    "edges": Case(along_edges, attention_arrays(), ("operators.edges",)),
    "delta rule": Case(delta_rule, long_arrays(), ("operators.delta_rule",)),
    "bias": Case(
        with_bias,
        (normal(3, HEADS, 5, 7), normal(1, HEADS, 5, 7, seed=1)),
        ("operators.softmax.with_bias",),
    ),
    "softmax under a bias": Case(
        lambda scores, bias: Logits(bias=bias).weights(1.0 * scores, VISIBLE, overwrite=True)[0],
        (normal(3, HEADS, 5, 7), normal(1, HEADS, 5, 7, seed=1)),
        ("operators.torch_biased_softmax._BiasedSoftmax",),
    ),
    "ring": Case(around_a_ring, attention_arrays(), ("operators.jax_ring._applied",)),
    "decay": Case(decayed, long_arrays(), ("operators.pallas_decay._function",)),
    "sweeps": Case(swept, long_arrays(130)[:3], ("operators.pallas_sweeps.with_gradient",)),
    "tree, levels": Case(tree_product("levels"), NODES, ("trees.sweeps.Sweeps",)),
    "tree, scan": Case(tree_product("scan"), NODES),
    "tree, doubling": Case(tree_product("doubling"), NODES),
    "trees of a batch": Case(
        batched_tree,
        (normal(14, HEADS, WIDTH), *NODES[1:], np.tile(LENGTHS, (2, 1)).astype("float32")),
        ("trees.sweeps.Doubling",),
    ),
    "tree, depths": Case(
        lambda x, table: table_tree_product(x, table, FOREST, "depths"),
        (NODES[0], TABLE),
        ("trees.tables",),
    ),
    "trees of a batch, depths": Case(
        lambda x, table: table_product_of_batch(x, table, ops.convert_to_tensor(BATCH)),
        (normal(14, HEADS, WIDTH), TABLE),
        ("trees.tables",),
    ),
    "sparse": Case(lambda x: MATRIX(x) ** 2, (NODES[0],), ("graphs.sparse.SparseMatrix",)),
    "diffusion": Case(
        HEAT.product, (NODES[0], np.array([0.4, 0.9], "float32")), ("graphs.diffusion.Heat",)
    ),
    "diffusion, matrix": Case(HEAT.matrix, (np.array([0.4, 0.9], "float32"),)),
    "random features": Case(
        lambda x, modulation: LEFT.product(RIGHT.transposed_product(x, modulation), modulation),
        (NODES[0], TABLE),
    ),
    "walks of a batch": Case(
        lambda x, decay: ExampleWalks(WALKS).kernel_product(x, decay, 1.0),
        (normal(2, 7, HEADS, WIDTH), np.array([0.6, 0.8], "float32")),
        ("graphs.walks",),
    ),
    "p-Laplacian": p_laplacian(ROWS, True, ("operators.p_laplacian._weights_with_gradient",)),
    "p-Laplacian, sees all": p_laplacian(ROWS, False),
    "p-Laplacian, blockwise": p_laplacian(4, False),
    "p-Laplacian, blockwise, causal": p_laplacian(2, True),
    "distances": distances(),
}
FAST = ("bias", "twice, causal, padded", "trees of a batch", "tree, depths", "sparse", "distances")
FAST += ("softmax under a bias", "p-Laplacian", "p-Laplacian, blockwise")
MASKS = {
    "tree": lambda: tree(7),
    "tree, table": lambda: tree(7, function="table"),
    "path, table": lambda: tree(7, kind="path", function="table"),
    "trees of a batch": lambda: trees_of_batch(count=7),
    "trees of a batch, table": lambda: trees_of_batch("table", count=7),
    "diffusion": lambda: diffusion(9),
    "diffusion, adjacency": lambda: diffusion(9, operator="adjacency"),
    "diffusion of a batch": lambda: diffusion_of_batch("laplacian"),
    "walks": lambda: walks_of(7),
    "walks of a batch": lambda: walks_of_batch(),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] if BACKEND != "torch" and n not in FAST else [])
        for n in CASES
    ],
)
def test_second_derivatives_and_forward_mode(name):
    check(CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKS)
def test_every_path_of_the_masks(name):
    mask, inputs, _ = MASKS[name]()
    inputs = {name: ops.convert_to_tensor(value) for name, value in inputs.items()}
    x, weights = arrays_of(mask, 9 if "diffusion" in name else 7)
    for path in mask.paths:
        check(Case(applied(mask, path, inputs), (x, *weights)))


def test_every_gradient_of_our_own_has_a_case():
    covered = {site for case in CASES.values() for site in case.sites}
    assert sites_of_own_gradients() == covered


def sites_of_own_gradients():
    """`folder.module.function` of each use of `MAKERS` in the package."""
    found = set()
    for path in Path(keras_graphattn.__file__).parent.rglob("*.py"):
        for statement in ast.parse(path.read_text()).body:
            uses = [ast.unparse(node).endswith(MAKERS) for node in names_in(statement)]
            if any(uses) and path.stem not in MACHINERY:
                name = getattr(statement, "name", None)
                found.add(".".join(filter(None, (path.parent.name, path.stem, name))))
    return found


def names_in(node):
    """The names and attributes that a statement uses, but in annotations and imports."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        yield node
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and field not in ("annotation", "returns"):
                yield from names_in(child)


def check(case):
    """Hessian-vector products and, where there is a forward mode, the derivative along a vector."""
    arrays = [a.astype("float32") for a in case.arrays]
    tensors = [ops.convert_to_tensor(a) for a in arrays]
    along = [normal(*a.shape, seed=10 + i) for i, a in enumerate(arrays)]
    directions = [ops.convert_to_tensor(v) for v in along]
    weights = cotangent(case.function(*tensors).shape)

    def loss(*inputs):
        return ops.sum(ops.convert_to_tensor(weights) * curved(case.function)(*inputs))

    def at(step):
        moved = (a + step * v for a, v in zip(arrays, along, strict=True))
        value, gradients = differentiate(*moved)
        return [np.sum(weights * value), *gradients.values()]

    products, derivative = DERIVATIVES[BACKEND](loss)
    if case.twin is None:
        tolerance, differentiate = TOLERANCE, differentiated(curved(case.function), way="graph")
        slope, *expected = difference(at)
    else:
        tolerance = EXACT
        slope, *expected = derivatives_of_twin(case.twin, weights, arrays, along)
    with refused():
        actual = [to_numpy(p) for p in products(tensors, directions)]
        floor = 1e-2 * max(np.sqrt(np.mean(np.square(e))) for e in expected)
        for place, (found, wanted) in enumerate(zip(actual, expected, strict=True)):
            assert_close(found, wanted, tolerance, floor, f"second derivative {place}")
    with refused():
        forward = derivative(tensors, directions)
        assert_close(to_numpy(forward), slope, tolerance, 1e-2, "forward mode")


def curved(function):
    """A function whose second derivatives are those of the values and of their squares."""

    def values(*inputs):
        value = function(*inputs)
        return value * (1.0 + 0.5 * value)

    return values


def derivatives_of_twin(twin, weights, arrays, along):
    """The derivative of the loss along the vector, and its Hessian-vector products."""
    _, gradients = reference_value_and_gradients(curved(twin), *arrays)
    products, _ = _of_torch(lambda *x: (torch.tensor(weights) * curved(twin)(*x)).sum())
    tensors, directions = ([torch.tensor(x).double() for x in part] for part in (arrays, along))
    slope = sum((gradients[i] * v).sum() for i, v in enumerate(along))
    return [slope, *(p.numpy() for p in products(tensors, directions))]


@contextmanager
def refused():
    """Lets pass what a backend refuses in words: what of these is right is for it to say."""
    try:
        yield
    except (TypeError, NotImplementedError) as error:
        if not any(text in str(error) for text in REFUSALS[BACKEND]):
            raise


def difference(function, step=0.02):
    """The derivative of `function` at 0, to the fourth order of the step."""
    at = {k: function(k * step) for k in (-2, -1, 1, 2)}
    return [
        (8.0 * (b - c) - (a - d)) / (12.0 * step)
        for d, c, b, a in zip(at[-2], at[-1], at[1], at[2], strict=True)
    ]


def _of_torch(loss):
    from torch.autograd import forward_ad

    def products(tensors, along):
        tensors = [t.detach().clone().requires_grad_() for t in tensors]
        found = torch.autograd.grad(loss(*tensors), tensors, create_graph=True)
        total = sum((g * v).sum() for g, v in zip(found, along, strict=True))
        return torch.autograd.grad(total, tensors)

    def derivative(tensors, along):
        with forward_ad.dual_level():
            pairs = zip(tensors, along, strict=True)
            value = loss(*(forward_ad.make_dual(t, v) for t, v in pairs))
            return forward_ad.unpack_dual(value).tangent

    return products, derivative


def _of_jax(loss):
    import jax

    def gradients(*tensors):
        return jax.grad(loss, tuple(range(len(tensors))))(*tensors)

    def products(tensors, along):
        def total(*tensors):
            return sum(ops.sum(g * v) for g, v in zip(gradients(*tensors), along, strict=True))

        found = jax.jit(jax.grad(total, tuple(range(len(tensors)))))(*tensors)
        _, mixed = jax.jit(lambda t, v: jax.jvp(gradients, t, v))(tuple(tensors), tuple(along))
        for one, other in zip(found, mixed, strict=True):  # reverse and forward over reverse
            np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-3)
        return found

    def derivative(tensors, along):
        return jax.jvp(loss, tuple(tensors), tuple(along))[1]

    return products, derivative


def _of_tensorflow(loss):
    import tensorflow as tf

    @tf.function
    def products(tensors, along):
        with tf.GradientTape() as outer:
            outer.watch(tensors)
            with tf.GradientTape() as inner:
                inner.watch(tensors)
                value = loss(*tensors)
            found = [tf.convert_to_tensor(g) for g in inner.gradient(value, tensors)]
        return outer.gradient(found, tensors, output_gradients=along)

    def derivative(tensors, along):
        with tf.autodiff.ForwardAccumulator(tensors, along) as accumulator:
            value = loss(*tensors)
        return accumulator.jvp(value)

    return products, derivative


DERIVATIVES = {"torch": _of_torch, "jax": _of_jax, "tensorflow": _of_tensorflow}
