"""Attention layers in all their forms, each with its naive twin in float64.

A twin is a function of the layer, of its tokens, of its weights by name and of the masks of the
call. It forms every matrix. It returns the outputs and the matrix that the layer shows as its
attention scores, or `None`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from keras_graphattn import layers, masks
from keras_graphattn.feature_maps import FEATURE_MAPS, Favor
from keras_graphattn.filters import FILTERS
from tests import reference, reference_kernel
from tests import reference_topology as topology
from tests.filters import reference as filters
from tests.layers.unseen_cases import CHANNELS, EDGES, LENGTH, PARENTS, PER_EXAMPLE, WALKS
from tests.numerics import randomise, to_numpy
from tests.random_masks import joined_mask, visible_keys
from tests.reference import apply_matrix, attention_matrix, project, project_out, projections

HEADS, SIZE = 4, 3
GFA, P_LAPLACIAN = layers.GraphFilterAttention, layers.PLaplacianAttention
AGF, HIGH = layers.AttentiveGraphFilter, layers.ScaledHighFrequencyAttention
KERNEL, GKAT = layers.MaskedKernelAttention, layers.GraphKernelAttention
DELTA = layers.GatedDeltaRule


class Form(NamedTuple):
    make: Callable[[], Any]
    twin: Callable[..., Any]
    call: dict[str, Any] = {}  # noqa: RUF012  # what a call takes besides tokens and masks
    is_bound: bool = False  # to LENGTH tokens, by its mask
    masks: str = "pairs"  # that a call takes: "pairs", "tokens", or "padding" in all at once
    tolerance: tuple[float, float] = (1e-6, 2e-5)  # of values and of gradients


def tokens(length=LENGTH, batch=2, seed=0):
    shape = (batch, length, CHANNELS)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def built(make, scale=0.3, **options):
    """The layer, built for any length, with random weights."""
    layer = make(**options)
    layer.build((None, None, CHANNELS))
    if scale:
        randomise(layer, scale)
    return layer


def sees(x, call, window=None):
    """The joint mask of a call, (B, N, T, T); `None` without any."""
    if not call and window is None:
        return None
    joined = joined_mask(call, batch=len(x), length=x.shape[1], heads=HEADS)
    if window is not None:
        positions = np.arange(x.shape[1])
        joined &= np.abs(np.subtract.outer(positions, positions)) < window
    return torch.tensor(joined, dtype=torch.float64)


def filtered(layer, matrix, weights):
    """H of the layer's filter, with rows of 0 where the matrix has them."""
    if layer.filter is None:
        return matrix
    sees_some = matrix.sum(-1, keepdim=True) > 0
    return filters.matrix(layer.filter, matrix, weights) * sees_some


def attended(layer, x, weights, call, matrix):
    """The outputs for a matrix: padding has values of 0, also in its own row."""
    _, _, value = projections(x, weights)
    keys = visible_keys(call)
    value = value if keys is None else value * torch.tensor(keys)[:, :, None, None]
    return project_out(apply_matrix(filtered(layer, matrix, weights), value), weights)


def graph_filter(layer, x, weights, call):
    query, key, _ = projections(x, weights)
    matrix = attention_matrix(query, key, sees(x, call, layer._sliding_window))
    return attended(layer, x, weights, call, matrix), matrix


def p_laplacian(layer, x, weights, call):
    query, key, value = projections(x, weights)
    seen, keys = sees(x, call, layer._sliding_window), visible_keys(call)
    options = (layer.exponents, layer.epsilon, seen, layer.diagonal == "drop", keys)
    matrix = reference.p_laplacian_matrix(query, key, value, *options)
    return project_out(apply_matrix(matrix, value), weights), matrix


