"""This package beside the authors' published code, on random weights and tokens.

    KERAS_BACKEND=torch python benchmarks/published_code.py --unilm <folder of a clone> \
        --fla <folder> --graphormer <folder> --grit <folder>

prints, for each case, the largest difference of values and of gradients, relative to the largest
number of the published code. The folders are clones of

    --unilm         github.com/microsoft/unilm
    --fla           github.com/fla-org/flash-linear-attention
    --graphormer    github.com/microsoft/Graphormer
    --grit          github.com/LiamMa/GRIT

A case is the name of its folder and a function of that folder. It returns pairs of arrays, ours and
theirs, by name. Both compute in float32.
"""

import importlib
import importlib.util
import re
import sys
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from unittest import mock

import numpy as np
import torch

from keras_graphattn import biases, masks
from keras_graphattn.graphs import Graph, precompute
from keras_graphattn.layers import DifferentialAttention
from keras_graphattn.operators import DeltaRuleOperator

MOST = 1e-5  # relative difference
BATCH, WIDTH, HEADS = 2, 48, 4


def random(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape), dtype=torch.float32)


def value_and_gradients(call, x, weights):
    """The outputs of a call, and the gradients of tokens and of weights by name."""
    x = x.clone().requires_grad_()
    outputs = call(x)
    tensors = {"tokens": x, **weights}
    gradients = torch.autograd.grad(
        (outputs * random(*outputs.shape, seed=1)).sum(), [*tensors.values()]
    )
    return {"outputs": outputs.detach(), **dict(zip(tensors, gradients, strict=True))}


@contextmanager
def published(folder, **absent):
    """Imports from a folder, with modules in place of those that need a GPU."""
    modules = {}
    for name, functions in absent.items():
        modules[name.replace("__", ".")] = module = ModuleType(name)
        vars(module).update(functions)
    with (
        redirect_stdout(sys.stderr),
        mock.patch.dict(sys.modules, modules),
        mock.patch.object(sys, "path", [*map(str, folder), *sys.path]),
        mock.patch.object(torch, "compile", lambda function: function),
    ):
        yield importlib.import_module


def attention_of_groups(query, key, value, causal):
    """Softmax attention of (B, T, N, H), each key and value for several query heads."""
    heads_first = (x.transpose(1, 2) for x in (query, key, value))
    return torch.nn.functional.scaled_dot_product_attention(
        *heads_first, is_causal=causal, enable_gqa=True
    ).transpose(1, 2)


def diff_transformer(folder, module):
    """A module of the differential transformer, without rotary positions."""
    folder = Path(folder) / "Diff-Transformer"
    flash = {"flash_attn_func": attention_of_groups}
    rotary = {"apply_rotary_emb": lambda x, *_, **__: x}
    absent = {"kernel": {}, "kernel__rotary": rotary, "flash_attn": flash, "flex_head_fa": flash}
    with published([folder, folder / "Diff-Transformer-V2"], **absent) as load:
        return load(module)


def compared(layer, theirs, of_theirs, length):
    """Pairs of outputs and gradients; `of_theirs` are our weights, made of their parameters."""
    layer.build((None, None, WIDTH))
    ours = {weight.path.split("/", 1)[1]: weight for weight in layer.weights}
    for name, weight in of_theirs(dict(theirs.named_parameters())).items():
        ours[name].assign(weight.detach())
    x = random(BATCH, length, WIDTH)
    values = {name: weight.value for name, weight in ours.items()}
    found = value_and_gradients(lambda x: layer(x, use_causal_mask=True), x, values)
    parameters = dict(theirs.named_parameters())
    expected = value_and_gradients(lambda x: theirs(x, (None, None)), x, parameters)
    slopes = of_theirs({name: expected[name] for name in parameters})
    expected = {"outputs": expected["outputs"], "tokens": expected["tokens"], **slopes}
    return {name: (found[name], expected[name]) for name in ("outputs", "tokens", *ours)}


def projections_of(layer, weights, names):
    """The kernels of our projections, of their matrices (outputs, inputs)."""
    shapes = {"attention_output": (layer.num_heads, layer.value_dim, WIDTH)}
    return {
        f"{ours}/kernel": weights[f"{theirs}.weight"].T.reshape(
            shapes.get(ours, (WIDTH, -1, 1 if ours == "lambda" else layer.key_dim))
        )
        for ours, theirs in names.items()
    }


