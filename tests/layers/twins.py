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

from keras_graphattn import biases, layers, masks
from keras_graphattn.feature_maps import FEATURE_MAPS, Favor
from keras_graphattn.filters import FILTERS
from tests import reference, reference_kernel
from tests import reference_topology as topology
from tests.biases import registry
from tests.filters import reference as filters
from tests.layers.unseen_cases import CHANNELS, EDGES, FEATURES, LENGTH, PARENTS, PER_EXAMPLE, WALKS
from tests.numerics import randomise, to_numpy
from tests.random_masks import joined_mask, visible_keys
from tests.reference import apply_matrix, attention_matrix, project, project_out, projections

HEADS, SIZE = 4, 3
GFA, P_LAPLACIAN = layers.GraphFilterAttention, layers.PLaplacianAttention
AGF, HIGH = layers.AttentiveGraphFilter, layers.ScaledHighFrequencyAttention
DIFFERENTIAL = layers.DifferentialAttention
KERNEL, GKAT = layers.MaskedKernelAttention, layers.GraphKernelAttention
ALONG_EDGES = layers.EdgeAttention
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


def bias_of(layer, x, weights):
    """The layer's bias in float64, or 0."""
    if getattr(layer, "bias", None) is None:
        return 0.0
    own = {n.removeprefix("bias/"): w for n, w in weights.items() if n.startswith("bias/")}
    return registry.CASES[BIASES[type(layer.bias)]].matrix(own, x.shape[1])


def graph_filter(layer, x, weights, call):
    query, key, _ = projections(x, weights)
    seen, bias = sees(x, call, layer._sliding_window), bias_of(layer, x, weights)
    matrix = attention_matrix(query, key, seen, bias)
    return attended(layer, x, weights, call, matrix), matrix


