"""Layers of the recipes against formulas written out: values, gradients, half precision."""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import pytest
import torch

from keras_graphattn.filters import FirstOrder
from keras_graphattn.graphs import Graph, GraphBatches
from recipes.common.images.cait import TalkingHeadsAttention
from recipes.common.training.graph_layers import (
    GraphAttention,
    GraphConvolution,
    GraphIsomorphism,
    ReleasedGraphKernelAttention,
    SpectralGraphConvolution,
)
from recipes.common.training.layers import linear
from recipes.common.training.low_rank_attention import LinformerAttention, NystromformerAttention
from tests.numerics import randomise, relative_rms, to_numpy
from tests.recipes.formulas import (
    assert_is_formula,
    dense,
    in_heads,
    joined,
    projections,
    talking_heads,
    weights_of,
    with_gradients,
)
from tests.reference_topology import random_edges

HEADS, SIZE, WIDTH, LENGTH, ORDER = 2, 3, 6, 7, 4
RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.normal(size=(3, LENGTH, WIDTH)).astype("float32")
MASK = np.array([[True] * 7, [True] * 4 + [False] * 3, [False] * 2 + [True] * 5])
GRAPHS = [
    Graph(
        random_edges(n, seed=n) if n > 1 else [], None, RANDOM.normal(size=(n, WIDTH)), num_nodes=n
    )
    for n in (7, 4, 1)
]
GRAPH = GraphBatches(GRAPHS, len(GRAPHS), num_buckets=1)[0][0]
WALKS = np.full((len(GRAPHS), LENGTH, 5, 3), -1, "int32")
for number, graph in enumerate(GRAPHS):
    nodes = graph.num_nodes
    WALKS[number, :nodes] = RANDOM.integers(0, nodes, (nodes, 5, 3))
    WALKS[number, :nodes, :, 0] = np.arange(nodes)[:, None]
WALKS[0, :, 3:, 2] = -1  # these walks end early


def linear_model(mask=MASK):
    tokens = keras.Input((LENGTH, WIDTH), batch_size=len(TOKENS))
    sizes = {"num_heads": HEADS, "key_dim": SIZE, "name": "attend"}
    return keras.Model(tokens, linear(tokens, mask, sizes))


def linear_formula(x, weights):
    query, key = (
        torch.nn.functional.elu(in_heads(x, weights, f"attend_{part}")) + 1
        for part in ("query", "key")
    )
    scores = query @ key.transpose(-1, -2) * torch.tensor(MASK)[:, None, None]
    scores = scores / scores.sum(dim=-1, keepdim=True)
    return joined(scores @ in_heads(x, weights, "attend_value"), weights, "attend")


def low_rank_projections(x, weights):
    """Queries, keys and values (B, N, T, H), 0 where is padding."""
    mask = torch.tensor(MASK)[:, None, :, None]
    return (part * mask for part in projections(x, weights))


def linformer_formula(x, weights):
    """Over real tokens only."""
    outputs = []
    for query, key, value, real in zip(*low_rank_projections(x, weights), MASK, strict=True):
        key = weights["key_sums"][:, real] @ key[:, real]
        value = weights["value_sums"][:, real] @ value[:, real]
        outputs.append(torch.softmax(query @ key.transpose(-1, -2) / SIZE**0.5, dim=-1) @ value)
    return joined(torch.stack(outputs), weights, "attention_output")


def segment_means(x, count):
    """Means over segments of tokens (N, T, H); segment i begins at i T / count, rounded up."""
    starts = [math.ceil(number * x.shape[1] / count) for number in range(count + 1)]
    pairs = itertools.pairwise(starts)
    return torch.stack([x[:, start:end].mean(dim=1) for start, end in pairs], dim=1)


def pseudo_inverse(matrix):
    """Of one matrix, by the 6 iterations of the paper."""
    identity = torch.eye(len(matrix), dtype=matrix.dtype)
    z = matrix.T / (matrix.sum(dim=0).max() * matrix.sum(dim=1).max())
    for _ in range(6):
        az = matrix @ z
        z = z @ (13 * identity - az @ (15 * identity - az @ (7 * identity - az))) / 4
    return z


