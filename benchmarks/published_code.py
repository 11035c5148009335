"""Our operators beside published code: values and gradients, on torch.

    git clone https://github.com/fla-org/flash-linear-attention
    KERAS_BACKEND=torch python benchmarks/published_code.py --fla flash-linear-attention

prints, for each case, the largest difference of the outputs and of each gradient from those of the
published code, relative to their largest number. It is an error if one is above 1e-5.
"""

import argparse
import importlib.util
from pathlib import Path

import torch


def module_of(folder, path):
    """One file of a clone as a module, without its package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, Path(folder) / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def normal(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gated_delta_rule(options):
    """The operator beside the recurrence of flash-linear-attention."""
    from keras_graphattn.operators import DeltaRuleOperator

    published = module_of(options.fla, "fla/ops/gated_delta_rule/naive.py")
    query, key, value = (normal(2, 150, 3, 16, seed=seed) for seed in range(3))
    key = torch.nn.functional.normalize(key, dim=-1)
    strength = torch.sigmoid(normal(2, 150, 3, seed=3))
    log_decay = -torch.nn.functional.softplus(normal(2, 150, 3, seed=4))

    def ours(query, key, value, strength, log_decay):
        return DeltaRuleOperator(query, key, log_decay, strength)(value)

    def theirs(query, key, value, strength, log_decay):
        arguments = (query, key, value, strength, log_decay)
        return published.naive_recurrent_gated_delta_rule(*arguments, scale=1.0)[0]

    return ours, theirs, (query, key, value, strength, log_decay)


# Each function returns ours, theirs and the arguments of both
CASES = {"gated_delta_rule": gated_delta_rule}


def value_and_gradients(function, arguments):
    arguments = [x.detach().clone().requires_grad_() for x in arguments]
    with torch.enable_grad():
        value = function(*arguments)
        gradients = torch.autograd.grad((value * normal(*value.shape, seed=9)).sum(), arguments)
    return [value.detach(), *gradients]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fla", help="the folder of a clone of flash-linear-attention")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    options = parser.parse_args()
    for name in options.cases:
        ours, theirs, arguments = CASES[name](options)
        pairs = zip(*(value_and_gradients(f, arguments) for f in (ours, theirs)), strict=True)
        differences = [float((a - b).abs().max() / b.abs().max()) for a, b in pairs]
        print(f"{name}: outputs {differences[0]:.1e}, gradients {max(differences[1:]):.1e}")
        assert max(differences) < 1e-5, name


if __name__ == "__main__":
    main()
