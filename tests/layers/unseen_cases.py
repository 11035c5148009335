"""Every layer on every path under every mask, and which tokens its rows may not see.

A case is a layer with what its call needs. `kinds_of(case)` lists the reasons for which tokens are
unseen there: padding, the future, a window, another segment, another component of a graph, another
example, or a mask for each pair of positions. `scene` gives the call, the unseen tokens and the
rows that may not see them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from keras_graphattn import layers, masks
from keras_graphattn.filters import Jacobi
from keras_graphattn.graphs import Graph
from keras_graphattn.layers.token_layer import TokenLayer
from tests.biases import registry

BATCH, LENGTH, CHANNELS, HEADS, SIZE = 2, 16, 6, 2, 4
SPLIT = 10  # tokens from here on are padding, the future, another segment or component
# Two trees, two graphs and an isolated node: nodes from SPLIT on are apart from the others
PARENTS = np.array([-1, 0, 0, 1, 1, 2, 3, 5, 7, 8, -1, 10, 10, 11, 13, -1])
EDGES = np.array([[p, i] for i, p in enumerate(PARENTS) if p >= 0] + [[2, 4], [0, 9], [12, 14]])
WEIGHTS = np.linspace(0.5, 1.5, len(EDGES))
FEATURES = np.random.default_rng(4).standard_normal((len(EDGES), 3)).astype("float32")


def _walks():
    """Three walks of four nodes from each node, along edges; the isolated node stays."""
    generator = np.random.default_rng(3)
    near = [[node] for node in range(LENGTH)]
    for a, b in EDGES:
        near[a].append(b)
        near[b].append(a)
    found = np.zeros((LENGTH, 3, 4), "int32")
    found[:, :, 0] = np.arange(LENGTH)[:, None]
    for node, walk, step in np.ndindex(LENGTH, 3, 3):
        found[node, walk, step + 1] = generator.choice(near[found[node, walk, step]])
    return found


WALKS = _walks()
PER_EXAMPLE = {
    "segment_ids": np.repeat(np.where(np.arange(LENGTH) < SPLIT, 1, 2)[None], BATCH, axis=0),
    "entries": np.repeat(
        np.where(np.arange(LENGTH)[:, None] < SPLIT, np.arange(LENGTH) < SPLIT, 1.0)[None],
        BATCH,
        axis=0,
    ).astype("float32"),
    "parents": np.repeat(PARENTS[None], BATCH, axis=0).astype("int32"),
    "edges": np.repeat(EDGES[None], BATCH, axis=0).astype("int32"),
    "edge_weights": np.repeat(WEIGHTS[None], BATCH, axis=0).astype("float32"),
    "edge_features": np.repeat(FEATURES[None], BATCH, axis=0),
    "walks": np.repeat(WALKS[None], BATCH, axis=0),
    **registry.INPUTS,
    "distances": np.repeat(registry.DISTANCES[None], BATCH, axis=0),  # no virtual node
}
APART = {"segment_ids": "segment", "entries": "entries"}  # other inputs are topologies


class Case(NamedTuple):
    make: Callable[[], Any]
    pairwise: bool = True  # takes an attention mask for each pair of positions
    causal: bool = True  # can be called with use_causal_mask=True
    segments: bool = False  # takes `segment_ids` without a mask
    components: bool = False  # its mask, of the constructor, has the two components


def dense(kind: type, *, causal: bool = True, **options: Any) -> Case:
    return Case(lambda: kind(HEADS, SIZE, **options), causal=causal)


GFA, AGF = layers.GraphFilterAttention, layers.AttentiveGraphFilter
P_LAPLACIAN, GKAT = layers.PLaplacianAttention, layers.GraphKernelAttention
KERNEL, DIFFERENTIAL = layers.MaskedKernelAttention, layers.DifferentialAttention

CASES: dict[str, Case] = {
    "graph filter": dense(GFA),
    "graph filter, Jacobi": dense(GFA, filter=Jacobi(2, alpha=1.0)),
    "graph filter, blockwise": dense(GFA, attention_path="blockwise", block_size=5),
    "graph filter, Chebyshev, blockwise": dense(
        GFA, filter="chebyshev", order=2, attention_path="blockwise", block_size=5
    ),
    "graph filter, fused": dense(GFA, attention_path="fused"),
    "graph filter, window": dense(GFA, sliding_window=3, attention_path="blockwise", block_size=5),
    "differential": dense(DIFFERENTIAL),
    "differential, version 2": dense(DIFFERENTIAL, version=2, filter="first_order"),
    "differential, blockwise": dense(DIFFERENTIAL, attention_path="blockwise", block_size=5),
    "differential, fused": dense(DIFFERENTIAL, version=2, attention_path="fused"),
    "p-Laplacian, window": dense(P_LAPLACIAN, sliding_window=3, attention_path="dense"),
    "p-Laplacian, dense": dense(P_LAPLACIAN, attention_path="dense"),
    "p-Laplacian, blockwise": dense(P_LAPLACIAN, attention_path="blockwise", block_size=5),
    "p-Laplacian, diagonal dropped": dense(P_LAPLACIAN, p=1.2, diagonal="drop"),
    "high frequencies": dense(layers.ScaledHighFrequencyAttention),
    "ContraNorm attention": dense(layers.ContraNormAttention, scale=0.5),
    "AGF": Case(lambda: AGF(HEADS, SIZE), pairwise=False, causal=False),
    "AGF, causal": Case(lambda: AGF(HEADS, SIZE, causal=True), pairwise=False),
    "AGF, learned constant": Case(
        lambda: AGF(HEADS, SIZE, learned_constant=True), pairwise=False, causal=False
    ),
    "AGF, tanh": Case(
        lambda: AGF(HEADS, SIZE, vector_activation="tanh"), pairwise=False, causal=False
    ),
    "delta rule": Case(lambda: layers.GatedDeltaRule(HEADS, SIZE), pairwise=False),
    "delta rule, packed, filter": Case(
        lambda: layers.GatedDeltaRule(HEADS, SIZE, filter="first_order"),
        pairwise=False,
        segments=True,
    ),
    "ContraNorm": Case(lambda: layers.ContraNorm(0.3), pairwise=False, causal=False),
    **{
        f"pooling, {kind.__name__}": Case(kind, pairwise=False, causal=False)
        for kind in (layers.GraphMaxPooling, layers.GraphMeanPooling, layers.GraphSumPooling)
    },
}


def _kernel(name: str, make: Callable[[], masks.Mask] | None, *, components: bool = False) -> None:
    """MaskedKernelAttention under a mask, on each of the mask's paths."""
    paths = masks.Mask.paths[:1] if make is None else make().paths
    for path in paths:
        CASES[f"kernel, {name}, {path}"] = Case(
            lambda path=path: KERNEL(
                HEADS, SIZE, mask=None if make is None else make(), path=path, feature_map="favor"
            ),
            pairwise=path in masks.Mask.paths,
            causal=path in masks.Mask.paths,
            components=components,
        )