def convolved(value, kernel):
    """The sum over j of kernel_j v_(t + j - 16), of values (N, T, H)."""
    outputs = torch.zeros_like(value)
    for t in range(LENGTH):
        for s in range(LENGTH):
            outputs[:, t] += kernel[s - t + 16, 0, :] * value[:, s]
    return outputs


def nystromformer_formula(x, weights, landmarks, inverse=pseudo_inverse):
    """Over real tokens only; the convolution sees zeros at padding."""
    outputs = []
    for query, key, value, real in zip(*low_rank_projections(x, weights), MASK, strict=True):
        count = min(landmarks, int(real.sum()))
        q, k = (segment_means(part[:, real], count) for part in (query, key))

        def softmax(left, right):
            return torch.softmax(left @ right.transpose(-1, -2) / SIZE**0.5, dim=-1)

        inverses = torch.stack([inverse(matrix) for matrix in softmax(q, k)])
        one = softmax(query, k) @ inverses @ (softmax(q, key[:, real]) @ value[:, real])
        if "convolution/kernel" in weights:
            one = one + convolved(value, weights["convolution/kernel"])
        outputs.append(one)
    return joined(torch.stack(outputs), weights, "attention_output")


def with_loops(edges):
    """A + I of one example, with padding left out."""
    matrix = torch.eye(LENGTH, dtype=torch.float64)
    for u, v in edges:
        if u >= 0:
            matrix[u, v] = matrix[v, u] = 1.0
    return matrix


def gcn_formula(nodes, weights):
    outputs = []
    for x, edges in zip(nodes, GRAPH["edges"], strict=True):
        matrix = with_loops(edges)
        scale = torch.diag(matrix.sum(dim=1) ** -0.5)
        outputs.append(scale @ matrix @ scale @ x @ weights["dense/kernel"] + weights["bias"])
    return torch.stack(outputs)


def sgc_formula(nodes, weights):
    outputs = []
    for x, edges in zip(nodes, GRAPH["edges"], strict=True):
        matrix = with_loops(edges) - torch.eye(LENGTH, dtype=torch.float64)
        scale = torch.diag(matrix.sum(dim=1).clamp(min=1e-9) ** -0.5)
        laplacian = torch.eye(LENGTH, dtype=torch.float64) - scale @ matrix @ scale
        scaled = laplacian - torch.eye(LENGTH, dtype=torch.float64)  # 2 L / 2 - I
        terms = [x, scaled @ x, 2 * scaled @ scaled @ x - x, 4 * scaled @ scaled @ scaled @ x]
        terms[3] = terms[3] - 3 * scaled @ x
        outputs.append(torch.cat(terms, dim=1) @ weights["dense/kernel"] + weights["dense/bias"])
    return torch.stack(outputs)


def gin_formula(nodes, weights):
    outputs = []
    for x, edges in zip(nodes, GRAPH["edges"], strict=True):
        rows = [(1 + weights["epsilon"]) * row for row in x]
        for u, v in edges:
            if u >= 0:
                rows[u], rows[v] = rows[u] + x[v], rows[v] + x[u]
        hidden = torch.stack(rows) @ weights["dense/kernel"] + weights["bias"]
        outputs.append(dense(torch.relu(hidden), weights, "second"))
    return torch.stack(outputs)


def gat_formula(nodes, weights):
    outputs = []
    for x, edges in zip(nodes, GRAPH["edges"], strict=True):
        heads = []
        for head in range(HEADS):
            y = x @ weights["dense/kernel"][:, SIZE * head : SIZE * (head + 1)]
            scores = (y @ weights["of_target"][head])[:, None] + y @ weights["of_source"][head]
            scores = torch.nn.functional.leaky_relu(scores, 0.2)
            scores = torch.where(with_loops(edges) > 0, scores, -torch.inf)
            heads.append(torch.softmax(scores, dim=1) @ y)
        outputs.append(torch.cat(heads, dim=1) + weights["bias"])
    return torch.stack(outputs)


