"""What the linear layers promise, where no other test of a layer says it.

The others: values and gradients, causal or not, under masks of tokens (`test_twins.py`,
`test_unseen_tokens.py`); full passes, parts and single tokens, and the dtype of a state
(`test_decoding.py`, `test_numbers_kept.py`); float64, and rows that see nothing
(`test_numbers_kept.py`); outputs in the compute dtype (`test_twins.py`); half precision near
float32 (`test_mixed_precision.py`); dropout in training alone (`test_dropout.py`); functional
models, open lengths and every form of call (`test_forms_of_call.py`,
`tests/export/test_open_sizes.py`); saving (`tests/fuzz/test_classes.py`, `test_made_again.py`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
from keras import ops

from benchmarks.precision import outputs_and_gradients
from keras_graphattn import layers
from keras_graphattn.masks import Causal, Exponential, GatedDecay
from tests.layers.decoding import decoded, initial_state
from tests.layers.twins import built, tokens
from tests.numerics import BACKEND, assert_close, to_numpy

pytestmark = pytest.mark.slow_on("jax")

KERNEL, AGF = layers.MaskedKernelAttention, layers.AttentiveGraphFilter
DELTA, FACTORED = layers.GatedDeltaRule, layers.GraphKernelAttention


class Linear(NamedTuple):
    make: Callable[..., Any]
    decodes: bool = True  # what a full pass gives
    drops_outputs: bool = True  # entries of the heads' outputs, before the output projection
    sums_to_one: bool = True  # the rows of A


LINEAR = {
    "kernel": Linear(lambda **o: KERNEL(2, 4, **o), decodes=False),
    "kernel, causal": Linear(lambda **o: KERNEL(2, 4, mask=Causal(), **o)),
    "kernel, exponential": Linear(lambda **o: KERNEL(2, 4, mask=Exponential(2, causal=True), **o)),
    "kernel, gated decay": Linear(lambda **o: KERNEL(2, 4, mask=GatedDecay(), **o)),
    "AGF": Linear(lambda **o: AGF(2, 4, **o), decodes=False, drops_outputs=False),
    "AGF, causal": Linear(lambda **o: AGF(2, 4, causal=True, **o), drops_outputs=False),
    "delta rule": Linear(lambda **o: DELTA(2, 4, **o), sums_to_one=False),
    "GKAT, factored": Linear(
        lambda **o: FACTORED(2, 4, mask=Exponential(2), **{"feature_map": "favor", **o}),
        decodes=False,
        drops_outputs=False,
    ),
}


def names(field):
    return [name for name, linear in LINEAR.items() if getattr(linear, field)]


@pytest.mark.parametrize("name", names("drops_outputs"))
def test_dropout_drops_entries_of_the_heads_outputs(name):
    """With an output projection that is the identity, they are the outputs."""
    options = {"use_bias": False, "output_shape": 8}
    layer, x = built(LINEAR[name].make, dropout=0.5, **options), tokens(64)
    layer.output_dense.kernel.assign(np.eye(8).reshape(2, 4, 8))
    kept, dropped = (to_numpy(layer(x, training=training)) for training in (False, True))
    is_zero = dropped == 0
    np.testing.assert_allclose(dropped, np.where(is_zero, 0.0, 2 * kept), atol=1e-6)
    for axes in ((1, 2), (0, 1), (0, 2)):  # neither heads nor tokens as a whole
        assert is_zero.mean(axis=axes).min() > 0.0
        assert is_zero.mean(axis=axes).max() < 1.0
    assert abs(is_zero.mean() - 0.5) < 0.1
    if LINEAR[name].decodes:
        assert_close(to_numpy(decoded(layer, x, (32, 32))[0]), kept, 1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", LINEAR)
def test_thousands_of_equal_tokens_in_half_precision(name, dtype):
    """A sum of 4096 features is beyond float16, and stops growing at 256 ones in bfloat16."""
    layer = built(LINEAR[name].make, dtype=f"mixed_{dtype}")
    x = np.repeat(4.0 * tokens(1), 4096, axis=1)
    outputs, gradients = outputs_and_gradients(layer, x)
    assert np.isfinite(outputs).all()
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    if LINEAR[name].sums_to_one:
        first = np.broadcast_to(outputs[:, :1], outputs.shape)
        assert_close(outputs, first, {"bfloat16": 1e-2, "float16": 2e-3}[dtype])


SEEN = []  # dtypes


@keras.saving.register_keras_serializable(package="keras_graphattn_tests")
def squares(x):
    SEEN.append(keras.backend.standardize_dtype(x.dtype))
    return ops.square(x)


@keras.saving.register_keras_serializable(package="keras_graphattn_tests")
def small_squares(x):
    return 1e-10 * squares(x)


@pytest.mark.parametrize("name", [n for n in LINEAR if n.startswith(("kernel", "GKAT"))])
def test_the_size_of_features_cancels_and_they_are_float32(name):
    """An epsilon beside normalisers of 1e-20 would make the rows sum to less than one."""
    layer, small = (
        built(LINEAR[name].make, feature_map=function, dtype="mixed_float16")
        for function in (squares, small_squares)
    )
    small.set_weights(layer.get_weights())
    x = tokens(70)
    SEEN.clear()
    assert_close(to_numpy(small(x)), to_numpy(layer(x)), 1e-3)
    assert set(SEEN) == {"float32"}


def number_of_operations(function, x):
    """How many operations the backend records for a function of a tensor."""
    x = ops.convert_to_tensor(x)
    if BACKEND == "jax":
        import jax

        return len(str(jax.make_jaxpr(function)(x)).splitlines())
    if BACKEND == "tensorflow":
        import tensorflow as tf

        graph = tf.function(function).get_concrete_function(x).graph.as_graph_def()
        return len(graph.node) + sum(len(inner.node_def) for inner in graph.library.function)
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            self.count += 1
            return operation(*args, **(kwargs or {}))

    with Counter() as counter:
        function(x)
    return counter.count


@pytest.mark.parametrize("call", ["full", "decode"])
@pytest.mark.parametrize("name", LINEAR)
def test_no_loop_over_positions(name, call):
    """On torch, the delta rule has a loop over chunks of 32 tokens: some operations for each."""
    if call == "decode" and not LINEAR[name].decodes:
        pytest.skip("does not decode")
    layer = built(LINEAR[name].make)
    state = initial_state(layer, 2, 1) if call == "decode" else None
    function = layer if state is None else lambda x: layer.decode(x, state)[0]
    few, many = (number_of_operations(function, tokens(length)) for length in (1024, 5120))
    assert many - few < (5120 - 1024) / 2


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64"])
@pytest.mark.parametrize("name", LINEAR)
def test_tokens_are_floats(name, dtype):
    layer, x = built(LINEAR[name].make), tokens()
    ids = np.ones_like(x).astype(dtype)
    for given in (ids, ops.convert_to_tensor(ids), keras.Input(x.shape[1:], dtype=dtype)):
        received = keras.backend.standardize_dtype(given.dtype)  # jax makes int32 of int64
        words = rf"must be a tensor of floats. Received: \w+.dtype={received}. Embed ids with"
        with pytest.raises(ValueError, match=f"`query` {words}"):
            layer(given)
        for argument in ("value", "key"):
            with pytest.raises(ValueError, match=f"`{argument}` {words}"):
                layer(x, **{argument: given})
        if LINEAR[name].decodes and not isinstance(given, keras.KerasTensor):
            with pytest.raises(ValueError, match=f"`tokens` {words}"):
                layer.decode(given, initial_state(layer, len(x), 1))
    np.testing.assert_array_equal(to_numpy(layer(x.tolist())), to_numpy(layer(x)))
    with pytest.raises(ValueError, match="`query` must be a tensor of floats"):
        layer(ids.tolist())
