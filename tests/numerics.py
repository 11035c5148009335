"""Gradients on any backend, their references in float64, and differences between arrays."""

from contextlib import contextmanager

import keras
import numpy as np
import torch
from keras import ops

BACKEND = keras.backend.backend()


def to_numpy(x):
    return np.asarray(ops.convert_to_numpy(ops.cast(x, "float32")), dtype="float64")


@contextmanager
def float64_on_jax():
    """Enables float64 on jax; the other backends always have it."""
    if BACKEND != "jax":
        yield
        return
    import jax

    with jax.enable_x64(True):
        yield


@contextmanager
def dtype_policy(name):
    """The policy of layers and masks that are made without one."""
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy("float32")


def relative_rms(actual, expected, floor=0.0):
    """Root mean square of the difference, relative to that of `expected` (at least `floor`)."""
    actual, expected = (np.asarray(a, dtype="float64") for a in (actual, expected))
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    assert np.isfinite(actual).all()
    scale = max(np.sqrt(np.mean(expected**2)), floor, 1e-30)
    return np.sqrt(np.mean((actual - expected) ** 2)) / scale


def assert_close(actual, expected, tolerance, floor=0.0, what="value"):
    error = relative_rms(actual, expected, floor)
    assert error <= tolerance, f"{what}: relative RMS {error:.2e} > {tolerance:.0e}"


def assert_all_close(actual, expected, tolerance, what="gradient"):
    """Compares dictionaries of arrays, each relative to its own size.

    Some gradients are sums that cancel to zero, except for rounding (for example the bias of the
    keys in a softmax). So a bias is compared relative to its kernel, and every array relative to
    at least 1 % of the largest. Of an array that cancels as a whole, only rounding is left: there
    it is 5 %, of which 1e-5 is four times the rounding of float32.
    """
    assert actual.keys() == expected.keys()
    size = {name: np.sqrt(np.mean(np.square(array))) for name, array in expected.items()}
    largest = max(size.values())
    for name in expected:
        kernel = size.get(str(name).replace("/bias", "/kernel"), 0.0)
        share = 5e-2 if size[name] < 1e-12 * largest else 1e-2  # expected is float64
        floor = max(kernel, share * largest)
        assert_close(actual[name], expected[name], tolerance, floor, f"{what} {name}")


def value_and_gradients(function, *arrays, dtype="float32", way=None):
    """Returns `function(*arrays)` and the gradients of `sum(value * weights)`.

    The weights are fixed random numbers. `way` is "eager", "graph" or "xla". By default, jax is
    compiled and the other backends are not.

    Returns NumPy arrays: the value, and a dictionary of gradients by position.
    """
    return differentiated(function, dtype, way)(*arrays)


def differentiated(function, dtype="float32", way=None):
    """Like `value_and_gradients`, but compiled only once, to be called with many arrays."""

    def loss(*inputs):
        value = function(*inputs)
        weights = ops.convert_to_tensor(cotangent(value.shape))
        return ops.sum(ops.cast(value, "float32") * weights), value

    if BACKEND == "jax":
        import jax

        def differentiate(*tensors):
            places = tuple(range(len(tensors)))
            (_, value), found = jax.value_and_grad(loss, places, has_aux=True)(*tensors)
            return value, found

        differentiate = differentiate if way == "eager" else jax.jit(differentiate)
    elif BACKEND == "tensorflow":
        import tensorflow as tf

        def differentiate(*tensors):
            with tf.GradientTape() as tape:
                tape.watch(tensors)
                total, value = loss(*tensors)
            return value, tape.gradient(total, tensors)

        if way in ("graph", "xla"):
            differentiate = tf.function(differentiate, jit_compile=way == "xla")
    else:

        def differentiate(*tensors):
            tensors = [t.detach().clone().requires_grad_() for t in tensors]
            total, value = loss(*tensors)
            return value, torch.autograd.grad(total, tensors)

    def in_numpy(*arrays):
        value, found = differentiate(*(ops.convert_to_tensor(a, dtype) for a in arrays))
        return to_numpy(value), {i: to_numpy(g) for i, g in enumerate(found)}

    return in_numpy


def reference_value_and_gradients(function, *arrays):
    """The float64 reference of `value_and_gradients`, for a function of torch tensors."""
    tensors = [torch.tensor(np.asarray(a, "float64"), requires_grad=True) for a in arrays]
    value = function(*tensors)
    weights = torch.tensor(cotangent(value.shape), dtype=torch.float64)
    gradients = torch.autograd.grad((value * weights).sum(), tensors)
    return value.detach().numpy(), {i: g.numpy() for i, g in enumerate(gradients)}


def layer_value_and_gradients(layer, x, **call_arguments):
    """Returns `layer(x, x, ...)` and the gradients for `x` ("input") and for each weight."""
    names = [short_name(layer, v) for v in layer.trainable_variables]
    variables = [to_numpy(v) for v in layer.trainable_variables]
    value, gradients = value_and_gradients(
        lambda x, *weights: called_with(layer, weights, x, x, **call_arguments), x, *variables
    )
    return value, dict(zip(["input", *names], gradients.values(), strict=True))


def called_with(layer, weights, *inputs, **call_arguments):
    """The layer's outputs with other trainable weights."""
    pairs = [*zip(layer.trainable_variables, weights, strict=True)]
    pairs += [(v, v.value) for v in layer.non_trainable_variables]
    with keras.StatelessScope(state_mapping=pairs):
        return layer(*inputs, **call_arguments)


def layer_reference(layer, function, x):
    """The float64 reference of `layer_value_and_gradients`, for `function(x, weights)`."""
    names = [short_name(layer, v) for v in layer.trainable_variables]
    variables = [to_numpy(v) for v in layer.trainable_variables]
    value, gradients = reference_value_and_gradients(
        lambda x, *values: function(x, dict(zip(names, values, strict=True))), x, *variables
    )
    return value, dict(zip(["input", *names], gradients.values(), strict=True))


def reference_weights(layer):
    """Returns all weights of a layer by short name ("query/kernel"), as float64 torch tensors."""
    return {short_name(layer, v): torch.tensor(to_numpy(v)) for v in layer.weights}


def as_seen(layer, x):
    """`x` and the weights as a mixed-precision layer sees them: kernels and biases rounded.

    Then only the layer's own arithmetic makes it differ from a reference on these numbers.
    """
    dtype = layer.compute_dtype
    weights = {
        name: torch.tensor(to_numpy(ops.cast(ops.convert_to_tensor(w.numpy()), dtype)))
        if "/" in name
        else w
        for name, w in reference_weights(layer).items()
    }
    return torch.tensor(to_numpy(ops.cast(ops.convert_to_tensor(x), dtype))), weights


def short_name(layer, variable):
    return variable.path.removeprefix(layer.name + "/")


def randomise(layer, scale=0.3, seed=0):
    """Gives every weight of a built layer a random value, biases and coefficients too."""
    generator = np.random.default_rng(seed)
    for variable in layer.trainable_variables:
        noise = scale * generator.standard_normal(tuple(variable.shape))
        variable.assign(to_numpy(variable) + noise.astype("float32"))


def cotangent(shape):
    """The fixed random weights of `value_and_gradients`."""
    shape = tuple(int(size) for size in shape)
    return np.random.default_rng(7).standard_normal(shape).astype("float32")