def high_frequency(layer, x, weights, call):
    """A' = U + (1 + l) (A - U), U uniform over what each query sees, formed entry by entry."""
    query, key, value = projections(x, weights)
    seen = sees(x, call or {"use_causal_mask": False})
    matrix = attention_matrix(query, key, seen)
    uniform = seen / seen.sum(dim=-1, keepdim=True).clamp(min=1)
    scale = weights["high_frequency_scale"][:, None, None]
    scaled = uniform + (1 + scale) * (matrix - uniform)
    return project_out(apply_matrix(scaled, value), weights), None


def singular(layer, x, weights, call):
    """The left vectors times the filtered singular values, the right vectors, and their matrix."""
    left = reference.softmax(project(x, weights, "query"))
    if "query_mask" in call:
        left = left * torch.tensor(call["query_mask"])[:, :, None, None]
    if layer.filter != "ones":
        values = torch.sigmoid(project(x, weights, "singular"))
        if layer.filter != "singular_values":
            parameters = [getattr(layer.filter, name, 0.0) for name in ("alpha", "beta")]
            constant = torch.tanh(weights["theta_constant"]) if layer.learned_constant else 1.0
            coefficients = [constant, *torch.tanh(weights["theta"])]
            basis = type(layer.filter).__name__.lower()
            values = reference.polynomial_value(values, coefficients, basis, *parameters)
        left = left * values
    logits, value, keys = project(x, weights, "key"), project(x, weights, "value"), None
    if visible_keys(call) is not None:
        keys = torch.tensor(visible_keys(call))
    if layer.causal:
        outputs = reference.causal_singular_attention(left, logits, value, keys)
        return project_out(outputs, weights), None
    right = reference.softmax(logits, None if keys is None else keys[:, :, None, None], dim=1)
    matrix = torch.einsum("btnh,bsnh->bnts", left, right)
    return project_out(apply_matrix(matrix, value), weights), matrix


def kernel(layer, x, weights, call, matrix=None):
    """Of the mask's matrix as a function of the weights and the length."""
    name = next(n for n, kind in FEATURE_MAPS.items() if type(layer.feature_map) is kind)
    seen = sees(x, call or {"use_causal_mask": False})
    factors = seen if matrix is None else seen * matrix(weights, x.shape[1])
    if getattr(layer, "directions", None) is not None:
        weights = {**weights, "directions": torch.tensor(to_numpy(layer.directions))}
    attention = reference_kernel.layer_matrix(x, weights, factors, name)
    return attended(layer, x, weights, call, attention), attention


def additive(query, key, query_vector, key_vector, slope=0.2):
    """LeakyReLU(a . [q_i || k_j]), with the two ends joined for each pair."""
    pairs = (len(query), query.shape[1], key.shape[1], *query.shape[2:])
    ends = torch.cat([query[:, :, None].expand(pairs), key[:, None].expand(pairs)], dim=-1)
    scores = torch.einsum("btsnh,nh->bnts", ends, torch.cat([query_vector, key_vector], dim=-1))
    return torch.where(scores >= 0, scores, slope * scores)


def scores_of(x, weights):
    """The scores of GKAT, additive if there are vectors for them."""
    query, key = (project(x, weights, name) for name in ("query", "key"))
    if "score/query" in weights:
        return additive(query, key, weights["score/query"], weights["score/key"])
    return torch.einsum("btnh,bsnh->bnts", query, key) / SIZE**0.5


def graph_kernel(layer, x, weights, call, matrix):
    """D^-1 [exp(S) o M] V with everything formed."""
    if layer.feature_map is not None:
        return kernel(layer, x, weights, call, matrix)
    seen = sees(x, call or {"use_causal_mask": False})
    attention = torch.exp(scores_of(x, weights)) * matrix(weights, x.shape[1]) * seen
    total = attention.sum(-1, keepdim=True)
    attention = attention / torch.where(total > 0, total, 1.0)
    return project_out(apply_matrix(attention, project(x, weights, "value")), weights), attention


