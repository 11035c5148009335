"""Operators on the Triton kernels of flash-linear-attention equal their portable forms, on torch.

`naive` stands in for the library, token by token: it holds what the operators give to it and take
from it. `published` is the library itself, on a GPU, or on a CPU by `make test-triton`.
"""

import builtins
import functools
import os
import sys
import types
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from keras import ops

from keras_graphattn import layers, masks
from keras_graphattn.masks.chunked import Decay, Form, attention_by_form
from keras_graphattn.operators import BlockwiseOperator, DeltaRuleOperator, device_kernels
from keras_graphattn.operators.device_kernels import Kernels
from tests.numerics import (
    BACKEND,
    assert_all_close,
    assert_close,
    layer_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

pytestmark = pytest.mark.skipif(BACKEND != "torch", reason="the Triton kernels are torch's")
INTERPRETED = bool(os.environ.get("TRITON_INTERPRET"))
RUNS = find_spec("fla") is not None and (torch.cuda.is_available() or INTERPRETED)
BATCH, HEADS = 2, 2
MODULES = ("fla.ops.simple_gla", "fla.ops.gated_delta_rule")
OURS = "keras_graphattn.operators.triton_kernels"


def steps(q, k, v, g, beta, scale, state):
    """Both recurrences, token by token; without a strength, a token only adds."""
    outputs = []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        write = v[:, t]
        if beta is not None:
            held = torch.einsum("bnh,bnhd->bnd", k[:, t], state)
            write = beta[:, t, :, None] * (write - held)
        state = state + k[:, t, :, :, None] * write[:, :, None]
        outputs.append(scale * torch.einsum("bnh,bnhd->bnd", q[:, t], state))
    return torch.stack(outputs, 1), state


def empty(k, v):
    return k.new_zeros((*k.shape[::2], k.shape[-1], v.shape[-1]))


def naive_decay(q, k, v, g, scale):
    return steps(q, k, v, g, None, scale, empty(k, v))[0], None


def naive_rule(q, k, v, g, beta, scale, initial_state, output_final_state):
    assert output_final_state
    return steps(q, k, v, g, beta, scale, initial_state)


@functools.cache  # it changes the library for the whole process
def step_by_step():
    """Lets Triton's interpreter run the library: one configuration, and tensors as counters."""
    import triton.language as tl
    from triton.runtime import autotuner
    from triton.runtime.interpreter import TensorHandle

    begin = autotuner.Autotuner.__init__

    def first_only(self, fn, names, configs, *arguments, **options):
        begin(self, fn, names, configs[:1], *arguments, **options)

    def number(x):
        return int(x.handle.data.item()) if isinstance(x, tl.tensor) else int(x)

    def counted(*bounds):
        for i in builtins.range(*map(number, bounds)):
            yield tl.tensor(TensorHandle(np.array([i], "int32"), tl.int32), tl.int32)

    autotuner.Autotuner.__init__ = first_only
    for name in MODULES:
        __import__(name)
    for name, module in list(sys.modules.items()):
        if name.startswith("fla.ops"):
            module.__dict__.setdefault("range", counted)


@pytest.fixture(params=["naive", "published"])
def kernels(request, monkeypatch):
    """Calls with kernels, if what is returned is called."""
    if request.param == "published":
        if not RUNS:
            pytest.skip("flash-linear-attention is not here, or neither a GPU nor TRITON_INTERPRET")
        if INTERPRETED:
            step_by_step()
    else:
        functions = {"chunk_simple_gla": naive_decay, "chunk_gated_delta_rule": naive_rule}
        for name in ("fla", "fla.ops", *MODULES):
            module = types.ModuleType(name)
            vars(module).update(functions)
            monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, OURS, raising=False)
    yield lambda: monkeypatch.setattr(device_kernels, "_chosen", Kernels())
    sys.modules.pop(OURS, None)  # what it has imported may be the stand-in