class Case(NamedTuple):
    """A layer, its formula and what both are called with."""

    make: Callable[[], keras.Layer]
    formula: Callable[..., torch.Tensor]  # of the inputs and the weights
    inputs: list[np.ndarray]
    others: tuple[np.ndarray, ...] = ()  # of the layer's call only


def cosines_of_walks():
    """The cosines of the counts of WALKS, (B, T, T); 0 for padding."""
    counts = np.zeros((len(GRAPHS), LENGTH, LENGTH))
    for example, node, walk, step in np.ndindex(WALKS.shape):
        if (seen := WALKS[example, node, walk, step]) >= 0:
            counts[example, node, seen] += 1.0
    products = counts @ counts.swapaxes(1, 2)
    squares = np.einsum("bii->bi", products)
    squares = np.where(squares > 0.0, squares, 1.0)
    return products / np.sqrt(squares[:, :, None] * squares[:, None])


def pairs_of_walks():
    """The pairs of nodes with a cosine above 0, (B, E, 2), and their cosines, (B, E)."""
    cosines = cosines_of_walks()
    found = [np.argwhere(np.triu(one, k=1) > 0.0) for one in cosines]
    most = max(len(pairs) for pairs in found) + 1
    pairs, weights = np.full((len(found), most, 2), -1, "int32"), np.ones((len(found), most))
    for number, (one, of_graph) in enumerate(zip(cosines, found, strict=True)):
        pairs[number, : len(of_graph)] = of_graph
        weights[number, : len(of_graph)] = one[tuple(of_graph.T)]
    return pairs, weights.astype("float32")


def released_gkat_formula(x, weights):
    """The authors' lines: exp(logits) times the cosines of the counts, over their sums."""
    cosines = torch.tensor(cosines_of_walks())
    parts = {
        name: torch.einsum("btd,dnh->bnth", x, weight)
        for name, weight in weights.items()
        if name != "bias"
    }
    query, key = parts["query"], parts["key"]
    weighted = torch.exp(query @ key.mT / SIZE**0.5) * cosines[:, None]
    matrix = weighted / (weighted.sum(-1, keepdim=True) + 1e-19)
    outputs = matrix @ parts.get("value", query)
    return outputs.transpose(1, 2).flatten(2) + weights.get("bias", 0.0)


FILTERS = {"softmax": None, "gfsa": ORDER}
CASES = {
    "linear": Case(linear_model, linear_formula, [TOKENS]),
    "linformer": Case(
        *(lambda: LinformerAttention(HEADS, SIZE, 4), linformer_formula, [TOKENS], (MASK,))
    ),
    **{
        f"nystromformer_{landmarks}": Case(
            lambda n=landmarks: NystromformerAttention(HEADS, SIZE, n),
            lambda x, weights, n=landmarks: nystromformer_formula(x, weights, n),
            *([TOKENS], (MASK,)),
        )
        for landmarks in (3, 5)  # an example has 4 tokens
    },
    "gcn": Case(lambda: GraphConvolution(WIDTH), gcn_formula, [GRAPH["nodes"]], (GRAPH["edges"],)),
    "sgc": Case(
        lambda: SpectralGraphConvolution(WIDTH, order=3),
        *(sgc_formula, [GRAPH["nodes"]], (GRAPH["edges"],)),
    ),
    "gin": Case(lambda: GraphIsomorphism(WIDTH), gin_formula, [GRAPH["nodes"]], (GRAPH["edges"],)),
    "gat": Case(
        lambda: GraphAttention(HEADS, SIZE), gat_formula, [GRAPH["nodes"]], (GRAPH["edges"],)
    ),
    **{
        f"released_gkat_{name}": Case(
            lambda given=given: ReleasedGraphKernelAttention(HEADS, SIZE, **given),
            *(released_gkat_formula, [GRAPH["nodes"]], (GRAPH["node_mask"], *graph)),
        )
        for name, given, graph in (
            ("citations", {}, (None, *pairs_of_walks())),
            ("citations_dense", {"dense": True}, (None, *pairs_of_walks())),
            ("motifs", {"separate_values": True}, (WALKS,)),
        )
    },
    **{
        f"talking_{name}": Case(
            lambda order=order: TalkingHeadsAttention(HEADS, SIZE, order and FirstOrder(order)),
            lambda x, weights, order=order: talking_heads(x, weights, order),
            [TOKENS],
        )
        for name, order in FILTERS.items()
    },
}