def differential_1(
    folder, length, module="multihead_diffattn", kind="MultiheadDiffAttn", groups=None
):
    torch.manual_seed(0)
    theirs = getattr(diff_transformer(folder, module), kind)(WIDTH, 3, HEADS, groups)
    layer = DifferentialAttention(
        HEADS, theirs.head_dim, layer_index=3, num_key_value_heads=groups, use_bias=False
    )

    def of_theirs(weights):
        names = {"query": "q_proj", "key": "k_proj", "attention_output": "out_proj"}
        values = weights["v_proj.weight"].T.reshape(WIDTH, groups or HEADS, layer.value_dim)
        pairs = {
            f"lambda/{ours}": torch.stack([weights[f"lambda_{theirs}{i}"] for i in (1, 2)])
            for ours, theirs in (("query", "q"), ("key", "k"))
        }
        kernels = projections_of(layer, weights, names)
        return {**kernels, "value/kernel": values, **pairs, "norm/scale": weights["subln.weight"]}

    return compared(layer, theirs, of_theirs, length)


def differential_1_of_groups(folder, length):
    return differential_1(folder, length, "multihead_flashdiff_1", "MultiheadFlashDiff1", 2)


def differential_2(folder, length, groups=None):
    torch.manual_seed(0)
    module = diff_transformer(folder, "multihead_flashdiffv2")
    theirs = module.MultiheadFlashDiffV2(True, WIDTH, HEADS, groups, WIDTH // HEADS)
    layer = DifferentialAttention(
        HEADS, theirs.head_dim, version=2, num_key_value_heads=groups, use_bias=False
    )
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "lambda": "lambda_proj"}
    names["attention_output"] = "o_proj"
    return compared(layer, theirs, lambda weights: projections_of(layer, weights, names), length)


def module_of(folder, path):
    """A module of published code, from its file in a folder."""
    file = Path(folder) / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def function_of(folder, path, name, **names):
    """A class or function of a file whose imports are not there, with names that it needs."""
    text = (Path(folder) / path).read_text()
    body = re.search(rf"^(class|def) {name}\b.*?(?=^\S|\Z)", text, re.M | re.S).group()
    scope = {"torch": torch, "nn": torch.nn, **names}
    exec(body, scope)
    return scope[name]


def of_functions(ours, theirs, **tensors):
    """Pairs of outputs and gradients of two functions of the same tensors."""
    found = []
    for function in (ours, theirs):
        arguments = {name: x.clone().requires_grad_() for name, x in tensors.items()}
        outputs = function(**arguments)
        sum_of_outputs = (outputs * random(*outputs.shape, seed=1)).sum()
        slopes = torch.autograd.grad(sum_of_outputs, [*arguments.values()])
        found.append({"outputs": outputs.detach(), **dict(zip(arguments, slopes, strict=True))})
    return {name: (found[0][name], found[1][name]) for name in found[0]}


def log_gates(length):
    return -(10.0 ** (2.5 * torch.rand(BATCH, length, HEADS) - 4.0))


def simple_gla(folder, length):
    torch.manual_seed(0)
    module = module_of(folder, "fla/ops/simple_gla/naive.py")
    mask = masks.GatedDecay()
    return of_functions(
        lambda q, k, v, g: mask.attend(q, k, v, log_gates=g),
        lambda q, k, v, g: module.naive_recurrent_simple_gla(q, k, v, g, scale=1.0)[0],
        **{name: random(BATCH, length, HEADS, 16, seed=i) for i, name in enumerate("qkv")},
        g=log_gates(length),
    )