def dynamic_walks(layer, x, weights, call, edges):
    """Steps by a softmax over each node's edges, powers of the steps, and their kernel."""
    seen = sees(x, call or {"use_causal_mask": False})
    scores = scores_of(x, weights)
    chances = torch.tensor(edges)[:, None] * torch.exp(scores) * seen
    steps = chances / chances.sum(-1, keepdim=True).clamp(min=1e-300)
    decay, each = torch.exp(weights["mask/log_decay"]), []
    for example in steps:
        power = torch.eye(LENGTH, dtype=scores.dtype).expand(HEADS, LENGTH, LENGTH)
        features = torch.zeros_like(power)
        for step in range(WALKS.shape[-1]):
            features = features + (decay**step)[:, None, None] * power
            power = power @ example
        each.append(topology.walk_matrix(features))
    attention = torch.exp(scores) * torch.stack(each) * seen
    attention = attention / attention.sum(-1, keepdim=True).clamp(min=1e-300)
    return project_out(apply_matrix(attention, project(x, weights, "value")), weights), attention


def gated_delta_rule(layer, x, weights, call, ids=None):
    """Each segment of an example without its padding, as a sequence by itself."""
    seen = np.ones(x.shape[:2], bool) if ids is None else ids >= 0
    for mask in call.values():
        seen = seen & (mask if np.ndim(mask) == 2 else True)
    ids = np.zeros(x.shape[:2], int) if ids is None else ids
    matrix, values = (0.0 * part for part in delta_rule_of(x, weights))  # of the right shapes
    for example, segment in sorted({(e, s) for e in range(len(x)) for s in ids[e]}):
        places = torch.tensor(np.flatnonzero(seen[example] & (ids[example] == segment)))
        if len(places):
            one, value = delta_rule_of(x[example, places][None], weights)
            values = values.index_put((torch.tensor(example), places), value[0])
            pairs = (places[:, None], places[None, :])
            rows = matrix[example].permute(1, 2, 0).index_put(pairs, one[0].permute(1, 2, 0))
            matrix = matrix.index_put((torch.tensor(example),), rows.permute(2, 0, 1))
    wanted = matrix if layer.filter is None else filters.matrix(layer.filter, matrix, weights)
    outputs = apply_matrix(wanted, values) * torch.tensor(seen)[:, :, None, None]
    norm = (outputs**2).mean(-1, keepdim=True) + 1e-5
    outputs = outputs / norm.sqrt() * weights["norm_scale"]
    if "gate/kernel" in weights:
        outputs = outputs * torch.nn.functional.silu(project(x, weights, "gate"))
    return project_out(outputs, weights), matrix


def delta_rule_of(x, weights):
    """The matrix of a whole sequence, and its values."""
    parts = []
    for name in ("query", "key", "value"):
        part, kernel = project(x, weights, name), weights.get(f"{name}_convolution/kernel")
        kernel = torch.ones_like(part[0, :1]) if kernel is None else kernel
        parts.append(reference.short_convolution(part, kernel))
    query, key = (p / ((p**2).sum(-1, keepdim=True) + 1e-6).sqrt() for p in parts[:2])
    step = torch.nn.functional.softplus(x @ weights["decay/kernel"] + weights["rate_bias"])
    decay = torch.exp(-torch.exp(weights["log_rate"]) * step)
    strength = torch.sigmoid(x @ weights["strength/kernel"])
    return reference.delta_rule_matrix(query / SIZE**0.5, key, decay, strength), parts[2]


def of_walks(weights, length):
    features = topology.walk_features(WALKS, torch.exp(weights["mask/log_decay"]))
    return topology.walk_matrix(features)[None]


def of_tree(weights, length):
    distances = topology.shortest_paths(LENGTH, topology.parent_edges(PARENTS))
    return topology.exponential_matrix(distances, weights["mask/rate"], weights["mask/offset"])


def of_heat(weights, length):
    matrix = topology.graph_matrix(LENGTH, EDGES, "laplacian")
    return topology.diffusion_matrix(matrix, 2.0 * torch.sigmoid(weights["mask/time_logit"]))


def causal(weights, length):
    return reference_kernel.causal_matrix(length)