def arrays(length, features=5, width=7):
    generator = np.random.default_rng(length)
    shape = (BATCH, length, HEADS)
    query, key = (generator.standard_normal((*shape, features)) for _ in range(2))
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    signal, gates = generator.standard_normal((*shape, width)), -generator.random(shape)
    gates[:, length // 2] = -1000.0  # a gate that is closed
    return [x.astype("float32") for x in (query, key, signal, gates)]


def compared(function, given, kernels, tolerance=1e-5):
    expected, gradients = value_and_gradients(function, *given)
    kernels()
    found, own = value_and_gradients(function, *given)
    assert_close(found, expected, tolerance)
    for each in (own, gradients):  # that of the closed gate is rounding
        if 3 in each:
            each[3] = np.delete(each[3], given[3].shape[1] // 2, axis=1)
    assert_all_close(own, gradients, 1e-4)


@pytest.mark.parametrize("length", [65, 150])
@pytest.mark.parametrize("kind", ["gates", "decay", "decays and gates"])
def test_attention_under_a_decay(kind, length, kernels):
    def function(query, key, x, log_gates=None):
        decay = None
        if "decay" in kind:
            rates = np.array([[0.1, 0.4], [0.0, 2.0]], "float32")[:, : 1 + ("decays" in kind)]
            decay = Decay(*(ops.convert_to_tensor(each) for each in (rates, 1.0 + rates)))
        return attention_by_form(query, key, x, Form(True, decay, None, log_gates))

    given = arrays(length)
    compared(function, given if "gates" in kind else given[:3], kernels)


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("length", [33, 100])
def test_the_delta_rule(length, with_state, kernels):
    query, key, x, gates = arrays(length)
    strength = np.random.default_rng(1).random(gates.shape).astype("float32")
    shape = (BATCH, HEADS, key.shape[-1], 2 * x.shape[-1])
    state = np.random.default_rng(2).standard_normal(shape).astype("float32")

    def function(query, key, x, gates, strength, state):
        operator = DeltaRuleOperator(query, key, gates, strength, state if with_state else None)
        found = ops.concatenate([operator(x), operator(ops.sin(x))], axis=-1)
        if not with_state:
            return found + 0.0 * ops.sum(state)
        following = ops.sum(ops.concatenate(operator.following, axis=-1) ** 2, axis=(1, 2, 3))
        return found + following[:, None, None, None]

    compared(function, [query, key, x, gates, strength, state], kernels, 3e-5)


CASES = {
    "GatedDeltaRule": lambda: layers.GatedDeltaRule(2, 8, filter="first_order"),
    "GatedDecay": lambda: layers.MaskedKernelAttention(2, 8, mask=masks.GatedDecay()),
    "Exponential": lambda: layers.MaskedKernelAttention(2, 8, mask=masks.Exponential(causal=True)),
}


@pytest.mark.parametrize("name", CASES)
def test_layers(name, kernels):
    layer = CASES[name]()
    x = np.random.default_rng(0).standard_normal((BATCH, 70, 12)).astype("float32")
    padding = np.ones((BATCH, 70), bool)
    padding[1, 60:] = False
    x[~padding] = 1e15
    masked = {"query_mask": padding}
    layer(x, **masked)
    expected, gradients = layer_value_and_gradients(layer, x, **masked)
    kernels()
    found, own = layer_value_and_gradients(layer, x, **masked)
    assert_close(found, expected, 1e-4)
    assert_all_close(own, gradients, 1e-3)


def test_a_segment_begins_with_an_empty_state(kernels):
    layer = layers.GatedDeltaRule(2, 8, convolution=None)
    x = np.random.default_rng(0).standard_normal((1, 80, 12)).astype("float32")
    ids = np.repeat([[0, 1]], 40, axis=1).astype("int32")
    given = {"mask_inputs": {"segment_ids": ids}}
    expected = to_numpy(layer(x, **given))
    x[:, :40] *= 1e4
    kernels()
    assert_close(to_numpy(layer(x, **given))[:, 40:], expected[:, 40:], 1e-4)


def test_the_second_derivative_is_that_of_the_portable_form(kernels):
    given = [torch.tensor(x, requires_grad=True) for x in arrays(70)]

    def second():
        outputs = attention_by_form(*given[:3], Form(True, None, None, given[3]))
        slopes = torch.autograd.grad((outputs**2).sum(), given, create_graph=True)
        return torch.autograd.grad(sum((slope**2).sum() for slope in slopes), given)

    expected = second()
    kernels()
    for one, other in zip(second(), expected, strict=True):
        scale = float(other.detach().abs().max())
        assert_close(one.detach() / scale, other.detach() / scale, 1e-4)


def test_other_calls_stay_portable(kernels, monkeypatch):
    """Softmax in blocks, few tokens, other dtypes: the library would refuse or be slower."""
    kernels()
    called = []
    from keras_graphattn.operators import triton_kernels

    for name in ("decayed_attention", "delta_rule"):
        monkeypatch.setattr(triton_kernels, name, lambda *_, name=name: called.append(name))
    query, key, x, gates = arrays(150)
    BlockwiseOperator(query, key, block_size=64).twice(ops.convert_to_tensor(x))
    short = [ops.convert_to_tensor(each[:, :32]) for each in (query, key, x, gates)]
    attention_by_form(*short[:3], Form(True, None, None, short[3]))
    DeltaRuleOperator(short[0], short[1], short[3], -short[3])(short[2])
    double = [ops.cast(each, "float64") for each in (query, key, x, gates)]
    attention_by_form(*double[:3], Form(True, None, None, double[3]))
    DeltaRuleOperator(double[0], double[1], double[3], -double[3])(double[2])
    wide = ops.ones((1, 40, 1, 257)) / 257.0
    DeltaRuleOperator(wide, wide, -wide[..., 0], wide[..., 0])(wide)
    assert not called
