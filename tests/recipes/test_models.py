"""Every recipe's model: padding changes nothing, and half precision little."""

import pkgutil

import keras
import numpy as np
import pytest

from keras_graphattn.biases import Bias
from keras_graphattn.coefficient_rate import MARK
from keras_graphattn.keras_internals import walk
from recipes.common.attentions import ATTENTIONS, RATE
from recipes.common.command.checks import keras_configured
from recipes.common.command.parsing import UsageError
from tests.numerics import BACKEND, randomise, relative_rms, to_numpy
from tests.recipes.models import LONGEST, MODELS, batch_for

# Recipes do the same on every backend: `test_long_range_arena` trains one on each of them.
pytestmark = pytest.mark.slow_on("jax", "tensorflow")
PADDED = [name for name in MODELS if not name.startswith("images")]
OF_GRAPHS = [name for name in MODELS if name.startswith(("graphs", "regression"))]
PAIRS = ("distances", "paths")  # of nodes
NONE = ("edges", "walks", *PAIRS)  # -1 is padding in them
SHORT = 12
ANYTHING = (1e30, np.nan, np.inf)  # may lie at padding of models that replace it


def garbage_of(name):
    return ANYTHING if name.startswith(("time_series", "regression")) else (7.0,)


def make(name):
    build, *arguments = MODELS[name]
    return build(*arguments)


def made(name):
    model = make(name)
    randomise(model, scale=0.3)
    if isinstance(model.layers[-1], keras.layers.Dense):  # probabilities may be 0 or 1
        model.layers[-1].activation = keras.activations.linear
    return model


def mask_of(inputs):
    """The real tokens, (B, T)."""
    masks = [array for name, array in inputs.items() if "mask" in name]
    return (masks or [array != 0 for array in inputs.values()])[0].astype(bool)


def answers(model, inputs):
    """The outputs; of outputs for each token, those of real tokens."""
    outputs = to_numpy(model(inputs))
    return outputs[mask_of(inputs)] if outputs.ndim > 2 else outputs


def longer(inputs, more):
    """The same inputs with more padding."""
    padded = {}
    for name, array in inputs.items():
        widths = [(0, 0)] * array.ndim
        for axis in (1, 2) if name in PAIRS else (1,):
            widths[axis] = (0, more)
        padded[name] = np.pad(array, widths, constant_values=-1 if name in NONE else 0)
    return padded


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_its_attention_and_coefficients_where_their_rate_is_an_option(name):
    own = ATTENTIONS[MODELS[name][1]]
    layers = list(walk(make(name)))
    kind = pkgutil.resolve_name(own.layer)
    apart = ("cait" in name, "swin" in name)  # which have talking heads, and windows
    if isinstance(kind, type) and not any(apart):
        assert any(isinstance(layer, kind) for layer in layers)
    biases = {id(one) for layer in layers if isinstance(layer, Bias) for one in layer.weights}
    weights = [one for one in layers[0].trainable_variables if id(one) not in biases]
    with_rate = RATE in own.options and own.name != "edges"  # with --filter
    assert any(hasattr(one, MARK) for one in weights) == with_rate


@pytest.mark.parametrize("name", PADDED)
def test_padding_has_no_influence_and_tokens_have(name):
    model = made(name)
    sizes = {size for tensor in model.input.values() for size in tensor.shape}
    inputs = batch_for(model, 4, LONGEST if LONGEST in sizes else SHORT)
    expected = answers(model, inputs)
    close = {"atol": 2e-6 * max(np.abs(expected).max(), 1.0), "rtol": 1e-5}
    if LONGEST not in sizes:
        np.testing.assert_allclose(answers(model, longer(inputs, 5)), expected, **close)
    values = next((one for one in ("series", "nodes") if one in inputs), None)
    mask = mask_of(inputs)[..., None]
    for garbage in garbage_of(name) if values else ():
        filled = np.where(mask, inputs[values], np.float32(garbage))
        np.testing.assert_allclose(answers(model, {**inputs, values: filled}), expected, **close)
    other = inputs[values] + mask if values else np.where(mask[..., 0], 3, 0)
    first = values or next(iter(inputs))
    moved = {**inputs, first: other.astype(inputs[first].dtype)}
    assert np.abs(answers(model, moved) - expected).max() > 1e-4


def renumbered(inputs, order):
    """The same graphs; node i becomes order[i]."""
    back = np.argsort(order)
    turned = {name: array[:, back] for name, array in inputs.items() if name != "edges"}
    for name in set(PAIRS) & set(turned):
        turned[name] = turned[name][:, :, back]
    for name in {"edges", "walks"} & set(inputs):
        nodes = turned.get(name, inputs[name])
        turned[name] = np.where(nodes >= 0, order[nodes], -1).astype("int32")
    return turned


@pytest.mark.parametrize("name", OF_GRAPHS)
def test_the_numbers_of_the_nodes_have_no_influence_and_the_edges_have(name):
    model = made(name)
    inputs = batch_for(model, 4, LONGEST)
    expected = answers(model, inputs)
    turned = renumbered(inputs, np.random.default_rng(0).permutation(LONGEST))
    close = {"atol": 2e-6 * max(np.abs(expected).max(), 1.0), "rtol": 1e-5}
    np.testing.assert_allclose(answers(model, turned), expected, **close)
    for array in {"edges", "walks", *PAIRS} & set(inputs):
        fewer = inputs[array].copy()
        first = fewer[:, : LONGEST // 2]
        fewer[:, : LONGEST // 2] = -1 if array == "edges" else np.where(first >= 0, 0, -1)
        assert np.abs(answers(model, {**inputs, array: fewer}) - expected).max() > 1e-4


# of outputs after two blocks, embeddings and a head, each with its own rounding
TOLERANCE = {"mixed_bfloat16": 4e-2, "mixed_float16": 5e-3}
FAST = ["arena_agf"]
if BACKEND != "jax":
    FAST += ["time_series_gfsa", "text_p_laplacian", "causal_lm_masked_kernel"]
# of models with Keras' softmax attention, also that of CaiT's class layers
WITH_SOFTMAX = ("time_series_softmax", "arena_softmax", "images_softmax", "images_cait")


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in MODELS],
)
def test_outputs_are_close_to_float32_and_training_moves_every_weight(name, precision):
    is_refused = precision == "mixed_float16" and name.startswith(WITH_SOFTMAX)
    if BACKEND == "jax" and is_refused:
        with keras_configured(precision), pytest.raises(UsageError, match="only on accelerators"):
            make(name)
        return
    reference = make(name)
    randomise(reference, scale=0.1)
    with keras_configured(precision):
        model = make(name)
        model.set_weights(reference.get_weights())
        batch = batch_for(reference, 4, LONGEST)
        halves = {layer.compute_dtype for layer in model._flatten_layers()}
        assert precision.removeprefix("mixed_") in halves
        outputs, expected = to_numpy(model(batch)), to_numpy(reference(batch))
        assert relative_rms(outputs, expected, floor=0.1) < TOLERANCE[precision]
        model.compile("adam", "mse")
        is_scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        assert is_scaled == (precision == "mixed_float16")
        before = [to_numpy(v) for v in model.trainable_variables]
        history = model.fit(batch, np.zeros(outputs.shape), epochs=3, batch_size=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    for variable, old in zip(model.trainable_variables, before, strict=True):
        assert variable.dtype == "float32"
        assert np.isfinite(to_numpy(variable)).all()
        if not variable.path.endswith("mix_before/bias"):  # the softmax does not see it
            assert (to_numpy(variable) != old).any(), variable.path