_kernel("no mask", None)
CASES["kernel, no mask, ReLU"] = Case(lambda: KERNEL(HEADS, SIZE))
CASES["kernel, no mask, filter"] = Case(lambda: KERNEL(HEADS, SIZE, filter="first_order"))
CASES["kernel, causal, squared ReLU, filter"] = Case(
    lambda: KERNEL(
        HEADS, SIZE, mask=masks.Causal(), feature_map="squared_relu", filter="chebyshev", order=2
    )
)
MASKS: dict[str, tuple[Callable[[], masks.Mask], bool]] = {
    "Causal": (masks.Causal, False),
    "Segments": (masks.Segments, False),
    "Entries": (masks.Entries, False),
    "DistanceTable": (lambda: masks.DistanceTable(5), False),
    "Exponential": (lambda: masks.Exponential(2), False),
    "Exponential, causal": (lambda: masks.Exponential(2, causal=True), False),
    "GatedDecay": (masks.GatedDecay, False),
    "ExponentialPositions": (lambda: masks.ExponentialPositions(LENGTH, 2, 3, seed=0), False),
    "LowRank": (lambda: masks.LowRank(2, LENGTH), False),
    "StochasticPositions": (lambda: masks.StochasticPositions(2, seed=0), False),
    "Toeplitz": (lambda: masks.Toeplitz(LENGTH), False),
    "Toeplitz, causal": (lambda: masks.Toeplitz(LENGTH, causal=True), False),
    "BlockToeplitz": (lambda: masks.BlockToeplitz((2, 7), 2), False),
    "Hypercube": (masks.Hypercube, False),
    "Tree": (lambda: masks.Tree(PARENTS), True),
    "Tree, table": (lambda: masks.Tree(PARENTS, function="table"), True),
    "Tree per example": (lambda: masks.Tree(max_depth=8), False),
    "GraphDiffusion": (lambda: masks.GraphDiffusion(EDGES, WEIGHTS, LENGTH), True),
    "GraphDiffusion, adjacency": (
        lambda: masks.GraphDiffusion(EDGES, WEIGHTS, LENGTH, operator="adjacency"),
        True,
    ),
    "GraphDiffusion per example": (
        lambda: masks.GraphDiffusion(operator="normalized_laplacian"),
        False,
    ),
    "RandomWalk": (lambda: masks.RandomWalk(walks=WALKS), True),
    "RandomWalk per example": (masks.RandomWalk, False),
    "GraphRandomFeatures": (lambda: masks.GraphRandomFeatures(EDGES, WEIGHTS, LENGTH), True),
    "Product": (lambda: masks.Product([masks.Causal(), masks.Toeplitz(LENGTH)]), False),
    "Product, segments": (
        lambda: masks.Product([masks.Segments(), masks.Exponential(causal=True)]),
        False,
    ),
    "Product, gates": (lambda: masks.Product([masks.GatedDecay(), masks.Segments()]), False),
}
for _name, (_make, _components) in MASKS.items():
    _kernel(_name, _make, components=_components)
    CASES[f"GKAT, {_name}"] = Case(
        lambda make=_make: GKAT(HEADS, SIZE, mask=make()), components=_components
    )