def forgetting(folder, length):
    """The logarithm of a gated decay as a bias of softmax attention: the Forgetting Transformer."""
    from keras_graphattn.operators.softmax import Logits, SoftmaxOperator, scores_of

    torch.manual_seed(0)
    module = module_of(folder, "fla/ops/forgetting_attn/naive.py")
    bias = biases.LogMask(masks.GatedDecay())

    def ours(q, k, v, g):
        logits = Logits(bias=bias.dense(length, log_gates=g), hides_keys=True)
        return SoftmaxOperator(scores_of(q, k), logits=logits)(v)

    return of_functions(
        ours,
        lambda q, k, v, g: module.naive_forgetting_attn(q, k, v, g),
        **{name: random(BATCH, length, HEADS, 16, seed=i) for i, name in enumerate("qkv")},
        g=log_gates(length),
    )


def delta_rule(folder, length):
    module = module_of(folder, "fla/ops/gated_delta_rule/naive.py")
    query, key, value = (random(BATCH, length, HEADS, 16, seed=seed) for seed in range(3))
    strength, log_decay = (random(BATCH, length, HEADS, seed=seed) for seed in (3, 4))

    def theirs(**tensors):
        return module.naive_recurrent_gated_delta_rule(*tensors.values(), scale=1.0)[0]

    return of_functions(
        lambda q, k, v, beta, g: DeltaRuleOperator(q, k, g, beta)(v),
        theirs,
        q=query,
        k=torch.nn.functional.normalize(key, dim=-1),
        v=value,
        beta=torch.sigmoid(strength),
        g=-torch.nn.functional.softplus(log_decay),
    )


def graph(nodes=14):
    """A connected graph with types of edges."""
    generator = np.random.default_rng(3)
    edges = {(int(generator.integers(i)), i) for i in range(1, nodes)} | {(0, 5), (2, 9)}
    edges = np.array(sorted(edges))
    kinds = generator.integers(0, 3, (len(edges), 1))
    return Graph(edges, num_nodes=nodes, edge_features=kinds)


def graphormer(folder, _length, hops=4):
    """Graphormer's bias for distances, edges on paths and the virtual node."""
    torch.manual_seed(0)
    names = {"init_params": lambda module, n_layers: None}
    kind = function_of(folder, "graphormer/modules/graphormer_layers.py", "GraphAttnBias", **names)
    theirs = kind(HEADS, 1, 3, 20, 8, WIDTH, "multi_hop", hops, 1)
    one = graph()
    distances = precompute([one], "distances", verbose=False)[0]
    numbers = precompute([one], "paths", hops=hops, verbose=False)[0]
    paths = np.append(one.edge_features[:, 0], -1)[numbers]
    size = len(distances) + 1
    batch = {
        "attn_bias": torch.zeros(1, size, size),
        "spatial_pos": torch.tensor(distances + 1)[None].long(),
        "x": torch.zeros(1, len(distances), 1),
        "edge_input": torch.tensor(paths + 1)[None, ..., None].long(),
        "attn_edge_type": None,
    }
    bias = biases.Sum([biases.ShortestPath(18, name="d"), biases.EdgePath(3, hops, name="e")])
    bias.build((None, None, HEADS, None))

    def of_theirs(weights):
        """Their rows are moved by one: row 0 is padding. An edge's number is a product there."""
        edges = weights["edge_encoder.weight"][1:]
        places = weights["edge_dis_encoder.weight"].reshape(-1, HEADS, HEADS)[:hops]
        table = torch.einsum("en,hnm->hem", edges, places)
        virtual = weights["graph_token_virtual_distance.weight"]
        rows = weights["spatial_pos_encoder.weight"][1:20]
        return torch.cat([rows, torch.zeros(1, HEADS), virtual]), table

    def ours(**weights):
        tables = of_theirs({name.replace("__", "."): x for name, x in weights.items()})
        padded = np.pad(distances, ((1, 0), (1, 0)), constant_values=-2)[None]
        on_paths = np.pad(paths, ((1, 0), (1, 0), (0, 0)), constant_values=-1)[None]
        parameters = {"0 of_distance": tables[0], "1 of_edge": tables[1]}
        inputs = {"distances": torch.tensor(padded), "paths": torch.tensor(on_paths)}
        return bias._matrix(size, parameters, inputs)

    def published_bias(**weights):
        named = {name.replace("__", "."): x for name, x in weights.items()}
        return torch.func.functional_call(theirs, named, (batch,))

    parameters = {name.replace(".", "__"): x.detach() for name, x in theirs.named_parameters()}
    return of_functions(ours, published_bias, **parameters)


