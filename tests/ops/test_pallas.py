"""Pallas kernels equal the portable form; lowered for TPUs.

They run step by step on a CPU. Where JAX has a TPU, they run on it as well.
"""

from unittest import mock

import numpy as np
import pytest
from keras import ops

from keras_graphattn import layers, masks
from keras_graphattn.masks.chunked import Decay, Form, attention_by_form
from keras_graphattn.operators import (
    BlockwiseOperator,
    Visibility,
    blockwise,
    device_kernels,
    use_kernels,
)
from keras_graphattn.operators.device_kernels import Kernels, chosen_kernels
from tests.numerics import (
    BACKEND,
    assert_all_close,
    assert_close,
    layer_value_and_gradients,
    randomise,
    value_and_gradients,
)

on_jax = pytest.mark.skipif(BACKEND != "jax", reason="Pallas is jax's")
CALL = "tpu_custom_call"
HAS_TPU = device_kernels._platform() == "tpu"
on_tpu = pytest.mark.skipif(not HAS_TPU, reason="no TPU is here")
RUNS = [
    pytest.param(Kernels(interpret=True), id="step by step"),
    pytest.param(Kernels(), id="here", marks=on_tpu),
]
BATCH, HEADS = 2, 2


def of_form(kind):
    """A function of query, key, x and parameters, and the shapes of the parameters."""
    gates, rates = ("gates",), ("rates",)
    used = {"causal": (), "decay": rates, "decays": ("rates", "weights"), "gates": gates}
    used["gates and decay"] = gates + rates
    shapes = {"gates": None, "rates": (HEADS, 1), "weights": (HEADS, 3)}
    if kind == "decays":
        shapes["rates"] = (HEADS, 3)

    def function(query, key, x, *parameters):
        named = dict(zip(used[kind], parameters, strict=True))
        decay = Decay(named["rates"], named.get("weights")) if "rates" in named else None
        return attention_by_form(query, key, x, Form(True, decay, None, named.get("gates")))

    return function, [shapes[name] for name in used[kind]]