def differential(layer, x, weights, call):
    """A_1 - lambda A_2 of pairs of heads, and the norm of version 1."""
    query, key, value = (project(x, weights, name) for name in ("query", "key", "value"))
    queries = query.unflatten(2, (-1, 2)).unbind(3)
    keys = (key, key) if layer.version == 2 else key.unflatten(2, (-1, 2)).unbind(3)
    keys = [k.repeat_interleave(HEADS // k.shape[2], 2) for k in keys]
    value = value.repeat_interleave(HEADS // value.shape[2], 2)
    seen = sees(x, call or {"use_causal_mask": False}, layer._sliding_window)
    first, second = (attention_matrix(*pair, seen) for pair in zip(queries, keys, strict=True))
    start = 0.8 - 0.6 * np.exp(-0.3 * (layer.layer_index or 0))
    if layer.version == 2:
        factor = torch.sigmoid(project(x, weights, "lambda")).permute(0, 2, 1, 3)
    else:
        grown = torch.exp((weights["lambda/query"] * weights["lambda/key"]).sum(-1))
        factor = grown[0] - grown[1] + start
    matrix = first - factor * second
    applied = matrix
    if layer.filter is not None:
        applied = filters.matrix(layer.filter, matrix, weights) * seen.any(-1, keepdim=True)
    if visible_keys(call) is not None:
        value = value * torch.tensor(visible_keys(call))[:, :, None, None]
    outputs = apply_matrix(applied, value)
    if layer.version == 1:
        size = torch.sqrt((outputs**2).mean(-1, keepdim=True) + 1e-5)
        outputs = (1 - start) * weights["norm/scale"] * outputs / size
    return project_out(outputs, weights), matrix


def p_laplacian(layer, x, weights, call):
    query, key, value = projections(x, weights)
    seen, keys = sees(x, call, layer._sliding_window), visible_keys(call)
    options = (layer.exponents, layer.epsilon, seen, layer.diagonal == "drop", keys)
    bias = bias_of(layer, x, weights)
    matrix = reference.p_laplacian_matrix(query, key, value, *options, bias)
    return project_out(apply_matrix(matrix, value), weights), matrix


def high_frequency(layer, x, weights, call):
    """A' = U + (1 + l) (A - U), U uniform over what each query sees, formed entry by entry."""
    query, key, value = projections(x, weights)
    seen = sees(x, call or {"use_causal_mask": False})
    matrix = attention_matrix(query, key, seen, bias_of(layer, x, weights))
    uniform = seen / seen.sum(dim=-1, keepdim=True).clamp(min=1)
    scale = weights["high_frequency_scale"][:, None, None]
    scaled = uniform + (1 + scale) * (matrix - uniform)
    return project_out(apply_matrix(scaled, value), weights), None


def contra_norm_attention(layer, x, weights, call):
    """Plain attention; its outputs are pushed away from those of the tokens that they see."""
    query, key, _ = projections(x, weights)
    seen = sees(x, call)
    matrix = attention_matrix(query, key, seen, bias_of(layer, x, weights))
    outputs = attended(layer, x, weights, call, matrix)
    near = torch.ones(1, x.shape[1], x.shape[1]) if seen is None else seen.amax(dim=1)
    average = reference.softmax(torch.einsum("btd,bsd->bts", outputs, outputs), near) @ outputs
    pushed = (1 + layer.scale) * outputs - layer.scale * average
    return torch.where(near.amax(-1, keepdim=True) > 0, pushed, outputs), matrix


def singular(layer, x, weights, call):
    """The left vectors times the filtered singular values, the right vectors, and their matrix."""
    softmax = layer.vector_activation == "softmax"
    of_torch = {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "linear": torch.positive}
    rho = of_torch.get(layer.vector_activation, reference.softmax)
    left = rho(project(x, weights, "query"))
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
    column = None if keys is None else keys[:, :, None, None]
    if softmax:
        right = reference.softmax(logits, column, dim=1)
    else:
        right = rho(logits) if column is None else rho(logits) * column
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
    scores = scores_of(x, weights) + bias_of(layer, x, weights)
    attention = torch.exp(scores) * matrix(weights, x.shape[1]) * seen
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


def random_cycles(layer, nodes):
    """The edges (source, target) of a layer's expander through the nodes, with Python integers."""

    def wrapped(x):  # to the integers of int32
        return (x + 2**31) % 2**32 - 2**31

    def key(node, factor, start, step):
        x = wrapped(node * (factor | 1) + start)
        x = wrapped(x * (2 * x + 1) + step)
        return wrapped(x * (2 * x + 1)) // 2

    count, edges = layer.expander_degree // 2, []
    for numbers in np.random.default_rng(layer.seed).integers(0, 2**31 - 1, (count, 3)):
        order = sorted(nodes, key=lambda node, n=numbers: key(node, *map(int, n)))
        edges += zip(order, order[1:] + order[:1], strict=True)
    edges += [edge[::-1] for edge in edges]
    return [edge for edge in edges if edge[0] != edge[1]]


def along_edges(layer, x, weights, call):
    """Exponentials of all edges, one by one, in a matrix; then those of virtual nodes."""
    query, key, _ = projections(x, weights)
    batch, length = x.shape[:2]
    keys = visible_keys(call)
    keys = np.ones((batch, length), bool) if keys is None else keys
    queries, matrices = call.get("query_mask", np.ones((batch, length), bool)), []
    for b in range(batch):
        edges = [*EDGES.tolist(), *EDGES[:, ::-1].tolist()]
        factors = np.zeros((len(edges), layer.num_edge_features))
        if layer.num_edge_features:
            factors[:, :3] = np.tile(FEATURES, (2, 1))
        further = [[(t, t) for t in range(length)]] if layer.self_loops else []
        if layer.expander_degree:
            further.append(random_cycles(layer, np.flatnonzero(keys[b]).tolist()))
        for place, kind in enumerate(further):
            marks = np.zeros((len(kind), layer.num_edge_features))
            if layer.num_edge_features:
                marks[:, 3 + place] = 1.0
            edges, factors = edges + kind, np.concatenate([factors, marks])
        edges = np.array(edges)
        products = query[b, edges[:, 1]] * key[b, edges[:, 0]] / SIZE**0.5  # (E, N, H)
        if layer.num_edge_features:
            products = products * (1 + project(torch.tensor(factors)[None], weights, "edge")[0])
        seen = queries[b, edges[:, 1]] & keys[b, edges[:, 0]]
        sizes = torch.exp(products.sum(-1)) * torch.tensor(seen)[:, None]
        ends = torch.eye(length, dtype=x.dtype)[edges]  # (E, 2, T)
        matrix = torch.einsum("en,et,es->nts", sizes, ends[:, 1], ends[:, 0])
        total = matrix.sum(-1, keepdim=True)
        if layer.num_virtual_nodes:
            sees_keys = torch.tensor(queries[b] & keys[b].any())[:, None]
            from_virtual, to_virtual = weights["virtual/key"], weights["virtual/query"]
            out = torch.exp(torch.einsum("tnh,vnh->ntv", query[b], from_virtual) / SIZE**0.5)
            into = torch.einsum("vnh,snh->nvs", to_virtual, key[b]) / SIZE**0.5
            total = total + out.sum(-1, keepdim=True)
            matrix = matrix + sees_keys * out @ reference.softmax(into, torch.tensor(keys[b]))
        matrices.append(matrix / total.clamp(min=1e-300))
    matrix = torch.stack(matrices)
    return attended(layer, x, weights, call, matrix), matrix


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


def gated(layer, x, weights, call, of=kernel):
    """Of gates from the tokens; padding has none."""
    logits = x @ weights["mask/gates/kernel"] + weights["mask/gates/bias"]
    gates = torch.nn.functional.logsigmoid(logits)
    for name in ("query_mask", "value_mask", "key_mask"):
        if name in call:
            gates = gates * torch.tensor(call[name])[:, :, None]
    factors = reference_kernel.gated_matrix(gates)
    return of(layer, x, weights, call, lambda weights, length: factors)


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
    """The options, with the mask or bias made: each layer has one of its own."""
    objects = ("mask", "bias")
    return {key: make() if key in objects else make for key, make in options.items()}


FORMS: dict[str, Form] = {}
FIRST: set[str] = set()  # of each family: the fast suite runs costly tests of these only


def family(name, kind, twin, variants, **form):
    """Forms with one twin."""
    FIRST.add(f"{name}, {next(iter(variants))}")
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
GATED = partial(masks.GatedDecay, 3.0, name="mask")
EXPONENTIAL = partial(masks.Exponential, 2, name="mask")

SEGMENTS = {"mask_inputs": {"segment_ids": PER_EXAMPLE["segment_ids"]}}
GIVEN_WALKS = {"mask_inputs": {"walks": PER_EXAMPLE["walks"]}}
ALIBI = partial(biases.Alibi, trainable_slopes=True, name="bias")
BIASES = {type(case.make()): name for name, case in reversed(registry.CASES.items())}


def bias_inputs(name):
    inputs = registry.inputs_of(registry.CASES[name].make())
    return {"bias_inputs": inputs} if inputs else {}


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
for _name, _gradients, _forms in (  # of version 1
    (
        "differential",
        1e-4,
        {"default": {"layer_index": 3}, "blockwise, groups": {**BLOCKS, **GROUPS}},
    ),
    (  # the norm takes the size of H away, so the gradients of a filter nearly cancel
        "differential, filters",
        1e-3,
        {
            "groups, Jacobi": {**GROUPS, "filter": jacobi("jacobi")},
            "fused, monomial": {**FUSED, "filter": jacobi("monomial", 2)},
        },
    ),
):
    family(_name, DIFFERENTIAL, differential, _forms, tolerance=(2e-6, _gradients))
family(
    "differential 2",
    DIFFERENTIAL,
    differential,
    {
        "default": {"version": 2},
        "groups, first-order filter": {**GROUPS, "version": 2, "filter": "first_order"},
        "blockwise, Legendre filter": {**BLOCKS, "version": 2, "filter": "legendre"},
        "fused, groups, filter": {**FUSED, **GROUPS, "version": 2, "filter": "first_order"},
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
family("high frequencies", HIGH, high_frequency, {"default": {}, "bias": {"bias": ALIBI}})
family(
    "ContraNorm attention",
    partial(layers.ContraNormAttention, scale=0.5),
    contra_norm_attention,
    {"default": {}, "bias": {"bias": ALIBI}},
)
# a bias of positions, one that hides keys, and one of each other kind; tests/biases compares paths
for _name, _kind, _twin, _biases in (
    (
        *("graph filter", GFA, graph_filter),
        ("RelativePositions", "EdgePath", "LogMask", "ShortestPath", "Sum", "WalkProbabilities"),
    ),
    ("p-Laplacian", P_LAPLACIAN, p_laplacian, ("RelativePositions", "HopDecay")),
    ("graph filter, blockwise", partial(GFA, **BLOCKS), graph_filter, ("HopDecay",)),
):
    for _bias in _biases:
        family(
            f"{_name}, {_bias}",
            _kind,
            _twin,
            {"": {"bias": partial(registry.CASES[_bias].make, name="bias")}},
            call=bias_inputs(_bias),
            is_bound=registry.CASES[_bias].is_bound,
        )
family("AGF", AGF, singular, {n: {"filter": jacobi(n, 4)} for n in POLYNOMIALS}, masks="tokens")
family(
    "AGF, rho",
    AGF,
    singular,
    {name: {"vector_activation": name} for name in ("sigmoid", "tanh", "linear")},
    masks="tokens",
)
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
    "kernel, gated decay",
    KERNEL,
    gated,
    {"relu": {"mask": GATED}, "FAVOR+": {"mask": GATED, **KINDS_OF_GKAT["FAVOR+"]}},
    masks="tokens",
    **LOOSE,
)
family(
    "GKAT, gated decay",
    GKAT,
    partial(gated, of=graph_kernel),
    {name: {"mask": GATED, **KINDS_OF_GKAT[name]} for name in ("dot product", "FAVOR+")},
    masks="tokens",
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
family(
    "GKAT, tree",
    GKAT,
    partial(graph_kernel, matrix=of_tree),
    {"": {"mask": TREE}, "bias": {"mask": TREE, "bias": ALIBI}},
    **BOUND,
)
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
EDGES_OF_CALL = {name: PER_EXAMPLE[name] for name in ("edges", "edge_features")}
IN_LAYER = {"graph": EDGES, "num_nodes": LENGTH}
WITH_FEATURES = {**IN_LAYER, "edge_features": FEATURES}
BEYOND = {"expander_degree": 4, "num_virtual_nodes": 2, "seed": 5}
family(
    "edges",
    ALONG_EDGES,
    along_edges,
    {
        "default": IN_LAYER,
        "without loops": {**IN_LAYER, "self_loops": False},
        "features": WITH_FEATURES,
        "expander": {**IN_LAYER, "expander_degree": 2, "seed": 3},
        "virtual nodes, Chebyshev": {**IN_LAYER, "num_virtual_nodes": 3, "filter": "chebyshev"},
        "all, first order": {**WITH_FEATURES, **BEYOND, "filter": "first_order"},
    },
    masks="tokens",
    **BOUND,
)
family(
    "edges per example",
    ALONG_EDGES,
    along_edges,
    {"all, Chebyshev": {**BEYOND, "edge_dim": 3, "filter": "chebyshev"}},
    call={"mask_inputs": EDGES_OF_CALL},
    masks="tokens",
    **BOUND,
)
