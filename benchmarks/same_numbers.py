"""Whether two commits give the same numbers: outputs and gradients of everything public.

    KERAS_BACKEND=<backend> python benchmarks/same_numbers.py record --output before.npz
    KERAS_BACKEND=<backend> python benchmarks/same_numbers.py compare before.npz after.npz

`record` runs with the package that `PYTHONPATH` names, so one copy of this script serves both
commits. It writes the outputs of each case, and the gradients of a fixed random projection of them
for the inputs and for every trainable weight. Weights are drawn by their names and shapes, never
by their order. An error of a case is written as its text. `compare` prints the cases that differ or
are missing on one side, and the largest differences; its exit status is 1 if there are any.

`record --only masks` runs one area: layers, filters, masks, decoding, ops, or hub, which runs only
by its name. `--cases Tree` runs the cases whose names contain a text. `record --files folder` saves
small models, weights and presets, and `record --load folder` on another commit loads them: compare
what the two have written, too.
"""

import argparse
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import re
import sys
import time
import types
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

with contextlib.suppress(ImportError):
    import torch  # before TensorFlow, which KerasHub needs: the other order crashes

import keras
import numpy as np
from keras import ops

import keras_graphattn
from keras_graphattn import feature_maps, filters, layers, masks

BACKEND = keras.backend.backend()
COMPILES = BACKEND == "jax"  # takes a second for each case: it has fewer forms of each
BATCH, LENGTH, CHANNELS, HEADS, SIZE = 2, 16, 6, 2, 4
SPLIT = 10  # tokens from here on are padding in one example, or another segment or component
# Two trees, two graphs and an isolated node: nodes from SPLIT on are apart from the others
PARENTS = np.array([-1, 0, 0, 1, 1, 2, 3, 5, 7, 8, -1, 10, 10, 11, 13, -1])
EDGES = np.array([[p, i] for i, p in enumerate(PARENTS) if p >= 0] + [[2, 4], [0, 9], [12, 14]])
WEIGHTS = np.linspace(0.5, 1.5, len(EDGES))


class Run(NamedTuple):
    """What a case computes: outputs as a function of arrays, and whose weights have gradients."""

    function: Callable[..., Any]
    arrays: list[np.ndarray]
    owner: Any = None
    eager: bool = False  # its outputs only, not compiled


CASES: dict[str, Callable[[], Run]] = {}  # "area/case/form" -> makes the run


