"""Inputs of a call: a wrong entry is an error, or makes its own example NaN and no other.

The tests run for every mask that takes inputs at each call, on each of its paths.
"""

import numpy as np
import pytest
from keras import ops

from keras_graphattn import masks
from tests.call_inputs import (
    BAD,
    BATCH,
    FIRST,
    LENGTH,
    MASKS,
    WRONG,
    batch_for,
    first_needed,
    made,
    wrong_batches,
    wrong_of,
)
from tests.numerics import BACKEND, to_numpy
from tests.topology_cases import applied

WAYS = {"jax": ["jit"], "tensorflow": ["graph", "xla"], "torch": ["hidden"]}[BACKEND]
OTHERS = [example for example in range(BATCH) if example != BAD]
KINDS = [(name, kind) for name in MASKS for kind in wrong_of(name)]
COMPILED = [
    pytest.param(
        *(name, path, way),
        # slow to compile: the fast tests run one path of each class
        marks=[]
        if BACKEND == "torch" or (name in FIRST and path == made(name).paths[-1] and way != "xla")
        else pytest.mark.slow,
    )
    for way in WAYS
    for name in MASKS
    for path in made(name).paths
]
X = np.random.default_rng(0).standard_normal((BATCH, LENGTH, 2, 3)).astype("float32")


def test_the_registry_knows_every_mask_and_input():
    for name in MASKS:
        assert set(MASKS[name]().inputs_at_call) <= set(WRONG)
    for name in set(masks.__all__) - {"Product"}:
        cls = getattr(masks, name)
        assert not (first_needed(cls) and cls.inputs_at_call), name


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_an_error_names_example_and_entry(name, kind):
    mask, inputs = made(name), wrong_batches(name)[kind]
    message = wrong_of(name)[kind][1]
    which = kind.split()[0] if kind.split()[0] in mask.inputs_at_call else ""
    match = rf"`{which}.* of example {BAD}: .*{message}"
    with pytest.raises(ValueError, match=match):
        mask.check_inputs(LENGTH, **inputs)  # NumPy, as in a data pipeline
    tensors = {key: ops.convert_to_tensor(array) for key, array in inputs.items()}
    for call in (
        lambda: mask.apply(X, **inputs),
        lambda: mask.apply(X, mask.paths[-1], **tensors),
        lambda: mask.dense(LENGTH, **tensors),
        lambda: mask.rows([0, 2], LENGTH, **tensors),
    ):
        with pytest.raises(ValueError, match=match):
            call()


def compiled(mask, path, way, monkeypatch):
    """Compiled x, weights, inputs -> M x and the gradients of a loss that leaves out BAD."""
    weights = [to_numpy(w).astype("float32") for w in mask.trainable_variables]
    kept = np.isin(np.arange(BATCH), OTHERS)[:, None, None, None]
    signs = np.random.default_rng(1).standard_normal(X.shape).astype("float32")

    def loss(x, weights, inputs):
        value = applied(mask, path, inputs)(x, *weights)
        seen = ops.where(ops.convert_to_tensor(kept), value, 0.0)
        return ops.sum(seen * ops.convert_to_tensor(signs)), value

    if BACKEND == "jax":
        import jax

        both = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))

        def run(x, inputs):
            (_, value), (of_x, of_weights) = both(x, weights, inputs)
            return value, of_x, of_weights

    elif BACKEND == "tensorflow":
        import tensorflow as tf

        @tf.function(jit_compile=way == "xla")
        def both(x, weights, inputs):
            with tf.GradientTape() as tape:
                tape.watch([x, *weights])
                total, value = loss(x, weights, inputs)
            of_x, *of_weights = tape.gradient(total, [x, *weights])
            return value, of_x, of_weights

        def run(x, inputs):
            tensors = {key: tf.convert_to_tensor(array) for key, array in inputs.items()}
            return both(tf.constant(x), [tf.constant(w) for w in weights], tensors)

    else:  # torch compiles too slowly for a test: hide the values from the eager call
        import torch

        monkeypatch.setattr("keras_graphattn.masks.inputs.known_value", lambda given: None)

        def run(x, inputs):
            tensors = [torch.tensor(a, requires_grad=True) for a in (x, *weights)]
            total, value = loss(tensors[0], tensors[1:], inputs)
            of_x, *of_weights = torch.autograd.grad(total, tensors, allow_unused=True)
            return value.detach(), of_x, [g for g in of_weights if g is not None]

    def numbers(x, inputs):
        value, of_x, of_weights = run(x, inputs)
        return to_numpy(value), to_numpy(of_x), [to_numpy(g) for g in of_weights if g is not None]

    return numbers


def assert_same(actual, expected, what):
    """Equal bit for bit, except that TensorFlow's threads add terms in any order."""
    if BACKEND != "tensorflow":
        np.testing.assert_array_equal(actual, expected, what)
        return
    size = np.abs(expected).max(initial=0.0)
    np.testing.assert_allclose(actual, expected, rtol=0.0, atol=2e-6 * size, err_msg=what)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize(("name", "path", "way"), COMPILED)
def test_compiled_code_marks_the_example_and_leaves_the_others(name, path, way, monkeypatch):
    mask = made(name)
    right, run = batch_for(mask), compiled(made(name), path, way, monkeypatch)
    value, of_x, of_weights = run(X, right)
    assert np.isfinite(value).all()
    for kind, inputs in wrong_batches(name).items():
        found, found_of_x, found_of_weights = run(X, inputs)
        assert np.isnan(found[BAD]).all(), kind
        assert_same(found[OTHERS], value[OTHERS], kind)
        assert_same(found_of_x[OTHERS], of_x[OTHERS], kind)
        for one, other in zip(found_of_weights, of_weights, strict=True):
            assert_same(one, other, kind)
    for factor in (1e4, 1e15, np.nan, np.inf):
        changed = X.copy()
        changed[BAD] *= factor
        found, found_of_x, _ = run(changed, right)
        assert_same(found[OTHERS], value[OTHERS], str(factor))
        assert_same(found_of_x[OTHERS], of_x[OTHERS], str(factor))


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "uint64"])
@pytest.mark.parametrize("name", MASKS)
def test_unsigned_integers_are_taken_as_signed_ones(name, dtype):
    def outcome(dtype):
        mask, inputs = made(name), batch_for(made(name))
        for key, array in inputs.items():
            if array.dtype.kind == "i":
                inputs[key] = np.abs(array).astype(dtype)
        try:
            mask.check_inputs(LENGTH, **inputs)
            return 0 if "64" in dtype else to_numpy(mask.apply(X, **inputs))  # not on torch
        except ValueError as error:
            return str(error)

    np.testing.assert_equal(outcome(dtype), outcome(dtype.removeprefix("u")))


@pytest.mark.parametrize("name", [n for n in MASKS if "segment_ids" in MASKS[n]().inputs_at_call])
def test_segments_beyond_int32_are_refused(name):
    """A cast to int32 would bring them back into range and join two different runs."""
    mask = made(name)
    inputs = batch_for(mask)
    inputs["segment_ids"] = inputs["segment_ids"].astype("int64")
    inputs["segment_ids"][BAD, 3] = 2**32
    for check in (mask.check_inputs, mask.dense):
        with pytest.raises(ValueError, match="`segment_ids` of example 1: token 3 has the id 4"):
            check(LENGTH, **inputs)