def arrays(length, shapes, features=5, width=7):
    generator = np.random.default_rng(length)
    shape = (BATCH, length, HEADS)
    query, key = (generator.random((*shape, features)) for _ in range(2))
    drawn = [generator.random(each or shape) for each in shapes]
    parameters = [-x if each is None else x for x, each in zip(drawn, shapes, strict=True)]
    if parameters and shapes[0] is None:
        parameters[0][:, length // 2] = -1000.0  # a gate that is closed
    signal = generator.standard_normal((*shape, width))
    return [x.astype("float32") for x in (query, key, signal, *parameters)]


@on_jax
@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("length", [65, 150])
@pytest.mark.parametrize("kind", ["causal", "decay", "decays", "gates", "gates and decay"])
def test_the_kernel_equals_the_portable_form(kind, length, run, monkeypatch):
    function, shapes = of_form(kind)
    given = arrays(length, shapes)
    expected, gradients = value_and_gradients(function, *given)
    monkeypatch.setattr(device_kernels, "_chosen", run)
    found, own = value_and_gradients(function, *given)
    assert_close(found, expected, 1e-5)
    if "gates" in kind:  # a gradient for a closed gate is rounding
        for each in (own, gradients):
            each[3] = np.delete(each[3], length // 2, axis=1)
    for place, gradient in own.items():  # those for gates and rates are differences of sums
        tolerance = 1e-5 if place < 3 else 3e-5
        assert_all_close({place: gradient}, {place: gradients[place]}, tolerance)


def twice(visibility):
    """Both applications of attention, of query, key and x, in blocks of 64 rows."""

    def function(query, key, x):
        once, second = BlockwiseOperator(query, key, visibility, block_size=64).twice(x)
        return ops.concatenate([once, second], axis=-1)

    return function


@on_jax
@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("masked", ["nothing", "causal", "padded", "causal and padded"])
def test_two_sweeps_equal_the_portable_form(masked, scale, run, monkeypatch):
    generator = np.random.default_rng(3)
    query, key, x = generator.standard_normal((3, BATCH, 150, HEADS, 5)).astype("float32")
    kept = np.ones((BATCH, 150), bool)
    if "padded" in masked:
        kept[0, :3] = kept[1, 100:] = False  # causal: the first rows see nothing
        x[~kept] = 1e15
    seen = Visibility(keys=kept, queries=kept) if "padded" in masked else Visibility()
    function = twice(seen._replace(causal="causal" in masked))
    arrays = [scale * query, key, x]
    expected, gradients = value_and_gradients(function, *arrays)
    monkeypatch.setattr(device_kernels, "_chosen", run)
    swept = mock.Mock(wraps=blockwise._swept)
    monkeypatch.setattr(blockwise, "_swept", swept)
    found, own = value_and_gradients(function, *arrays)
    assert swept.called
    if scale > 1.0:  # one key has all the weight: a rounding of a score moves it
        assert np.isfinite(found).all()
        assert np.mean(np.abs(found - expected) > 1e-2) < 0.01
        return
    assert_close(found, expected, 1e-5)
    assert_all_close(own, gradients, 1e-5)


@on_jax
@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_two_sweeps_in_half_precision(dtype, run, monkeypatch):
    generator = np.random.default_rng(3)
    query, key, x = (
        ops.cast(each, dtype) for each in generator.standard_normal((3, BATCH, 150, HEADS, 5))
    )
    operator = BlockwiseOperator(query, key, block_size=64)
    expected = operator.twice(x)
    monkeypatch.setattr(device_kernels, "_chosen", run)
    for one, other in zip(operator.twice(x), expected, strict=True):
        assert one.dtype == x.dtype
        assert_close(ops.cast(one, "float32"), ops.cast(other, "float32"), 2e-2)


@pytest.mark.parametrize("kind", ["entries", "window", "short", "wide"])
def test_sweeps_leave_other_calls_to_the_portable_form(kind, monkeypatch):
    length, width = 90 if kind == "short" else 140, 130 if kind == "wide" else 4
    query, key, x = np.random.default_rng(0).standard_normal((3, 1, length, 1, width))
    seen = Visibility(
        entries=np.ones((1, length, length), bool) if kind == "entries" else None,
        window=5 if kind == "window" else None,
    )
    operator = BlockwiseOperator(*map(ops.convert_to_tensor, (query, key)), seen, block_size=64)
    monkeypatch.setattr(device_kernels, "_chosen", Kernels())
    assert operator._kernels(ops.convert_to_tensor(x)) is None


@on_jax
@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("mask", [masks.GatedDecay, lambda: masks.Exponential(2, causal=True)])
def test_a_layer_with_padding_gives_the_same(mask, run, monkeypatch):
    layer = layers.MaskedKernelAttention(HEADS, 4, mask=mask(), filter="first_order")
    tokens = np.random.default_rng(0).standard_normal((BATCH, 71, 6)).astype("float32")
    layer.build(tokens.shape)
    randomise(layer)
    kept = np.arange(71)[None] < np.array([[71], [50]])
    call = {"query_mask": kept, "value_mask": kept}
    expected, gradients = layer_value_and_gradients(layer, tokens, **call)
    monkeypatch.setattr(device_kernels, "_chosen", run)
    found, own = layer_value_and_gradients(layer, tokens, **call)
    assert_close(found, expected, 1e-5)
    assert_all_close(own, gradients, 1e-5)


@on_jax
@pytest.mark.slow
def test_the_kernel_and_its_gradients_are_lowered(monkeypatch):
    monkeypatch.setattr(device_kernels, "_chosen", Kernels())
    function, shapes = of_form("gates")
    given = arrays(130, shapes, features=64, width=66)
    assert CALL in lowered_text(jax_gradient(function, 4), *given)


def jax_gradient(function, count):
    import jax

    return jax.grad(lambda *x: function(*x).sum(), tuple(range(count)))


def lowered_text(step, *arrays):
    """The program of a step for a TPU, which is not here."""
    import jax

    return jax.export.export(jax.jit(step), platforms=["tpu"])(*arrays).mlir_module()


@on_jax
@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_two_sweeps_and_their_gradients_are_lowered(causal, monkeypatch):
    monkeypatch.setattr(device_kernels, "_chosen", Kernels())
    function = twice(Visibility(causal=causal))
    arrays = np.random.default_rng(0).standard_normal((3, 2, 150, 2, 66)).astype("float32")
    step = jax_gradient(function, 3)
    assert lowered_text(step, *arrays).count(CALL) == 2


@pytest.mark.skipif(device_kernels._platform() in ("tpu", "cuda"), reason="a device is here")
def test_kernels_are_refused_without_a_device():
    with pytest.raises(ValueError, match=f"JAX with a TPU, or torch with a CUDA.*{BACKEND}"):
        use_kernels()
    use_kernels(False)
    assert chosen_kernels() is None


@on_jax
def test_kernels_are_not_used_where_tensors_are_distributed(monkeypatch):
    import keras

    monkeypatch.setattr(device_kernels, "_chosen", Kernels())
    assert chosen_kernels() == Kernels()
    with keras.distribution.DataParallel().scope():
        assert chosen_kernels() is None
