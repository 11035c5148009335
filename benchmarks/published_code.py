"""This package beside the authors' published code, on random weights and tokens.

    KERAS_BACKEND=torch python benchmarks/published_code.py --unilm <folder of a clone>

prints, for each case, the largest difference of values and of gradients, relative to the largest
number of the published code. The folders are clones of

    --unilm    github.com/microsoft/unilm

A case is the name of its folder and a function of that folder. It returns pairs of arrays, ours and
theirs, by name. Both compute in float32.
"""

import importlib
import sys
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from unittest import mock

import numpy as np
import torch

from keras_graphattn.layers import DifferentialAttention

MOST = 1e-5  # relative difference
BATCH, LENGTH, WIDTH, HEADS = 2, 33, 48, 4


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


def compared(layer, theirs, of_theirs):
    """Pairs of outputs and gradients; `of_theirs` are our weights, made of their parameters."""
    layer.build((None, None, WIDTH))
    ours = {weight.path.split("/", 1)[1]: weight for weight in layer.weights}
    for name, weight in of_theirs(dict(theirs.named_parameters())).items():
        ours[name].assign(weight.detach())
    x = random(BATCH, LENGTH, WIDTH)
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


def differential_1(folder, module="multihead_diffattn", kind="MultiheadDiffAttn", groups=None):
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

    return compared(layer, theirs, of_theirs)


def differential_1_of_groups(folder):
    return differential_1(folder, "multihead_flashdiff_1", "MultiheadFlashDiff1", 2)


def differential_2(folder, groups=None):
    torch.manual_seed(0)
    module = diff_transformer(folder, "multihead_flashdiffv2")
    theirs = module.MultiheadFlashDiffV2(True, WIDTH, HEADS, groups, WIDTH // HEADS)
    layer = DifferentialAttention(
        HEADS, theirs.head_dim, version=2, num_key_value_heads=groups, use_bias=False
    )
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "lambda": "lambda_proj"}
    names["attention_output"] = "o_proj"
    return compared(layer, theirs, lambda weights: projections_of(layer, weights, names))


CASES = {
    "unilm: differential attention, version 1": differential_1,
    "unilm: differential attention, version 1, groups": differential_1_of_groups,
    "unilm: differential attention, version 2": differential_2,
    "unilm: differential attention, version 2, groups": lambda folder: differential_2(folder, 2),
}


def difference(ours, theirs):
    """The largest difference, relative to the largest number of theirs."""
    ours, theirs = (np.asarray(x.detach(), "float64") for x in (ours, theirs))
    return np.abs(ours - theirs).max() / np.abs(theirs).max()


def main():
    from measure import Parser, UsageError

    parser = Parser(description=__doc__.splitlines()[0])
    for source in dict.fromkeys(name.split(":")[0] for name in CASES):
        parser.add_argument(f"--{source}", type=Path, help="folder of a clone")
    options = vars(parser.parse_args())
    chosen = {name: case for name, case in CASES.items() if options[name.split(":")[0]]}
    if not chosen:
        raise UsageError(f"give a folder: {', '.join(f'--{source}' for source in options)}")
    worst = 0.0
    print("| case | values | gradients |\n| --- | --- | --- |")
    for name, case in chosen.items():
        try:
            pairs = case(options[name.split(":")[0]])
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