BIASES = {name: case.make for name, case in registry.CASES.items() if "," not in name}
for _name, _make in BIASES.items():
    CASES[f"graph filter, {_name}"] = Case(lambda make=_make: GFA(HEADS, SIZE, bias=make()))
for _form, _kind, _options in (
    ("graph filter, blockwise", GFA, {"attention_path": "blockwise", "block_size": 5}),
    ("graph filter, fused", GFA, {"attention_path": "fused"}),
    ("p-Laplacian, dense", P_LAPLACIAN, {"attention_path": "dense"}),
    ("p-Laplacian, blockwise", P_LAPLACIAN, {"block_size": 5}),
    ("high frequencies", layers.ScaledHighFrequencyAttention, {}),
):
    CASES[f"{_form}, HopDecay"] = Case(
        lambda kind=_kind, options=_options: kind(HEADS, SIZE, bias=BIASES["HopDecay"](), **options)
    )


for _name in ("RandomWalk", "RandomWalk per example"):
    _make, _components = MASKS[_name]
    CASES[f"GKAT, dynamic walks, {_name}"] = Case(
        lambda make=_make: GKAT(HEADS, SIZE, mask=make(), dynamic_walks=True),
        pairwise=False,
        components=_components,
    )
for _name in ("RandomWalk", "RandomWalk per example", "GraphDiffusion", "Segments", "GatedDecay"):
    _make, _components = MASKS[_name]
    for _form, _options in (
        ("additive", {"score": "additive"}),
        ("factored", {"feature_map": "favor"}),
    ):
        CASES[f"GKAT, {_form}, {_name}"] = Case(
            lambda make=_make, options=_options: GKAT(HEADS, SIZE, mask=make(), **options),
            components=_components,
        )