def walks(folder, _length, steps=8):
    """GRIT's probabilities of random walks, through a linear map."""
    one = graph()

    class Adjacency:
        """The methods of a sparse matrix that the published function calls."""

        def __init__(self, matrix):
            self.matrix = matrix

        @classmethod
        def from_edge_index(cls, edges, weights, sparse_sizes):
            matrix = torch.zeros(sparse_sizes)
            matrix[edges[0], edges[1]] = 1.0
            return cls(matrix)

        @classmethod
        def from_dense(cls, matrix, has_value):
            return cls(matrix)

        def sum(self, dim):
            return self.matrix.sum(dim)

        def __mul__(self, factor):
            return Adjacency(self.matrix * factor)

        def to_dense(self):
            return self.matrix

        def coo(self):
            places = torch.cartesian_prod(*[torch.arange(len(self.matrix))] * 2).T
            return (*places, self.matrix.reshape(-1, self.matrix.shape[-1]))

    found = {}

    class Data(dict):
        edge_index = torch.tensor(np.concatenate([one.edges, one.edges[:, ::-1]]).T.copy())
        edge_weight, num_nodes = None, one.num_nodes

    def keep(data, value, attr_name):
        found[attr_name] = value
        return data

    names = {"SparseTensor": Adjacency, "add_node_attr": keep, "F": torch.nn.functional}
    full = function_of(folder, "grit/transform/rrwp.py", "add_full_rrwp", **names)
    full(Data(), walk_length=steps)
    theirs = found["rrwp_val"].reshape(one.num_nodes, one.num_nodes, steps)
    numbers = precompute([one], "walk_probabilities", num_steps=steps, verbose=False)[0]
    bias = biases.WalkProbabilities(steps)
    inputs = {"walk_probabilities": torch.tensor(numbers)[None]}
    return of_functions(
        lambda kernel: bias._matrix(one.num_nodes, {"of_step": kernel}, inputs),
        lambda kernel: (theirs @ kernel).permute(2, 0, 1)[None],
        kernel=random(steps, HEADS),
    )


CASES = {
    "fla: gated decay": simple_gla,
    "fla: forgetting attention": forgetting,
    "fla: gated delta rule": delta_rule,
    "graphormer: biases": graphormer,
    "grit: probabilities of walks": walks,
    "unilm: differential attention, version 1": differential_1,
    "unilm: differential attention, version 1, groups": differential_1_of_groups,
    "unilm: differential attention, version 2": differential_2,
    "unilm: differential attention, version 2, groups": lambda *given: differential_2(*given, 2),
}


def difference(ours, theirs):
    """The largest difference, relative to the largest number of theirs."""
    ours, theirs = (np.asarray(x.detach(), "float64") for x in (ours, theirs))
    return np.abs(ours - theirs).max() / np.abs(theirs).max()


def main():
    from measure import Parser, UsageError, at_least

    parser = Parser(description=__doc__.splitlines()[0])
    for source in dict.fromkeys(name.split(":")[0] for name in CASES):
        parser.add_argument(f"--{source}", type=Path, help="folder of a clone")
    parser.add_argument("--length", type=at_least(1), default=150, help="number of tokens")
    options = vars(parser.parse_args())
    length = options.pop("length")
    chosen = {name: case for name, case in CASES.items() if options[name.split(":")[0]]}
    if not chosen:
        raise UsageError(f"give a folder: {', '.join(f'--{source}' for source in options)}")
    worst = 0.0
    print("| case | values | gradients |\n| --- | --- | --- |")
    for name, case in chosen.items():
        try:
            pairs = case(options[name.split(":")[0]], length)
        except ModuleNotFoundError as error:
            print(f"| {name} | not in this clone: {error.name} | |")
            continue
        values = difference(*pairs.pop("outputs"))
        gradients = max(difference(*pair) for pair in pairs.values())
        print(f"| {name} | {values:.1e} | {gradients:.1e} |", flush=True)
        worst = max(worst, values, gradients)
    if worst > MOST:
        raise UsageError(f"a difference of {worst:.1e} is above {MOST:.0e}")


if __name__ == "__main__":
    from measure import run

    run(main)