def made(case):
    layer = case.make()
    layer(*case.inputs, *case.others)
    randomise(layer, scale=0.5)
    return layer


@pytest.mark.parametrize("name", CASES)
def test_layers_are_their_formulas_in_values_and_gradients(name):
    case = CASES[name]
    assert_is_formula(made(case), case.formula, case.inputs, *case.others)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("precision", ["mixed_float16", "mixed_bfloat16"])
def test_layers_in_half_precision(name, precision):
    case = CASES[name]
    keras.config.set_dtype_policy(precision)
    layer = made(case)
    outputs = layer(*case.inputs, *case.others)
    dtype = "float32" if name == "bias" else precision.removeprefix("mixed_")
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    weights = {path: torch.tensor(to_numpy(one)) for path, one in weights_of(layer).items()}
    inputs = (torch.tensor(array.astype("float64")) for array in case.inputs)
    assert relative_rms(to_numpy(outputs), case.formula(*inputs, weights).numpy()) < 0.02


@pytest.mark.parametrize("name", CASES)
def test_layers_survive_large_inputs_and_their_configs(name):
    case = CASES[name]
    layer = made(case)
    for scale in (100.0, 1e4):
        inputs = [scale * array for array in case.inputs]
        outputs, gradients = with_gradients(layer, inputs, *case.others)
        assert np.isfinite(outputs).all()
        for place, gradient in gradients.items():
            assert np.isfinite(gradient).all(), place
    if name != "linear":  # a model
        again = type(layer).from_config(layer.get_config())
        assert again.get_config() == layer.get_config()
        name = keras.saving.get_registered_name(type(layer))
        assert keras.saving.get_registered_object(name) is type(layer)


def test_gat_drops_coefficients_in_training_and_keeps_their_expectation():
    rate, count = 0.6, 2000
    layer = GraphAttention(1, LENGTH, dropout=rate, seed=0)
    assert GraphAttention.from_config(layer.get_config()).get_config() == layer.get_config()
    # of one-hot nodes and W = I, each row of the output is a row of coefficients
    nodes = np.tile(np.eye(LENGTH, dtype="float32"), (count, 1, 1))
    edges = np.tile(GRAPH["edges"][:1], (count, 1, 1))
    layer(nodes, edges)
    randomise(layer, scale=0.5)
    layer.dense.kernel.assign(np.eye(LENGTH))
    layer.bias.assign(np.zeros(LENGTH))
    whole = to_numpy(layer(nodes, edges, training=False))[0]
    np.testing.assert_array_equal(whole > 0, with_loops(GRAPH["edges"][0]).numpy() > 0)
    np.testing.assert_allclose(whole.sum(axis=1), 1.0, rtol=1e-6)
    dropped = to_numpy(layer(nodes, edges, training=True))
    kept = dropped > 0
    scaled = np.broadcast_to(whole / (1 - rate), dropped.shape)
    np.testing.assert_allclose(dropped[kept], scaled[kept], rtol=1e-5)
    assert kept[:, whole > 0].mean() == pytest.approx(1 - rate, abs=0.01)
    np.testing.assert_allclose(dropped.mean(axis=0), whole, rtol=0.15)  # 5 standard errors


def test_linear_attention_of_no_tokens_gives_numbers():
    assert np.isfinite(to_numpy(linear_model(np.zeros_like(MASK))(TOKENS))).all()