def exponential(weights, length):
    return reference_kernel.exponential_matrix(
        length, weights["mask/log_rates"], weights.get("mask/log_weights")
    )


def packed(weights, length):
    ids = torch.tensor(PER_EXAMPLE["segment_ids"])
    return reference_kernel.segment_matrix(ids) * reference_kernel.causal_matrix(length)


def edges_of_graph():
    edges = np.zeros((2, LENGTH, LENGTH))
    for one, other in EDGES:
        edges[:, one, other] = edges[:, other, one] = 1.0
    return edges


def edges_of_walks():
    edges = np.zeros((2, LENGTH, LENGTH))
    for node, walk, step in np.ndindex(LENGTH, WALKS.shape[1], WALKS.shape[2] - 1):
        here, there = WALKS[node, walk, step : step + 2]
        edges[:, here, there] = edges[:, there, here] = 1.0
    return edges


def packed_mask():
    return masks.Product([masks.Causal(), masks.Segments()])


def jacobi(name, order=3):
    """A filter; that of Jacobi with parameters."""
    return FILTERS[name](order, **({"alpha": 0.5, "beta": -0.25} if name == "jacobi" else {}))


def with_a_mask(options):
    """The options, with the mask made: each layer has one of its own."""
    return {key: make() if key == "mask" else make for key, make in options.items()}


FORMS: dict[str, Form] = {}


def family(name, kind, twin, variants, **form):
    """Forms with one twin."""
    for variant, options in variants.items():

        def make(options=options, **more):
            return kind(HEADS, SIZE, **with_a_mask(options), **more)

        FORMS[f"{name}, {variant}"] = Form(make, twin, **form)


POLYNOMIALS = ("monomial", "chebyshev", "legendre", "jacobi")
BLOCKS, FUSED = {"attention_path": "blockwise", "block_size": 5}, {"attention_path": "fused"}
GROUPS = {"sliding_window": 2, "num_key_value_heads": 2}
DROP = {"p": [1.2, 2.0, 3.0, 4.0], "epsilon": 1.0, "diagonal": "drop"}
WALK = {"learn_decay": True, "decay": 0.7, "name": "mask"}
FIXED, GIVEN = partial(masks.RandomWalk, walks=WALKS, **WALK), partial(masks.RandomWalk, **WALK)
FOLLOWED = partial(masks.RandomWalk, EDGES, None, LENGTH, walk_length=WALKS.shape[-1], **WALK)
TREE = partial(masks.Tree, PARENTS, name="mask")
HEAT = partial(masks.GraphDiffusion, EDGES, None, LENGTH, name="mask")
EXPONENTIAL = partial(masks.Exponential, 2, name="mask")

SEGMENTS = {"mask_inputs": {"segment_ids": PER_EXAMPLE["segment_ids"]}}
GIVEN_WALKS = {"mask_inputs": {"walks": PER_EXAMPLE["walks"]}}
KINDS_OF_GKAT = {
    "dot product": {},
    "additive": {"score": "additive"},
    "FAVOR+": {"feature_map": Favor(8, seed=0)},
    "ReLU, in chunks": {"feature_map": "relu", "feature_chunk": 3},
}
LOOSE = {"tolerance": (1e-5, 1e-4)}
BOUND = {"is_bound": True, **LOOSE}

