"""Masks that take inputs at each call: valid batches for them, and batches with one error."""

import inspect

import numpy as np

from keras_graphattn import masks
from tests import reference_topology as reference

BATCH, LENGTH, BAD = 3, 7, 1  # a wrong entry is always in the example BAD

SHORT = {"initial_time": 0.2, "tolerance": 1e-3}  # few terms of the series
OPTIONS = {  # options for classes where testing `cls()` is not enough
    "GraphDiffusion": {
        "plain, weighted": {"spectral_bound": 20.0, "edge_weights": True} | SHORT,
        "normalized": {"operator": "normalized_laplacian"} | SHORT,
        "adjacency": {"operator": "adjacency", "spectral_bound": 8.0} | SHORT,
    },
    "Tree": {
        "plain": {},
        "weighted": {"edge_weights": True},
        "table": {"function": "table", "max_distance": 3},
        "shallow": {"max_depth": 5},
    },
}


def first_needed(cls):
    """The name of the first argument that a class cannot be made without, or `None`."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    needed = (p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD)
    return next((p.name for p in needed if p.name != "self"), None)


def registry():
    """Maps names to functions that make every mask that takes inputs; finds new classes itself."""
    found = {
        "causal product": lambda: masks.Product([masks.Segments(), masks.Causal()]),
        "product": lambda: masks.Product([masks.Tree(), masks.Segments(), masks.Exponential()]),
    }
    for name in masks.__all__:
        cls = getattr(masks, name)
        if first_needed(cls):
            continue
        for kind, options in OPTIONS.get(name, {"": {}}).items():
            if cls(**options).inputs_at_call:
                found[f"{name} {kind}".strip()] = lambda cls=cls, options=options: cls(**options)
    return found


MASKS = registry()
FIRST = {type(make()): name for name, make in reversed(MASKS.items())}.values()  # one of each class


def made(name):
    mask = MASKS[name]()
    mask.build((None, LENGTH, 2, 3))
    return mask


def batch_for(mask, seed=0, length=LENGTH, batch=BATCH):
    """Returns valid inputs, as NumPy arrays."""
    generator = np.random.default_rng(seed)
    kinds = ("star", "path", "random")[:batch]
    edges = np.full((batch, 12, 2), -1)
    for example in range(batch):
        some = reference.random_edges(LENGTH, 3.0, seed + example)[:12]
        edges[example, : len(some)] = some
    heads = getattr(mask, "num_heads", 2)
    rows = length if "parents" in mask.inputs_at_call else 12
    arrays = {
        "parents": np.stack([reference.random_parents(length, k, seed + 1, 0.2) for k in kinds]),
        "edges": edges,
        "edge_weights": generator.uniform(0.5, 1.5, (batch, rows)).astype("float32"),
        "walks": generator.integers(-1, length, (batch, length, 2, 3)),
        "segment_ids": np.sort(generator.integers(-1, 3, (batch, length)), axis=1),
        "entries": generator.uniform(0, 1, (batch, length, length)).astype("float32"),
        "distances": generator.integers(-2, 30, (batch, length, length)),
        "log_gates": -generator.exponential(1.0, (batch, length, heads)).astype("float32"),
    }
    found = {name: arrays[name] for name in mask.inputs_at_call}
    return {k: a.astype("int32") if a.dtype == "int64" else a for k, a in found.items()}


def _put(name, place, value):
    def change(inputs):
        inputs[name][(BAD, *place)] = value

    return change


def _cycle(inputs):
    inputs["parents"][BAD, [2, 4, 5]] = [4, 5, 2]


def _deep(inputs):
    inputs["parents"][BAD] = np.arange(LENGTH) - 1


def _two_weights(inputs):
    inputs["edges"][BAD, 4] = inputs["edges"][BAD, 0][::-1]
    inputs["edge_weights"][BAD, 4] = 3.0


def _hub(inputs):
    inputs["edges"][BAD] = -1
    inputs["edges"][BAD, :6] = [[0, k] for k in range(1, LENGTH)]
    if "edge_weights" in inputs:
        inputs["edge_weights"][BAD] = 4.0


def _of_batch(name):
    """Numbers nodes over the whole batch, as libraries do that join graphs."""

    def change(inputs):
        inputs[name][BAD] += np.where(inputs[name][BAD] >= 0, BAD * LENGTH, 0)

    return change


NODES = "there are 7 nodes"
# name of an input -> kind of error: (function that makes it, words of the message)
WRONG = {
    "parents": {
        "too large": (_put("parents", (2,), 9), f"node 2 has parent 9, but {NODES}"),
        "below -1": (_put("parents", (3,), -2), f"node 3 has parent -2, but {NODES}"),
        "of the batch": (_of_batch("parents"), f"has parent .*, but {NODES}.*within the example"),
        "own parent": (_put("parents", (3,), 3), "node 3 is its own parent"),
        "cycle": (_cycle, r"nodes [245], [245], [245] form a cycle"),
    },
    "edges": {
        "too large": (_put("edges", (0,), (2, 7)), rf"edge 0 is \(2, 7\), but {NODES}"),
        "below -1": (_put("edges", (0,), (-2, 3)), r"edge 0 is \(-2, 3\)"),
        "half padding": (_put("edges", (1,), (3, -1)), r"edge 1 is \(3, -1\)"),
        "of the batch": (_of_batch("edges"), f"but {NODES}.*within the example"),
        "loop": (_put("edges", (5,), (4, 4)), "edge 5 joins node 4 to itself"),
    },
    "edge_weights": {
        "negative": (_put("edge_weights", (slice(None),), -1.0), "-1"),
        "not a number": (_put("edge_weights", (slice(None),), np.nan), "nan"),
        "infinite": (_put("edge_weights", (slice(None),), np.inf), "inf"),
    },
    "walks": {
        "too large": (
            _put("walks", (2, 1, 0), 8),
            f"step 0 of walk 1 from node 2 is at node 8.*{NODES}",
        ),
        "below -1": (_put("walks", (0, 0, 2), -2), "step 2 of walk 0 from node 0 is at node -2"),
        "of the batch": (_of_batch("walks"), f"{NODES}.*within the example"),
    },
    "segment_ids": {},
    "distances": {"below -2": (_put("distances", (2, 3), -3), r"entry at \(2, 3\) is -3")},
    "log_gates": {
        "positive": (_put("log_gates", (3, 1), 0.5), "token 3 has 0.5 in head 1"),
        "not a number": (_put("log_gates", (3, 1), np.nan), "token 3 has nan in head 1"),
    },
    "entries": {
        "negative": (_put("entries", (2, 3), -1.0), r"entry at \(2, 3\) is -1"),
        "not a number": (_put("entries", (2, 3), np.nan), r"entry at \(2, 3\) is nan"),
        "infinite": (_put("entries", (2, 3), np.inf), r"entry at \(2, 3\) is inf"),
    },
}
OF_ONE = {  # errors of only one mask
    "Tree shallow": {"deep": (_deep, "node 6 has 6 ancestors.*max_depth=5")},
    "GraphDiffusion plain, weighted": {
        "two weights": (_two_weights, "edges 0 and 4 both join nodes"),
        "bound": (_hub, r"d_u \+ d_v .* is 28, .*spectral_bound=20"),
    },
}


def wrong_of(name):
    """Maps each kind of error to (function that changes a valid batch, words of the message)."""
    kinds = {
        f"{which} {kind}": found
        for which in MASKS[name]().inputs_at_call
        for kind, found in WRONG[which].items()
    }
    return kinds | OF_ONE.get(name, {})


def wrong_batches(name):
    """Maps each kind of error to a batch with one wrong entry, in the example BAD."""
    right, found = batch_for(made(name)), {}
    for kind, (change, _) in wrong_of(name).items():
        found[kind] = {key: array.copy() for key, array in right.items()}
        change(found[kind])
    return found