def noise(name: str, shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
    """Random numbers that depend on a name and a shape only."""
    generator = np.random.default_rng(zlib.crc32(f"{name} {tuple(shape)}".encode()))
    return (scale * generator.standard_normal(tuple(shape))).astype("float32")


TOKENS = noise("tokens", (BATCH, LENGTH, CHANNELS))
PADDED = np.arange(LENGTH)[None] < np.array([[SPLIT], [LENGTH]])
PAIRS = ~((np.arange(LENGTH)[:, None] < SPLIT) & (np.arange(LENGTH)[None] >= SPLIT))


def _walks() -> np.ndarray:
    """Three walks of four nodes from each node, along edges; the isolated node stays."""
    generator = np.random.default_rng(3)
    near: list[list[int]] = [[node] for node in range(LENGTH)]
    for a, b in EDGES:
        near[a].append(b)
        near[b].append(a)
    walks = np.zeros((LENGTH, 3, 4), "int32")
    walks[:, :, 0] = np.arange(LENGTH)[:, None]
    for node, walk, step in np.ndindex(LENGTH, 3, 3):
        walks[node, walk, step + 1] = generator.choice(near[walks[node, walk, step]])
    return walks


WALKS = _walks()
PER_EXAMPLE = {  # what masks take with each call
    "segment_ids": np.repeat(np.where(np.arange(LENGTH) < SPLIT, 1, 2)[None], BATCH, axis=0),
    "entries": np.random.default_rng(4).uniform(0, 1, (BATCH, LENGTH, LENGTH)).astype("float32"),
    "parents": np.repeat(PARENTS[None], BATCH, axis=0).astype("int32"),
    "edges": np.repeat(EDGES[None], BATCH, axis=0).astype("int32"),
    "edge_weights": np.repeat(WEIGHTS[None], BATCH, axis=0).astype("float32"),
    "walks": np.repeat(WALKS[None], BATCH, axis=0),
    "distances": np.abs(np.arange(LENGTH)[:, None] - np.arange(LENGTH))[None].repeat(BATCH, axis=0),
}
PER_EXAMPLE["parents"][1] = np.maximum(np.arange(LENGTH) - 1, -1)  # a path, in the second example
PER_EXAMPLE["edges"][1, 5:] = -1  # fewer edges, there

MASKS: dict[str, Callable[[], Any]] = {
    "Causal": lambda: masks.Causal(),
    "Segments": lambda: masks.Segments(),
    "Entries": lambda: masks.Entries(),
    "DistanceTable": lambda: masks.DistanceTable(5),
    "Exponential": lambda: masks.Exponential(2),
    "Exponential, causal": lambda: masks.Exponential(2, causal=True),
    "Exponential, rates": lambda: masks.Exponential(1, initial_rates=[[0.1], [2.0]]),
    "ExponentialPositions": lambda: masks.ExponentialPositions(LENGTH, 2, 3, seed=0),
    "LowRank": lambda: masks.LowRank(2, LENGTH),
    "StochasticPositions": lambda: masks.StochasticPositions(2, seed=0),
    "StochasticPositions, trained": lambda: masks.StochasticPositions(3, True, 0),
    "Toeplitz": lambda: masks.Toeplitz(LENGTH),
    "Toeplitz, causal": lambda: masks.Toeplitz(LENGTH, causal=True),
    "Toeplitz, longer": lambda: masks.Toeplitz(LENGTH + 3, initial_slopes=[0.1, 1.0]),
    "Toeplitz, ALiBi": lambda: masks.Toeplitz.alibi(LENGTH),
    "BlockToeplitz": lambda: masks.BlockToeplitz((4, 4)),
    "BlockToeplitz, prefix": lambda: masks.BlockToeplitz((2, 7), 2),
    "BlockToeplitz, distance": lambda: masks.BlockToeplitz((4, 4), form="distance"),
    "Hypercube": lambda: masks.Hypercube(),
    "Hypercube, dimension": lambda: masks.Hypercube(0.3, 4),
    "Tree": lambda: masks.Tree(PARENTS),
    "Tree, lengths": lambda: masks.Tree(PARENTS, np.linspace(0.2, 2.0, LENGTH)),
    "Tree, path": lambda: masks.Tree(np.arange(-1, LENGTH - 1)),
    "Tree, table": lambda: masks.Tree(PARENTS, function="table"),
    "Tree, short table": lambda: masks.Tree(PARENTS, function="table", max_distance=3),
    "Tree per example": lambda: masks.Tree(max_depth=LENGTH),
    "Tree per example, lengths": lambda: masks.Tree(edge_weights=True, max_depth=LENGTH),
    "Tree per example, table": lambda: masks.Tree(
        function="table", max_distance=4, max_depth=LENGTH
    ),
    **{
        f"GraphDiffusion, {operator}": lambda operator=operator: masks.GraphDiffusion(
            EDGES, WEIGHTS, LENGTH, operator=operator
        )
        for operator in ("laplacian", "normalized_laplacian", "adjacency")
    },
    "GraphDiffusion, fixed time": lambda: masks.GraphDiffusion(
        EDGES, None, LENGTH, learn_time=False, initial_time=0.7
    ),
    "GraphDiffusion, resolvent": lambda: masks.GraphDiffusion(
        EDGES, WEIGHTS, LENGTH, function="resolvent"
    ),
    **{
        f"GraphDiffusion per example, {operator}": lambda operator=operator: masks.GraphDiffusion(
            operator=operator,
            spectral_bound=None if operator.startswith("normal") else 2.0 * LENGTH,
            initial_time=0.2,
        )
        for operator in ("laplacian", "normalized_laplacian", "adjacency")
    },
    "RandomWalk": lambda: masks.RandomWalk(walks=WALKS),
    "RandomWalk, drawn": lambda: masks.RandomWalk(EDGES, WEIGHTS, LENGTH, num_walks=5, seed=1),
    "RandomWalk, exact, decay": lambda: masks.RandomWalk(
        EDGES, None, LENGTH, exact=True, learn_decay=True, decay=0.7
    ),
    "RandomWalk per example": lambda: masks.RandomWalk(),
    "RandomWalk per example, decay": lambda: masks.RandomWalk(learn_decay=True, decay=0.5),
    "GraphRandomFeatures": lambda: masks.GraphRandomFeatures(EDGES, WEIGHTS, LENGTH, seed=0),
    "GraphRandomFeatures, regularized": lambda: masks.GraphRandomFeatures(
        EDGES, None, LENGTH, series="regularized_laplacian", strength=0.3, num_walks=3, seed=5
    ),
    "Product": lambda: masks.Product([masks.Causal(), masks.Toeplitz(LENGTH)]),
    "Product, segments": lambda: masks.Product([masks.Segments(), masks.Exponential(causal=True)]),
    "Product, low rank and tree": lambda: masks.Product(
        [masks.LowRank(2, LENGTH), masks.Tree(PARENTS)]
    ),
    "Product, segments and diffusion": lambda: masks.Product(
        [masks.Segments(), masks.GraphDiffusion(EDGES, WEIGHTS, LENGTH)]
    ),
}
FILTERS: dict[str, Callable[[], Any]] = {
    "first_order": lambda: filters.FirstOrder(3),
    "monomial": lambda: filters.Monomial(3),
    "chebyshev": lambda: filters.Chebyshev(4),
    "legendre": lambda: filters.Legendre(3),
    "jacobi": lambda: filters.Jacobi(3, alpha=1.0, beta=-0.5),
    "inverted": lambda: filters.Inverted(),
    "page_rank": lambda: filters.PageRank(3),
    "resolvent": lambda: filters.Resolvent(3),
}

# Weights and gradients


def without_numbers(path: str) -> str:
    """The path of a weight without the numbers that Keras counts names with."""
    return re.sub(r"_\d+(?=/|$)", "", path)


def names_of(variables: list[Any], parts: int | None = None) -> list[str]:
    """A name for each variable: the last parts of its path, its shape, and how often it occurs."""
    counts: dict[str, int] = {}
    names = []
    for variable in variables:
        path = without_numbers(variable.path)
        path = path if parts is None else "/".join(path.split("/")[-parts:])
        name = f"{path} {tuple(int(size) for size in variable.shape)}"
        counts[name] = counts.get(name, 0) + 1
        names.append(f"{name} #{counts[name]}")
    return names


def in_numpy(x: Any) -> np.ndarray:
    """As float32, or as integers."""
    if not hasattr(x, "dtype"):
        return np.asarray(x)
    kind = keras.backend.standardize_dtype(x.dtype)
    x = ops.cast(x, "float32") if kind in ("bfloat16", "float16") else x
    return np.asarray(ops.convert_to_numpy(x))


def is_float(x: Any) -> bool:
    return hasattr(x, "dtype") and "float" in keras.backend.standardize_dtype(x.dtype)


def draw_weights(owner: Any, keep: Callable[[Any], bool] = lambda variable: False) -> None:
    """Gives each weight of floats a value that depends on its name and shape.

    Trained weights of one axis move from where they start, the others are drawn anew.
    """
    variables = [v for v in owner.weights if is_float(v)]
    for variable, name in zip(variables, names_of(variables, parts=2), strict=True):
        if keep(variable):
            continue
        shape = tuple(variable.shape)
        scale = min(0.4, float(np.prod(shape[:-1])) ** -0.5) if len(shape) > 2 else 0.3
        drawn = noise(name, shape, scale if variable.trainable else 1.0)
        start = 0.0 if len(shape) > 1 or not variable.trainable else in_numpy(variable)
        variable.assign(start + drawn)


def projected(values: list[Any]) -> Any:
    """The sum of all outputs of floats, each times fixed random numbers."""
    total = ops.zeros((), "float32")
    for value in values:
        if is_float(value):
            shape = tuple(int(size) for size in value.shape)
            weights = ops.convert_to_tensor(noise("projection", shape))
            total = total + ops.sum(ops.cast(value, "float32") * weights)
    return total


def value_and_gradients(run: Run) -> dict[str, np.ndarray]:
    """The outputs of a run and its gradients, by name."""
    if run.eager:
        values = keras.tree.flatten(run.function(*run.arrays))
        return {f"output {index}": in_numpy(value) for index, value in enumerate(values)}
    trained = list(run.owner.trainable_variables) if run.owner is not None else []
    frozen = list(run.owner.non_trainable_variables) if run.owner is not None else []
    moving = [index for index, array in enumerate(run.arrays) if array.dtype.kind == "f"]
    inputs = [ops.convert_to_tensor(array) for array in run.arrays]
    start = [ops.convert_to_tensor(in_numpy(v), dtype=v.dtype) for v in trained]

    def loss(*tensors: Any) -> Any:
        arrays = list(inputs)
        for index, tensor in zip(moving, tensors, strict=False):
            arrays[index] = tensor
        pairs = list(zip(trained, tensors[len(moving) :], strict=True))
        with keras.StatelessScope(state_mapping=pairs + [(v, v.value) for v in frozen]):
            values = keras.tree.flatten(run.function(*arrays))
        return projected(values), values

    values, gradients = differentiated(loss, [*(inputs[index] for index in moving), *start])
    names = [f"gradient input {index}" for index in moving]
    names += [f"gradient {name}" for name in names_of(trained)]
    results = {f"output {index}": in_numpy(value) for index, value in enumerate(values)}
    return results | {
        name: np.asarray(gradient, "float32")
        for name, gradient in zip(names, gradients, strict=True)
    }


def differentiated(loss: Callable[..., Any], tensors: list[Any]) -> tuple[list[Any], list[Any]]:
    """The values beside a loss, and its gradients as arrays: zeros where it does not depend."""
    if BACKEND == "jax":
        import jax

        places = tuple(range(len(tensors)))
        if not places:
            return jax.jit(loss)()[1], []
        (_, values), gradients = jax.jit(jax.value_and_grad(loss, places, has_aux=True))(*tensors)
    elif BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(tensors)
            total, values = loss(*tensors)
        gradients = [
            None if g is None else tf.convert_to_tensor(g) for g in tape.gradient(total, tensors)
        ]
    else:
        tensors = [tensor.detach().clone().requires_grad_() for tensor in tensors]
        total, values = loss(*tensors)
        if tensors and total.requires_grad:
            gradients = torch.autograd.grad(total, tensors, allow_unused=True)
        else:
            gradients = [None] * len(tensors)
    gradients = [
        np.zeros(tuple(tensor.shape), "float32") if gradient is None else in_numpy(gradient)
        for tensor, gradient in zip(tensors, gradients, strict=True)
    ]
    return values, gradients


# Layers

GFA, AGF = layers.GraphFilterAttention, layers.AttentiveGraphFilter
P_LAPLACIAN, GKAT = layers.PLaplacianAttention, layers.GraphKernelAttention
KERNEL, HIGH = layers.MaskedKernelAttention, layers.ScaledHighFrequencyAttention
PADDING = {"query_mask": PADDED, "value_mask": PADDED}
PLAIN: dict[str, dict[str, Any]] = {
    "plain": {},
    "padding": PADDING,
    "causal": {"use_causal_mask": True},
    "pairs, padding": {**PADDING, "attention_mask": PAIRS},
}
SHORT = {name: PLAIN[name] for name in ("plain", "padding")}
SCORES = {"scores": {"return_attention_scores": True, "query_mask": PADDED}}
MATRIX = {"filter matrix": {"return_filter_matrix": True, "query_mask": PADDED}}
ALL = {**PLAIN, **SCORES, **MATRIX}
HALF = "mixed_bfloat16"


def mask_inputs(mask: Any) -> dict[str, Any]:
    inputs = {name: PER_EXAMPLE[name] for name in getattr(mask, "inputs_at_call", ())}
    return {"mask_inputs": inputs} if inputs else {}


def built(make: Callable[[], Any], policy: str = "float32") -> Any:
    """A layer with drawn weights."""
    keras.config.set_dtype_policy(policy)
    try:
        layer = make()
        layer.build(TOKENS.shape)
    finally:
        keras.config.set_dtype_policy("float32")
    draw_weights(layer)
    return layer


def run_layer(make: Callable[[], Any], call: dict[str, Any], policy: str = "float32") -> Run:
    layer = built(make, policy)
    call = {**mask_inputs(getattr(layer, "mask", None)), **call}
    return Run(lambda x: layer(x, **call), [TOKENS], layer)


def add_layer(
    name: str, make: Callable[[], Any], calls: dict[str, dict[str, Any]], area: str = "layers"
) -> None:
    forms = list(calls)
    for form in dict.fromkeys((forms[0], forms[-1])) if COMPILES else forms:
        CASES[f"{area}/{name}/{form}"] = lambda make=make, call=calls[form]: run_layer(make, call)
    if area == "layers" or not COMPILES:
        CASES[f"{area}/{name}/half"] = lambda make=make: run_layer(make, {}, HALF)


def of(kind: type, **options: Any) -> Callable[[], Any]:
    return lambda: kind(HEADS, SIZE, **options)


BLOCKS = {"attention_path": "blockwise", "block_size": 5}
GROUPED = {"num_key_value_heads": 2}
GATE = {"use_gate": True}
LAYERS: dict[str, tuple[Callable[[], Any], dict[str, dict[str, Any]]]] = {
    "graph filter": (of(GFA), ALL),
    "graph filter, no bias": (of(GFA, use_bias=False, value_dim=3, output_shape=5), ALL),
    "graph filter, window": (of(GFA, sliding_window=3), PLAIN),
    "graph filter, dropout on the filter": (of(GFA, dropout=0.3, dropout_on="filter"), SHORT),
    "graph filter, gate": (of(GFA, **GATE), SHORT),
    "graph filter, blockwise": (of(GFA, **BLOCKS), PLAIN),
    "graph filter, blockwise, window": (of(GFA, sliding_window=3, **BLOCKS), PLAIN),
    "graph filter, fused": (of(GFA, attention_path="fused"), PLAIN),
    "p-Laplacian": (of(P_LAPLACIAN), PLAIN | SCORES),
    "p-Laplacian, p of heads": (of(P_LAPLACIAN, p=[1.5, 2.5]), PLAIN | SCORES),
    "p-Laplacian, dense": (of(P_LAPLACIAN, attention_path="dense", p=1.3), PLAIN | SCORES),
    "p-Laplacian, blockwise": (of(P_LAPLACIAN, p=1.3, **BLOCKS), PLAIN),
    "p-Laplacian, diagonal dropped": (of(P_LAPLACIAN, p=1.2, diagonal="drop"), PLAIN),
    "p-Laplacian, blockwise, dropped": (of(P_LAPLACIAN, p=1.2, diagonal="drop", **BLOCKS), PLAIN),
    "high frequencies": (of(HIGH), PLAIN | SCORES),
    "AGF": (of(AGF), SHORT),
    "AGF, Chebyshev": (of(AGF, filter="chebyshev", order=4, value_dim=3), SHORT),
    "AGF, constant, orthogonality": (
        of(AGF, learned_constant=True, orthogonality_weight=0.1),
        SHORT,
    ),
    "AGF, causal": (of(AGF, causal=True), SHORT),
    "AGF, causal, constant": (of(AGF, causal=True, learned_constant=True), SHORT),
    "kernel": (of(KERNEL), PLAIN),
    "kernel, no bias": (of(KERNEL, use_bias=False, value_dim=3, output_shape=5), SHORT),
    "kernel, dense": (of(KERNEL, path="dense"), PLAIN),
    "kernel, filter": (of(KERNEL, filter="first_order"), SHORT),
    **{
        f"kernel, {name}": (of(KERNEL, feature_map=name), SHORT)
        for name in ("squared_relu", "elu", "favor")
    },
    "kernel, FAVOR, more features": (
        of(KERNEL, feature_map=feature_maps.Favor(num_features=12, seed=0)),
        SHORT,
    ),
    "kernel, chunk of features": (
        lambda: KERNEL(HEADS, SIZE, mask=masks.Toeplitz(LENGTH), path="fft", feature_chunk=2),
        SHORT,
    ),
    "kernel, causal, squared ReLU, filter": (
        of(KERNEL, mask="causal", feature_map="squared_relu", filter="chebyshev", order=2),
        SHORT,
    ),
}
for _name, (_make, _calls) in LAYERS.items():
    add_layer(_name, _make, _calls)
for _name, _options in {
    "graph filter, grouped": {},
    "graph filter, grouped, blockwise": BLOCKS,
    "graph filter, grouped, fused": {"attention_path": "fused"},
}.items():
    add_layer(
        _name,
        lambda options=_options: GFA(4, SIZE, **GROUPED, **options),
        PLAIN if _options else ALL,
    )
for _name, _options in {
    "p-Laplacian, grouped": {"attention_path": "dense"},
    "p-Laplacian, grouped, blockwise": BLOCKS,
}.items():
    add_layer(_name, lambda options=_options: P_LAPLACIAN(4, SIZE, **GROUPED, **options), PLAIN)
for _kind in (layers.GraphMeanPooling, layers.GraphSumPooling, layers.GraphMaxPooling):
    add_layer(_kind.__name__, _kind, {"plain": {}, "padding": {"mask": PADDED}})
add_layer("ContraNorm attention", lambda: layers.ContraNormAttention(HEADS, SIZE), PLAIN)
add_layer("ContraNorm", lambda: layers.ContraNorm(0.3), {"plain": {}, "padding": {"mask": PADDED}})
for _name in (
    "Segments",
    "Entries",
    "Exponential",
    "Toeplitz",
    "Tree",
    "GraphDiffusion, laplacian",
):
    add_layer(f"GKAT, {_name}", lambda make=MASKS[_name]: GKAT(HEADS, SIZE, mask=make()), PLAIN)
for _name in (
    *("RandomWalk", "RandomWalk per example", "RandomWalk per example, decay"),
    *("RandomWalk, exact, decay", "GraphDiffusion, laplacian", "Segments"),
):
    for _form, _options in {
        "dot product": {},
        "additive": {"score": "additive"},
        "factored": {"feature_map": "favor"},
        "dynamic walks": {"dynamic_walks": True},
        "dynamic walks, additive": {"dynamic_walks": True, "score": "additive"},
    }.items():
        if "Walk" in _name or "walks" not in _form:
            add_layer(
                f"GKAT, {_form}, {_name}",
                lambda make=MASKS[_name], options=_options: GKAT(
                    HEADS, SIZE, mask=make(), **options
                ),
                SHORT if "walks" in _form or "factored" in _form else PLAIN,
            )
CASES["layers/GKAT, scores"] = lambda: run_layer(
    of(GKAT, mask=masks.Exponential()), {"return_attention_scores": True}
)

# Filters


for _name, _make in FILTERS.items():
    for _path, _options in {
        "dense": {},
        "blockwise": BLOCKS,
        "fused": {"attention_path": "fused"},
    }.items():
        add_layer(
            f"{_name}, {_path}",
            lambda make=_make, options=_options: GFA(HEADS, SIZE, filter=make(), **options),
            {**PLAIN, **MATRIX} if _path == "dense" else PLAIN,
            "filters",
        )
    for _mask in (None, "Exponential, causal", "Tree", "Segments"):
        add_layer(
            f"{_name}, kernel, {_mask}",
            lambda make=_make, mask=_mask: KERNEL(
                HEADS, SIZE, filter=make(), mask=None if mask is None else MASKS[mask]()
            ),
            SHORT,
            "filters",
        )
    if _name in ("monomial", "chebyshev", "legendre", "jacobi"):
        for _causal in (False, True):
            add_layer(
                f"{_name}, AGF, {'causal' if _causal else 'all'}",
                lambda make=_make, causal=_causal: AGF(HEADS, SIZE, filter=make(), causal=causal),
                SHORT,
                "filters",
            )

# Masks

FEATURES, WIDTH = 5, 3


def signals() -> list[np.ndarray]:
    """Features of queries and keys, positive, and a signal."""
    shapes = (("query", FEATURES), ("key", FEATURES), ("signal", WIDTH))
    arrays = [noise(name, (BATCH, LENGTH, HEADS, size)) for name, size in shapes]
    return [np.abs(arrays[0]), np.abs(arrays[1]), arrays[2]]


def built_mask(name: str) -> tuple[Any, dict[str, Any]]:
    mask = MASKS[name]()
    mask.build((None, LENGTH, HEADS, WIDTH))
    draw_weights(mask)
    return mask, mask_inputs(mask).get("mask_inputs", {})


def run_mask(name: str, form: str, path: str = "auto") -> Run:
    mask, inputs = built_mask(name)
    if form == "dense":
        return Run(lambda: mask.dense(LENGTH, **inputs), [], mask)
    if form == "rows":
        return Run(lambda: mask.rows(np.array([0, 3, 11, 15]), LENGTH, **inputs), [], mask)
    if form == "apply":
        return Run(lambda x: mask.apply(x, path, **inputs), signals()[2:], mask)
    if form == "state":
        return Run(lambda *arrays: steps_of(mask, inputs, *arrays), signals(), mask)
    return Run(lambda q, k, x: mask.attend(q, k, x, path, **inputs), signals(), mask)


def steps_of(mask: Any, inputs: dict[str, Any], *arrays: Any) -> Any:
    """Attention in three steps of a state."""
    state = mask.get_initial_state(BATCH, HEADS, FEATURES, WIDTH)
    outputs = []
    for first, last in ((0, 5), (5, 6), (6, LENGTH)):
        new = {name: array[:, first:last] for name, array in inputs.items()}
        output, state = mask.step(state, *(x[:, first:last] for x in arrays), **new)
        outputs.append(output)
    return ops.concatenate(outputs, axis=1)


def paths_of(name: str) -> tuple[str, ...]:
    """The paths of a mask; those of this package."""
    with contextlib.suppress(Exception):
        return tuple(MASKS[name]().paths)
    return ("dense", "blockwise")


for _name in MASKS:
    for _form in ("dense", "rows"):
        CASES[f"masks/{_name}/{_form}"] = lambda name=_name, form=_form: run_mask(name, form)
    for _path in ("auto", *paths_of(_name)):
        for _form in ("attend",) if COMPILES and _path != "auto" else ("apply", "attend"):
            CASES[f"masks/{_name}/{_form}, {_path}"] = lambda name=_name, form=_form, path=_path: (
                run_mask(name, form, path)
            )
        if _path == "auto" or not COMPILES:
            add_layer(
                f"{_name}/kernel, {_path}",
                lambda make=MASKS[_name], path=_path: KERNEL(
                    HEADS, SIZE, mask=make(), path=path, feature_map="favor"
                ),
                PLAIN if _path in ("auto", "dense") else SHORT,
                "masks",
            )
    if _name in ("Causal", "Exponential, causal", "Product, segments"):
        CASES[f"masks/{_name}/state"] = lambda name=_name: run_mask(name, "state")

# Decoding


def run_decoding(make: Callable[[], Any], policy: str = "float32", padded: bool = False) -> Run:
    """A prompt of five tokens, and then one by one, or three at a time."""
    layer = built(make, policy)
    inputs = mask_inputs(getattr(layer, "mask", None)).get("mask_inputs", {})
    has_cache = hasattr(layer, "get_initial_cache")

    def decode(tokens: Any) -> Any:
        state = (
            layer.get_initial_cache(BATCH, LENGTH) if has_cache else layer.get_initial_state(BATCH)
        )
        outputs = []
        for first, last in ((0, 5), (5, 6), (6, 7), (7, 10), (10, LENGTH)):
            call: dict[str, Any] = {}
            if inputs:
                call["mask_inputs"] = {name: x[:, first:last] for name, x in inputs.items()}
            if padded:
                call["padding_mask"] = PADDED[:, first:last]
            places = [first] if has_cache else []
            output, state = layer.decode(tokens[:, first:last], state, *places, **call)
            outputs.append(output)
        return ops.concatenate(outputs, axis=1), state

    # the graph in which TensorFlow writes to a cache has no gradient
    return Run(decode, [TOKENS], layer, eager=BACKEND == "tensorflow")


DECODED: dict[str, Callable[[], Any]] = {
    **{
        f"graph filter, {name}": (lambda f=f: GFA(HEADS, SIZE, filter=f()))
        for name, f in FILTERS.items()
    },
    "graph filter, blockwise": of(GFA, **BLOCKS),
    "graph filter, fused": of(GFA, attention_path="fused"),
    "graph filter, window": of(GFA, sliding_window=3, filter="chebyshev", order=3),
    "graph filter, grouped": lambda: GFA(4, SIZE, **GROUPED),
    "p-Laplacian": of(P_LAPLACIAN),
    "p-Laplacian, p of heads": of(P_LAPLACIAN, p=[1.5, 2.5]),
    "p-Laplacian, dropped": of(P_LAPLACIAN, p=1.2, diagonal="drop"),
    "p-Laplacian, grouped": lambda: P_LAPLACIAN(4, SIZE, p=1.4, **GROUPED),
    "AGF": of(AGF, causal=True),
    "AGF, constant, Chebyshev": of(
        AGF, causal=True, filter="chebyshev", order=4, learned_constant=True
    ),
    "kernel": of(KERNEL, feature_map="elu"),
    "kernel, FAVOR": of(KERNEL, feature_map="favor"),
    "kernel, filter": of(KERNEL, filter="first_order"),
    **{
        f"kernel, {name}": (lambda make=MASKS[name]: KERNEL(HEADS, SIZE, mask=make()))
        for name in (
            "Causal",
            "Exponential",
            "Exponential, causal",
            "Product, segments",
            "Segments",
        )
    },
    "kernel, Exponential, Chebyshev": lambda: KERNEL(
        HEADS, SIZE, mask=masks.Exponential(2), filter="chebyshev", order=3, feature_map="favor"
    ),
}
for _name, _make in DECODED.items():
    CASES[f"decoding/{_name}/plain"] = lambda make=_make: run_decoding(make)
    CASES[f"decoding/{_name}/padding"] = lambda make=_make: run_decoding(make, padded=True)
    CASES[f"decoding/{_name}/half"] = lambda make=_make: run_decoding(make, HALF)


# The papers' formulas, as `keras_graphattn.ops` has them


def heads(name: str, size: int = SIZE) -> np.ndarray:
    return noise(name, (BATCH, LENGTH, HEADS, size))


F = keras_graphattn.ops
Q, K, V = heads("query"), heads("key"), heads("values", WIDTH)
PHI_Q, PHI_K, PER_HEAD = np.abs(Q), np.abs(K), [noise(name, (HEADS,)) for name in "abc"]
SEEN, IDS = PAIRS[None, None] & PADDED[:, None, None], PER_EXAMPLE["segment_ids"]
LENGTHS = np.linspace(0.2, 2.0, LENGTH)


def attention(q: Any, k: Any) -> Callable[[Any], Any]:
    """Plain attention as an operator."""
    matrix = F.attention_matrix(q, k)
    return lambda x: ops.einsum("bnts,bsnd->btnd", matrix, x)


def polynomial_of(basis: str) -> Callable[..., Any]:
    return lambda q, k, v, weights: F.polynomial_filter(
        attention(q, k), v, weights, F.recurrence(basis, 3)
    )


def chunked(causal: bool) -> Callable[..., Any]:
    return lambda q, k, v: F.chunked_attention(
        q, k, v, causal=causal, segment_ids=IDS, chunk_size=5
    )


OPS: dict[str, tuple[Any, ...]] = {  # a function, and the arrays that it takes
    "attention_matrix": (lambda q, k: F.attention_matrix(q, k, SEEN), Q, K),
    "first_order_filter": (
        lambda q, k, v, *w: F.first_order_filter(attention(q, k), v, *w, 3),
        *(Q, K, V, *(weight[:, None] for weight in PER_HEAD)),
    ),
    **{
        f"polynomial_filter, {basis}": (polynomial_of(basis), Q, K, V, noise("w", (4, HEADS, 1)))
        for basis in ("monomial", "chebyshev", "legendre")
    },
    "p_laplacian": (lambda q, k, v: F.p_laplacian_attention(q, k, v, [1.5, 2.5]), Q, K, V),
    "singular_value_attention": (
        lambda q, k, v: F.singular_value_attention(ops.softmax(q), ops.softmax(k, axis=1), v),
        *(Q, K, V),
    ),
    "orthogonality_penalty": (
        lambda k: F.orthogonality_penalty(
            ops.where(PADDED[..., None, None], ops.softmax(k, axis=1), 0.0), PADDED
        ),
        K,
    ),
    "causal_singular_value_attention": (
        lambda q, k, v: F.causal_singular_value_attention(
            ops.softmax(q), k, v, PADDED, chunk_size=5
        )[0],
        *(Q, K, V),
    ),
    "unmasked_attention": (lambda q, k, v: F.unmasked_attention(q, k, v), PHI_Q, PHI_K, V),
    "chunked_attention": (chunked(causal=False), PHI_Q, PHI_K, V),
    "chunked_attention, causal": (chunked(causal=True), PHI_Q, PHI_K, V),
    "toeplitz_product": (lambda t, x: F.toeplitz_product(t, x), noise("t", (HEADS, 31)), V),
    "toeplitz_product, grid": (
        lambda t, x: F.toeplitz_product(t, x, (4, 4)),
        *(noise("t", (HEADS, 7, 7)), V),
    ),
    "hypercube_product": (lambda x, t: F.hypercube_product(x, ops.abs(t)), V, PER_HEAD[0]),
    "exponential_tree_product": (
        lambda x, a, b: F.exponential_tree_product(
            x, -ops.abs(a), b, F.forest_from_parents(PARENTS, LENGTHS)
        ),
        *(V[0], *PER_HEAD[:2]),
    ),
    "table_tree_product": (
        lambda x, t: F.table_tree_product(x, t, F.forest_from_parents(PARENTS)),
        *(V[0], noise("t", (7, HEADS))),
    ),
}
for _name, (_function, *_arrays) in OPS.items():
    CASES[f"ops/{_name}"] = lambda function=_function, arrays=_arrays: Run(function, arrays)

# Converted models of KerasHub

ATTENTIONS: dict[str, dict[str, Any]] = {
    "graph_filter": {"order": 4},
    "p_laplacian": {"p": 1.5, "epsilon": 0.5},
    "attentive_graph_filter": {},
    "masked_kernel": {},
}
FIXED = ("position_embeddings", "inv_freq")  # interpolated from others, or a table
# Families with Keras' own attention, which the linear kinds can replace
STOCK = (
    *("bert", "roberta", "xlm_roberta", "distil_bert", "electra", "albert", "bart", "vit"),
    *("deit", "clip", "siglip", "dinov2", "gpt2", "opt", "whisper", "metaclip_2", "parseq"),
    *("edrec", "blip2", "depth_anything"),
)
GENERATED = 8  # tokens, of which three and five are the prompts


class StandIn(types.ModuleType):
    """A module that has every name, for tests that import what this package may not have."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **options: None


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for every module inside the package."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        inside = name.startswith("keras_graphattn.")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if inside else None

    def create_module(self, spec: Any) -> StandIn:
        return StandIn(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


def tables_of_tests() -> list[Any]:
    """Modules of `tests.hub` beside this script, which make tiny backbones and their inputs.

    The package may be of another commit. What those tests import of its inside is not used here.
    """
    import keras_hub  # noqa: F401  # before the stand-ins: the package acts when it is imported

    here = Path(__file__).resolve().parents
    root = next(folder for folder in here if (folder / "tests/hub/families.py").exists())

    def take_out() -> dict[str, Any]:
        names = [name for name in sys.modules if name.startswith("keras_graphattn.")]
        return {name: sys.modules.pop(name) for name in names}

    inside, finder = take_out(), StandIns()
    sys.meta_path.insert(0, finder)
    sys.path.insert(0, str(root))
    try:
        modules = ("families", "biased_decoders", "sequence_to_sequence", "models")
        return [importlib.import_module(f"tests.hub.{name}") for name in modules]
    finally:
        sys.path.remove(str(root))
        sys.meta_path.remove(finder)
        take_out()
        sys.modules.update(inside)


def converted(family: Any, attention: str, *, as_task: bool = False) -> Any:
    """A converted backbone, or its task, with drawn weights."""
    model = family.make()
    before = {v.path for v in model.weights}
    keras_graphattn.convert(model, attention, family.where, **ATTENTIONS[attention])
    added = {v.path for v in model.weights} - before
    model = family.make_task(model) if as_task else model

    def keep(variable: Any) -> bool:
        fixed = any(name in variable.path for name in FIXED)
        return fixed or not (variable.trainable or variable.path in added)

    draw_weights(model, keep)
    return model


def run_family(family: Any, attention: str, tables: list[Any]) -> Run:
    model = converted(family, attention)
    return run_converted(model, family.inputs(model), tables)


def run_converted(model: Any, inputs: dict[str, Any], tables: list[Any]) -> Run:
    names = list(inputs)

    def call(*arrays: Any) -> Any:
        inputs = tables[3].as_given(model, dict(zip(names, arrays, strict=True)))
        return model(inputs, training=False)

    return Run(call, [np.asarray(inputs[name]) for name in names], model)


def run_generate(family: Any, attention: str, tables: list[Any]) -> Run:
    """Tokens of `generate`, and the probabilities at each step; nothing where there is no task."""
    import keras_hub

    _, decoders, pairs, models = tables
    if not hasattr(family.task, "generate") or family.name == "parseq":  # needs a preprocessor
        return Run(list, [], eager=True)
    task = converted(family, attention, as_task=True)
    wanted = models.wanted_by(task)
    if "encoder_padding_mask" in wanted:
        inputs = pairs.prompts(task.backbone, GENERATED)
    else:
        inputs = {**family.inputs(task.backbone), **decoders.prompts(GENERATED)}
        inputs.pop("position_ids", None)
        if "response_mask" in inputs:
            inputs["response_mask"] = 1 - inputs["padding_mask"]
        inputs = {name: x for name, x in inputs.items() if name in models.wanted_by(task.backbone)}
    if isinstance(task, keras_hub.models.Gemma3CausalLM):  # it returns them
        inputs["images"] = np.zeros((BATCH, 0, 16, 16, 3), "float32")
    probabilities = []

    class Keeping(keras_hub.samplers.GreedySampler):  # type: ignore[misc]
        def get_next_token(self, values: Any) -> Any:
            probabilities.append(in_numpy(values))
            return super().get_next_token(values)

    def generate() -> Any:
        task.compile(sampler=Keeping(), run_eagerly=True)
        with without_compiling():
            outputs = task.generate(inputs, stop_token_ids=None)
        return [np.stack(probabilities), *keras.tree.flatten(outputs)]

    return Run(generate, [], eager=True)


@contextlib.contextmanager
def without_compiling() -> Iterator[None]:
    """Loops of jax run in Python, so that their values are known."""
    if BACKEND != "jax":
        yield
        return
    import jax

    with jax.disable_jit():
        yield


def hub_cases() -> dict[str, Callable[[], Run]]:
    """Forward pass and gradients of each family and attention, and a text of each decoder."""
    tables = tables_of_tests()
    cases: dict[str, Callable[[], Run]] = {}
    for name in tables[0].FAMILIES:
        for attention in ATTENTIONS if name in STOCK else ("graph_filter", "p_laplacian"):
            cases[f"hub/{name}/{attention}/forward"] = lambda name=name, attention=attention: (
                run_family(tables[0].family(name), attention, tables)
            )
        for attention in ("graph_filter", "p_laplacian"):
            cases[f"hub/{name}/{attention}/generate"] = lambda name=name, attention=attention: (
                run_generate(tables[0].family(name), attention, tables)
            )
    return cases


# Saved files

FILES: dict[str, Callable[[], Any]] = {  # one saved model of each layer, mask, filter and map
    **{name: make for name, (make, _) in LAYERS.items()},
    "ContraNorm": lambda: layers.ContraNorm(0.3),
    "GraphMeanPooling": layers.GraphMeanPooling,
    "GraphSumPooling": layers.GraphSumPooling,
    "GraphMaxPooling": layers.GraphMaxPooling,
    "GKAT": lambda: GKAT(HEADS, SIZE, mask=MASKS["RandomWalk, drawn"]()),
    "GKAT, additive": lambda: GKAT(HEADS, SIZE, mask=MASKS["RandomWalk"](), score="additive"),
    "GKAT, dynamic walks": lambda: GKAT(
        HEADS, SIZE, mask=MASKS["RandomWalk"](), dynamic_walks=True
    ),
    "GKAT, factored": lambda: GKAT(HEADS, SIZE, mask=MASKS["Tree"](), feature_map="favor"),
    **{
        f"mask {name}": lambda make=make: KERNEL(HEADS, SIZE, mask=make())
        for name, make in MASKS.items()
    },
    **{
        f"filter {name}": lambda make=make: GFA(HEADS, SIZE, filter=make())
        for name, make in FILTERS.items()
    },
}
HUB_FILES = ("bert", "gpt2", "llama", "gemma3", "t5", "deberta_v3", "swin", "bart", "clip")


def file_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def model_of(make: Callable[[], Any]) -> Any:
    """A model of a layer between two Dense layers, with drawn weights."""
    layer = make()
    inputs = {"tokens": keras.Input((LENGTH, CHANNELS), name="tokens")}
    for name in getattr(getattr(layer, "mask", None), "inputs_at_call", ()):
        array = PER_EXAMPLE[name]
        inputs[name] = keras.Input(array.shape[1:], dtype=array.dtype.name, name=name)
    call = {name: x for name, x in inputs.items() if name != "tokens"}
    hidden = keras.layers.Dense(CHANNELS, name="first")(inputs["tokens"])
    hidden = layer(hidden, mask_inputs=call) if call else layer(hidden)
    model = keras.Model(inputs, keras.layers.Dense(3, name="last")(hidden))
    draw_weights(model)
    return model


def run_file(model: Any, inputs: dict[str, np.ndarray]) -> Run:
    names = list(inputs)
    return Run(
        lambda *arrays: model(dict(zip(names, arrays, strict=True)), training=False),
        list(inputs.values()),
        model,
    )


def file_cases(folder: Path, *, save: bool) -> dict[str, Callable[[], Run]]:
    """Cases that save models to a folder, or load them from there."""

    def layer_case(name: str, make: Callable[[], Any], weights: bool) -> Run:
        path = folder / file_name(name)
        if save:
            model = model_of(make)
            model.save(f"{path}.keras")
            model.save_weights(f"{path}.weights.h5")
        elif weights:
            model = model_of(make)
            for variable in model.weights:
                variable.assign(ops.zeros_like(variable))
            model.load_weights(f"{path}.weights.h5")
        else:
            model = keras.saving.load_model(f"{path}.keras")
        inputs = {name: PER_EXAMPLE.get(name, TOKENS) for name in model.input}
        return run_file(model, inputs)

    def hub_case(name: str, attention: str, preset: bool) -> Run:
        tables = tables_of_tests()
        family, path = tables[0].family(name), folder / f"hub_{name}_{attention}"
        if save:
            model = converted(family, attention)
            model.save(f"{path}.keras")
            model.save_to_preset(str(path))
        elif preset:
            model = type(family.make()).from_preset(str(path))
        else:
            model = keras.saving.load_model(f"{path}.keras")
        return run_converted(model, family.inputs(model), tables)

    cases: dict[str, Callable[[], Run]] = {}
    for name, make in FILES.items():
        for weights in (False, True):
            cases[f"files/{name}/{'weights' if weights else 'model'}"] = (
                lambda name=name, make=make, weights=weights: layer_case(name, make, weights)
            )
    for name in HUB_FILES:
        for attention in (
            ATTENTIONS if name in ("bert", "gpt2") else ("graph_filter", "p_laplacian")
        ):
            for preset in (False, True):
                cases[f"files/{name}, {attention}/{'preset' if preset else 'model'}"] = (
                    lambda name=name, attention=attention, preset=preset: hub_case(
                        name, attention, preset
                    )
                )
    return cases


# Running and comparing


def named(cases: Iterable[str], options: argparse.Namespace) -> list[str]:
    """The cases that the options name."""
    area, text = options.only, options.cases
    return [
        name
        for name in cases
        if (area is None or name.startswith(f"{area}/")) and (text is None or text in name)
    ]


def record(options: argparse.Namespace) -> None:
    """Runs the cases and writes their arrays."""
    if options.files or options.load:
        folder = options.files or options.load
        folder.mkdir(parents=True, exist_ok=True)
        cases = file_cases(folder, save=options.load is None)
    else:
        cases = hub_cases() if options.only == "hub" else CASES
    results: dict[str, np.ndarray] = {}
    chosen = named(cases, options)
    began, errors = time.perf_counter(), 0
    for name in chosen:
        start = time.perf_counter()
        record = recorded(cases[name])
        errors += "error" in record
        results |= {f"{name}|{key}": array for key, array in record.items()}
        if options.verbose:
            seconds = time.perf_counter() - start
            print(f"{seconds:6.2f} s {name} {record.get('error', '')}", flush=True)
    np.savez_compressed(options.output, **results)
    seconds = time.perf_counter() - began
    print(f"{BACKEND}: {len(chosen)} cases, {errors} of them errors, {seconds:.0f} s")


def recorded(make: Callable[[], Run]) -> dict[str, np.ndarray]:
    """The arrays of one case, or its error."""
    keras.utils.set_random_seed(0)
    try:
        return value_and_gradients(make())
    except Exception as error:
        text = re.sub(r"0x[0-9a-f]+|_\d+\b", "", f"{type(error).__name__}: {error}")
        return {"error": np.array(text[:400])}


def cases_of(path: Path) -> dict[str, dict[str, np.ndarray]]:
    cases: dict[str, dict[str, np.ndarray]] = {}
    with np.load(path) as file:
        for key in file.files:
            name, _, array = key.partition("|")
            cases.setdefault(name, {})[array] = file[key]
    return cases


def rms(array: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(array.astype("float64"))))) if array.size else 0.0


def differences(old: dict[str, np.ndarray], new: dict[str, np.ndarray]) -> dict[str, float]:
    """How far each array of a case is from the old one, relative to its size.

    An array that is only rounding, smaller than 1e-6 of the case's largest gradient, is compared
    relative to this one. NaN has to be where it was; another shape is an infinite difference.
    """
    if "error" in old or "error" in new:
        return {"error": 0.0 if str(old.get("error")) == str(new.get("error")) else np.inf}
    finite = {name: np.where(np.isfinite(a), a, 0) for name, a in old.items()}
    largest = max((rms(a) for name, a in finite.items() if "gradient" in name), default=0.0)
    distances = {}
    for name in {**old, **new}:
        if name not in old or name not in new or old[name].shape != new[name].shape:
            distances[name] = np.inf
            continue
        a, b = old[name], new[name]
        bad = ~np.isfinite(a)
        if (bad != ~np.isfinite(b)).any() or (a[bad].astype(str) != b[bad].astype(str)).any():
            distances[name] = np.inf
            continue
        size = rms(finite[name])
        if "gradient" in name and size <= 1e-6 * largest:
            size = largest
        distance = rms(np.where(bad, 0, b).astype("float64") - finite[name])
        distances[name] = distance / max(size, 1e-30)
    return distances


def compare(options: argparse.Namespace) -> int:
    """Prints what differs. Returns the exit status."""
    old, new = cases_of(options.before), cases_of(options.after)
    chosen = named({**old, **new}, options)
    both = [name for name in chosen if name in old and name in new]
    for side, other, label in ((old, new, "after"), (new, old, "before")):
        missing = [name for name in chosen if name in side and name not in other]
        if missing:
            print(f"missing {label}, {len(missing)} cases:", *missing, sep="\n  ")
    worst = []
    different = 0
    for name in both:
        distances = differences(old[name], new[name])
        array, value = max(distances.items(), key=lambda item: item[1])
        worst.append((value, name, array))
        if value > options.tolerance:
            different += 1
            if "error" in distances:
                texts = (str(side[name].get("error", "no error")) for side in (old, new))
                print(f"differs: {name}", *texts, sep="\n    ")
            else:
                count = sum(each > options.tolerance for each in distances.values())
                print(
                    f"differs: {name}: {value:.1e} in {array}, {count} of {len(distances)} arrays"
                )
    print("largest differences:")
    for value, name, array in sorted(worst, reverse=True)[:10]:
        print(f"  {value:.1e} {name}: {array}")
    lost = len(chosen) - len(both)
    print(
        f"{len(both)} cases compared, {different} differ by more than {options.tolerance:g}, "
        f"{lost} on one side only"
    )
    return int(different + lost > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run the cases")
    recording.add_argument("--output", type=Path, required=True)
    recording.add_argument("--verbose", action="store_true", help="time and error of each case")
    recording.add_argument("--files", type=Path, help="save models to this folder")
    recording.add_argument("--load", type=Path, help="load the models of this folder")
    comparing = commands.add_parser("compare", help="compare two files")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--tolerance", type=float, default=1e-6)
    for each in (recording, comparing):
        each.add_argument("--only", choices=AREAS)
        each.add_argument("--cases", help="cases whose names contain this text")
    options = parser.parse_args()
    if options.command == "compare":
        return compare(options)
    if BACKEND == "jax":
        import jax

        jax.config.update("jax_disable_most_optimizations", True)  # compiles quickly
    if BACKEND == "torch":
        torch.set_num_threads(1)
    record(options)
    return 0


AREAS = ("layers", "filters", "masks", "decoding", "ops", "hub", "files")

if __name__ == "__main__":
    sys.exit(main())
