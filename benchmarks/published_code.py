"""Compares numbers of this package with those of published code: values and gradients, on torch.

    git clone https://github.com/fla-org/flash-linear-attention
    KERAS_BACKEND=torch python benchmarks/published_code.py --fla flash-linear-attention

The published code is read from a clone and not installed. The program prints the largest difference
of each pair of arrays, relative to the largest entry of the pair, and fails if one is above
`--tolerance`. flash-linear-attention was compared at commit bc3b101d.
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np
from measure import Parser, UsageError, at_least, number_in, run


def module_of(options, name, path):
    """A module of published code, from its file in the folder of the option `name`."""
    folder = getattr(options, name)
    if folder is None or not (Path(folder) / path).is_file():
        raise UsageError(f"--{name} must be the folder of a clone with {path}, got {folder}")
    file = Path(folder) / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def values_and_gradients(function, arrays):
    """The outputs of a function of torch tensors, and the gradients of a fixed sum of them."""
    import torch

    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    outputs = function(*tensors)
    weights = np.random.default_rng(7).standard_normal(tuple(outputs.shape)).astype("float32")
    gradients = torch.autograd.grad(torch.sum(outputs * torch.tensor(weights)), tensors)
    return [x.detach().numpy() for x in (outputs, *gradients)]


def simple_gla(options):
    """`MaskedKernelAttention`'s product under `GatedDecay`, and Simple GLA, token by token."""
    from keras_graphattn.masks import GatedDecay

    naive = module_of(options, "fla", "fla/ops/simple_gla/naive.py").naive_recurrent_simple_gla
    generator = np.random.default_rng(0)
    shape = (2, options.length, 3)
    query, key, x = generator.standard_normal((3, *shape, 16))
    log_gates = -(10.0 ** generator.uniform(-4, 1, shape))
    arrays = [array.astype("float32") for array in (query, key, x, log_gates)]
    mask = GatedDecay()
    ours = values_and_gradients(lambda q, k, x, g: mask.attend(q, k, x, log_gates=g), arrays)
    theirs = values_and_gradients(lambda q, k, x, g: naive(q, k, x, g, scale=1.0)[0], arrays)
    return list(zip(ours, theirs, strict=True))


# Functions of the options that return pairs (ours, theirs) of arrays: values, then gradients
CASES = {"simple_gla": simple_gla}


def difference(ours, theirs):
    """The largest difference of two arrays, relative to the largest entry."""
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def parse(arguments=None):
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--fla", help="folder of a clone of fla-org/flash-linear-attention")
    parser.add_argument("--length", type=at_least(1), default=300, help="number of tokens")
    parser.add_argument("--tolerance", type=number_in(0.0, 1.0), default=1e-5)
    return parser.parse_args(arguments)


def main():
    options = parse()
    largest = 0.0
    for name in options.cases:
        found = [difference(ours, theirs) for ours, theirs in CASES[name](options)]
        largest = max(largest, *found)
        print(f"{name}: value {found[0]:.1e}, gradients {' '.join(f'{x:.1e}' for x in found[1:])}")
    if not largest <= options.tolerance:
        sys.exit(f"a difference is above {options.tolerance:g}")


if __name__ == "__main__":
    run(main)