family(
    "graph filter",
    GFA,
    graph_filter,
    {
        **{f"order {order}": {"order": order} for order in (1, 2, 5)},
        **{name: {"filter": jacobi(name)} for name in POLYNOMIALS},
        "blockwise": BLOCKS,
        "blockwise, Legendre, groups": {**BLOCKS, **GROUPS, "filter": "legendre"},
        "fused": FUSED,
        "fused, Legendre, groups": {**FUSED, **GROUPS, "filter": "legendre"},
    },
)
family(
    "p-Laplacian",
    P_LAPLACIAN,
    p_laplacian,
    {
        "default": {},
        "p = 1": {"p": 1.0},
        "blockwise": BLOCKS,
        "drop, groups": {**DROP, **GROUPS},
        "blockwise, drop, groups": {**BLOCKS, **DROP, **GROUPS},
    },
)
family("high frequencies", HIGH, high_frequency, {"default": {}})
family("AGF", AGF, singular, {n: {"filter": jacobi(n, 4)} for n in POLYNOMIALS}, masks="tokens")
for _causal in (False, True):
    family(
        f"AGF, causal={_causal}",
        AGF,
        singular,
        {
            "default": {"causal": _causal},
            "ones": {"causal": _causal, "filter": "ones"},
            "singular values": {"causal": _causal, "filter": "singular_values"},
            "learned constant": {"causal": _causal, "learned_constant": True},
        },
        masks="tokens",
        tolerance=(2e-6, 2e-5),
    )
MAPS = {name: {"feature_map": name} for name in FEATURE_MAPS}
family("kernel", KERNEL, kernel, MAPS, **LOOSE)
family(
    "kernel, causal",
    KERNEL,
    partial(kernel, matrix=causal),
    {name: {**one, "mask": masks.Causal} for name, one in MAPS.items()},
    **LOOSE,
)
family(
    "kernel, exponential",
    KERNEL,
    partial(kernel, matrix=exponential),
    {
        str(name): {"mask": EXPONENTIAL, "filter": name}
        for name in (None, "first_order", "chebyshev")
    },
    **LOOSE,
)
family(
    "kernel, packed",
    KERNEL,
    partial(kernel, matrix=packed),
    {"first order": {"mask": packed_mask, "filter": "first_order"}},
    call=SEGMENTS,
    **BOUND,
)
family(
    "delta rule",
    DELTA,
    gated_delta_rule,
    {
        "default": {},
        "plain": {"convolution": None, "use_gate": False},
        "Chebyshev filter": {"value_dim": 5, "filter": "chebyshev", "order": 2},
    },
    masks="tokens",
    **LOOSE,
)
family(
    "delta rule, packed",
    DELTA,
    partial(gated_delta_rule, ids=PER_EXAMPLE["segment_ids"]),
    {"default": {}},
    call=SEGMENTS,
    masks="tokens",
    **BOUND,
)
family(
    "kernel, tree",
    KERNEL,
    partial(kernel, matrix=of_tree),
    {
        **{path: {"mask": TREE, "path": path} for path in ("levels", "scan", "doubling")},
        "levels, first order": {"mask": TREE, "path": "levels", "filter": "first_order"},
        "scan, Chebyshev": {"mask": TREE, "path": "scan", "filter": "chebyshev"},
    },
    masks="tokens",
    **BOUND,
)
family(
    "kernel, heat",
    KERNEL,
    partial(kernel, matrix=of_heat),
    {"default": {"mask": HEAT}, "in chunks": {"mask": HEAT, "feature_chunk": 3}},
    **BOUND,
)
family("GKAT, tree", GKAT, partial(graph_kernel, matrix=of_tree), {"": {"mask": TREE}}, **BOUND)
for _name, _mask, _call in (("GKAT", FIXED, {}), ("GKAT per example", GIVEN, GIVEN_WALKS)):
    _forms = {name: {"mask": _mask, **one} for name, one in KINDS_OF_GKAT.items()}
    family(_name, GKAT, partial(graph_kernel, matrix=of_walks), _forms, call=_call, **BOUND)
for _name, _mask, _call, _edges in (
    ("GKAT, dynamic walks", FOLLOWED, {}, edges_of_graph()),
    ("GKAT per example, dynamic walks", GIVEN, GIVEN_WALKS, edges_of_walks()),
):
    _options = {"mask": _mask, "dynamic_walks": True}
    family(
        _name,
        GKAT,
        partial(dynamic_walks, edges=_edges),
        {"dot product": _options, "additive": {**_options, "score": "additive"}},
        call=_call,
        masks="padding",
        **BOUND,
    )