EDGES_ONLY = {
    "in the layer": {"graph": EDGES, "num_nodes": LENGTH},
    "features, filter": {
        "graph": Graph(EDGES, edge_features=FEATURES, num_nodes=LENGTH),
        "filter": "chebyshev",
    },
    "per example": {"filter": "first_order"},
    "per example, features": {"edge_dim": 3, "self_loops": False},
    "expander": {"expander_degree": 4, "filter": "first_order", "seed": 0},
    "virtual nodes": {"num_virtual_nodes": 2, "filter": "chebyshev"},
}
for _name, _options in EDGES_ONLY.items():
    CASES[f"edges, {_name}"] = Case(
        lambda options=_options: layers.EdgeAttention(HEADS, SIZE, **options),
        pairwise=False,
        causal=False,
        components="graph" in _options,
    )


def mask_of(layer: Any) -> Any:
    """What takes inputs at each call: the layer's mask, or the layer itself."""
    return layer if hasattr(layer, "inputs_at_call") else getattr(layer, "mask", None)


def kinds_of(name: str) -> list[str]:
    """The reasons for which tokens are unseen in this case."""
    case = CASES[name]
    layer = case.make()
    mask = mask_of(layer)
    kinds = ["example", "padding"]
    if case.causal or getattr(mask, "is_causal", False) or getattr(layer, "causal", False):
        kinds.append("future")
    refuses = isinstance(mask, masks.Entries) or getattr(mask, "reads_tokens", False)
    if case.pairwise and not refuses and not isinstance(layer, (AGF,)):
        kinds.append("pairs")
    if getattr(layer, "sliding_window", None):
        kinds.append("window")
    joins = any(getattr(layer, name, 0) for name in ("expander_degree", "num_virtual_nodes"))
    for given in () if joins else inputs_of(name, mask):
        kinds.append(APART.get(given, "component"))
    if case.components:
        kinds.append("component")
    return list(dict.fromkeys(kinds))


def inputs_of(name: str, mask: Any) -> tuple[str, ...]:
    """The tensors that come with each call of a case."""
    if name in CASES and CASES[name].segments:
        return ("segment_ids",)
    return getattr(mask, "given_inputs", getattr(mask, "inputs_at_call", ()))


class Scene(NamedTuple):
    call: dict[str, Any]
    unseen: np.ndarray  # (B, T)
    rows: np.ndarray  # (B, T)


def scene(name: str, kind: str, layer: Any) -> Scene:
    """The call of a case, which tokens are unseen in it, and the rows that may not see them."""
    mask = mask_of(layer)
    call: dict[str, Any] = {}
    inputs = inputs_of(name, mask)
    if inputs:
        call["mask_inputs"] = {given: PER_EXAMPLE[given] for given in inputs}
    bias = getattr(layer, "bias", None)
    if bias is not None and bias.inputs_at_call:
        call["bias_inputs"] = registry.inputs_of(bias)
    late = np.repeat((np.arange(LENGTH) >= SPLIT)[None], BATCH, axis=0)
    if kind == "example":
        other = np.repeat(np.array([[False], [True]]), LENGTH, axis=1)
        return Scene(call, other, ~other)
    if kind == "padding":
        if isinstance(layer, TokenLayer):
            return Scene({"mask": ~late}, late, ~late)
        return Scene({**call, "query_mask": ~late, "value_mask": ~late}, late, ~late)
    if kind == "future" and not (getattr(mask, "is_causal", False) or hasattr(layer, "causal")):
        call["use_causal_mask"] = True
    if kind == "window":
        steps = getattr(getattr(layer, "filter", None), "num_applications", 1)
        far = np.arange(LENGTH) < SPLIT - steps * (layer.sliding_window - 1)
        return Scene(call, late, np.repeat(far[None], BATCH, axis=0))
    if kind == "pairs":
        call["attention_mask"] = ~(~late[0][:, None] & late[0][None, :])
    return Scene(call, late, ~late)
