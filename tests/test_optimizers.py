"""Coefficient rates: under all optimizers of Keras, compiled and saved."""

import copy
import warnings

import keras
import numpy as np
import pytest

from keras_graphattn import biases, layers, masks
from keras_graphattn.coefficient_rate import FILTER_MULTIPLIER, MARK, MASK_MULTIPLIER, NAME
from keras_graphattn.layers.base import AttentionLayer, projections_of
from keras_graphattn.optimizers import (
    applies_coefficient_rates,
    learning_rate_multiplier,
    with_coefficient_rates,
    without_coefficient_rates,
)
from tests.fuzz.cases_of_classes import LAYERS, MASKS, N, T
from tests.numerics import BACKEND, to_numpy

RATE, FACTOR = 1e-2, 20.0
random = np.random.default_rng(0)
STARTS = [random.normal(size=shape).astype("float32") for shape in [(3,), (2, 3), (4,)]]
GRADIENTS = [[random.normal(size=s.shape).astype("float32") for s in STARTS] for _ in range(4)]
IS_COEFFICIENT = (True, False, False)


def variables(marked=True, factor=FACTOR):
    found = [keras.Variable(start, name=f"weight_{i}") for i, start in enumerate(STARTS)]
    for variable, is_coefficient in zip(found, IS_COEFFICIENT, strict=True):
        if marked and is_coefficient:
            setattr(variable, MARK, factor)
    return found


def steps(optimizer, found, gradients=GRADIENTS):
    """Returns the variables after compiled steps."""
    optimizer.build(found)
    given = [[keras.ops.convert_to_tensor(one) for one in step] for step in gradients]
    if BACKEND == "jax":
        import jax

        apply = jax.jit(optimizer.stateless_apply)
        state = ([v.value for v in found], [v.value for v in optimizer.variables])
        for step in given:
            state = apply(state[1], step, state[0])
        return [np.asarray(value) for value in state[0]]
    apply = optimizer.apply
    if BACKEND == "tensorflow":
        import tensorflow as tf

        apply = tf.function(optimizer.apply)
    for step in given:
        apply(step)
    return [keras.ops.convert_to_numpy(v.value) for v in found]


CLASSES = {
    name: cls
    for name, cls in vars(keras.optimizers).items()
    if isinstance(cls, type) and issubclass(cls, keras.optimizers.Optimizer)
    if name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
}


USUAL = ("SGD", "Adam", "AdamW", "Lion", "RMSprop", "Adafactor", "Muon", "Nadam")
OTHERS = [pytest.mark.slow] if BACKEND == "jax" else []  # JAX compiles each


def of_keras(name):
    """An optimizer by its rate. Its decay of weights is the same at every rate."""

    def make(rate):
        decay = 0.1 * RATE / rate
        more = {"adam_weight_decay": decay} if name == "Muon" else {}
        return CLASSES[name](rate, weight_decay=decay, **more)

    return make


def multi(rate, by_path):
    inner = [keras.optimizers.SGD(rate), keras.optimizers.SGD(rate, momentum=0.9)]
    if by_path:
        pairs = {"weight_1": inner[1]}
        return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(inner[0], pairs))
    return keras.optimizers.MultiOptimizer(lambda variable: inner["1" in variable.path])


def sgd(**options):
    return lambda rate: keras.optimizers.SGD(rate, **options)


OPTIONS = {
    "nesterov": sgd(momentum=0.9, nesterov=True),
    "accumulation": sgd(gradient_accumulation_steps=2),
    "average": sgd(use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2),
    "global_clipnorm": sgd(global_clipnorm=0.5),
    "clipnorm": sgd(clipnorm=0.5),
    "clipvalue": sgd(clipvalue=0.3),
    "loss_scale_factor": sgd(loss_scale_factor=8.0),
    "schedule": lambda rate: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(rate, 2, 0.5)
    ),
    "loss_scale": lambda rate: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(rate), 8.0),
    "map": lambda rate: multi(rate, True),
    "function": lambda rate: multi(rate, False),
}
EVERY = {**{name: of_keras(name) for name in CLASSES}, **OPTIONS}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in (*USUAL, *OPTIONS) else OTHERS) for n in EVERY]
)
def test_every_optimizer_of_keras_takes_the_steps_of_its_own_at_two_rates(name):
    make, expected = EVERY[name], []
    for rate in (RATE, RATE * FACTOR):
        expected.append(steps(make(rate), variables(marked=False)))
    found = steps(with_coefficient_rates(make(RATE)), variables())
    for i, is_coefficient in enumerate(IS_COEFFICIENT):
        plain, fast = (moved[i] - STARTS[i] for moved in expected)
        np.testing.assert_allclose(
            found[i] - STARTS[i], fast if is_coefficient else plain, atol=1e-5 * np.abs(fast).max()
        )
        assert not np.allclose(plain, fast, rtol=0.1)


def test_constraints_hold_after_the_step():
    found = variables()
    found[0].assign(np.full(3, 1e-3, "float32"))
    found[0].constraint = keras.constraints.NonNeg()
    ones = [[np.ones_like(start) for start in STARTS]]
    moved = steps(with_coefficient_rates(keras.optimizers.SGD(RATE)), found, ones)
    assert moved[0].tolist() == [0.0, 0.0, 0.0]


def test_half_precision_variables_move():
    one = keras.Variable(np.ones(2), dtype="bfloat16")
    setattr(one, MARK, 400.0)
    optimizer = with_coefficient_rates(keras.optimizers.SGD(5e-5))
    optimizer.build([one])
    optimizer.apply([keras.ops.ones((2,), "bfloat16")])
    np.testing.assert_allclose(to_numpy(one), 0.98, atol=4e-3)  # bfloat16 is this coarse at 1


def test_an_argument_overrides_what_layers_say_and_is_kept():
    optimizer = with_coefficient_rates(keras.optimizers.SGD(RATE), multiplier=3.0)
    assert with_coefficient_rates(optimizer) is optimizer  # converted models' `compile` does so
    found = steps(optimizer, variables())
    total = sum(step[0] for step in GRADIENTS)
    np.testing.assert_allclose(found[0], STARTS[0] - 3.0 * RATE * total, rtol=1e-4)
    assert optimizer.coefficient_learning_rate_multiplier == 3.0
    without_coefficient_rates(optimizer)
    assert not applies_coefficient_rates(optimizer)
    assert "coefficient" not in str(optimizer.get_config())


class Halved(keras.optimizers.SGD):
    """A user's own optimizer."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate * 0.5)


@pytest.mark.parametrize("make", [*list(OPTIONS.values())[:-1], Halved])
def test_optimizers_are_restored_from_their_configuration(make):
    optimizer = with_coefficient_rates(make(RATE), multiplier=7.0)
    with keras.saving.custom_object_scope({"Halved": Halved}):
        restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert applies_coefficient_rates(restored)
    assert isinstance(restored, type(make(RATE)))
    assert all(map(np.array_equal, steps(restored, variables()), steps(optimizer, variables())))


def test_a_learning_rate_is_not_taken_for_a_multiplier():
    with pytest.raises(TypeError, match="positional"):
        with_coefficient_rates("adam", 1e-3)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf"), "10", True])
def test_wrong_multipliers_are_refused(wrong):
    with pytest.raises(ValueError, match="`multiplier`"):
        with_coefficient_rates("adam", multiplier=wrong)
    with pytest.raises(ValueError, match="coefficient_learning_rate_multiplier"):
        layers.GraphFilterAttention(2, 3, coefficient_learning_rate_multiplier=wrong)


def test_what_is_no_optimizer_is_refused():
    for wrong in (None, 3, "adaam", object()):
        with pytest.raises(ValueError, match=r"optimizer|adaam"):
            with_coefficient_rates(wrong)


FURTHER_PROJECTIONS = ("singular_dense", "_additive_score", "_edge_dense", "_virtual", "_lambda")
FURTHER_PROJECTIONS += ("_norm", "_decay_dense", "_strength_dense", "_query_convolution")
FURTHER_PROJECTIONS += ("_key_convolution", "_value_convolution")


def cases():
    for name, options in LAYERS.items():
        if issubclass(getattr(layers, name), AttentionLayer):
            yield pytest.param(name, options, id=name)
    for name, options in MASKS.items():
        if name != "Entries":
            made = {"num_heads": N, "key_dim": 3, "mask": getattr(masks, name)(**options)}
            yield pytest.param("MaskedKernelAttention", made, id=f"mask {name}")


def built_layer(name, options, **own):
    """A layer with objects of its own; it has the default multiplier if `own` has none."""
    given = copy.deepcopy({key: value for key, value in options.items() if key != NAME})
    layer = getattr(layers, name)(**given, **own)
    layer.build((2, T, 6), (2, T, 6))
    return layer


@pytest.mark.parametrize("given", [None, 30.0])
@pytest.mark.parametrize(("name", "options"), list(cases()))
def test_all_that_a_layer_adds_to_its_projections_carries_a_multiplier(name, options, given):
    layer = built_layer(name, options, **({} if given is None else {NAME: given}))
    own = [getattr(layer, part, None) for part in FURTHER_PROJECTIONS]
    own.append(getattr(getattr(layer, "mask", None), "gates", None))
    projections = [*projections_of(layer).values(), *own]
    theirs = {id(v) for p in projections if p is not None for v in p.weights}
    if isinstance(layer, layers.GatedDeltaRule):  # all but those of its filter
        theirs |= {id(v) for v in (layer.log_rate, layer.rate_bias, layer.norm_scale)}
    mask = getattr(layer, "mask", None)
    of_mask = {id(v) for v in mask.coefficients} if mask else set()
    for variable in layer.trainable_weights:
        default = MASK_MULTIPLIER if id(variable) in of_mask else FILTER_MULTIPLIER
        expected = 1.0 if id(variable) in theirs else given or default
        assert learning_rate_multiplier(variable) == expected
    layer.coefficient_learning_rate_multiplier = 5.0
    assert layer.get_config()["coefficient_learning_rate_multiplier"] == 5.0
    assert {learning_rate_multiplier(v) for v in layer.coefficients} <= {5.0}
    assert not theirs & {id(v) for v in layer.coefficients}


def kernel_layer(mask, **options):
    layer = layers.MaskedKernelAttention(N, 3, mask=mask, filter="monomial", **options)
    layer.build((2, 4, 6))
    return layer


def multipliers(layer):
    """Those of the filter and those of the mask."""
    of_mask = {id(weight) for weight in layer.mask.weights}
    return tuple(
        {learning_rate_multiplier(v) for v in layer.coefficients if (id(v) in of_mask) == is_mask}
        for is_mask in (False, True)
    )


@pytest.mark.parametrize("product", [False, True])
@pytest.mark.parametrize("mask_first", [False, True])
def test_a_mask_has_the_multiplier_that_it_was_given_else_that_of_its_layer(product, mask_first):
    def mask(**given):
        own = masks.BlockToeplitz((2, 2), **given)
        if mask_first:
            own.build((2, 4, N, 3))
        return masks.Product([masks.Causal(), own]) if product else own

    for of_layer, of_mask, expected in (
        (None, None, (FILTER_MULTIPLIER, MASK_MULTIPLIER)),
        (None, 5.0, (FILTER_MULTIPLIER, 5.0)),
        (7.0, None, (7.0, 7.0)),
        (7.0, 5.0, (7.0, 5.0)),
    ):
        given = {} if of_mask is None else {NAME: of_mask}
        layer = kernel_layer(mask(**given), coefficient_learning_rate_multiplier=of_layer)
        assert multipliers(layer) == ({expected[0]}, {expected[1]})
        restored = layers.MaskedKernelAttention.from_config(layer.get_config())
        restored.build((2, 4, 6))
        assert multipliers(restored) == multipliers(layer)
    layer.coefficient_learning_rate_multiplier = 3.0
    assert multipliers(layer) == ({3.0}, {3.0})
    assert layer.mask.coefficient_learning_rate_multiplier == 3.0


@pytest.mark.parametrize("make", [biases.RelativePositions, lambda: biases.LogMask("exponential")])
def test_a_bias_has_the_multiplier_of_its_layer_in_either_way_it_is_set(make):
    for sets in (False, True):
        given = {} if sets else {NAME: 7.0}
        layer = layers.GraphFilterAttention(N, 3, bias=make(), **given)
        if sets:
            layer.coefficient_learning_rate_multiplier = 7.0
        layer.build((2, T, 6), (2, T, 6))
        assert {learning_rate_multiplier(v) for v in layer.coefficients} == {7.0}


def test_layers_of_older_files_keep_the_multiplier_of_their_file():
    config = kernel_layer(masks.Exponential()).get_config()
    del config["mask"]["config"][NAME]  # masks had none of their own
    restored = layers.MaskedKernelAttention.from_config({**config, NAME: 1.0})
    restored.build((2, 4, 6))
    assert multipliers(restored) == ({1.0}, {1.0})


WITHOUT = "no effect in this model"


@pytest.mark.parametrize("make", [keras.optimizers.SGD, OPTIONS["loss_scale"], OPTIONS["map"]])
@pytest.mark.parametrize("factor", [None, 1.0, 2.0])
def test_a_warning_says_once_where_rates_have_no_effect(make, factor):
    found = variables(marked=factor is not None, factor=factor)
    optimizer = with_coefficient_rates(make(RATE))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.build(found)
        optimizer.build(found)
    told = [str(one.message) for one in caught if WITHOUT in str(one.message)]
    assert len(told) == (factor != 2.0)
    assert all(("1 coefficients" in one) == (factor == 1.0) for one in told)


def test_no_warning_for_a_multiplier_that_was_given_to_the_optimizer():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with_coefficient_rates("sgd", multiplier=1.0).build(variables())


def test_training_at_a_rate_of_fine_tuning_moves_coefficients_and_goes_on_when_saved(tmp_path):
    """A model with two filters, one of them AGF, goes on as if it had not been saved."""
    tokens, draw = keras.Input((4, 6)), np.random.default_rng(1)
    common = {"num_heads": 2, "key_dim": 3, "coefficient_learning_rate_multiplier": 200.0}
    filtered = layers.GraphFilterAttention(**common, order=4, name="filter")(tokens, tokens)
    filtered = layers.AttentiveGraphFilter(**common, order=3, name="singular")(filtered)
    whole = keras.Model(tokens, keras.layers.Dense(1)(filtered))
    x, y = draw.normal(size=(32, 4, 6)), draw.normal(size=(32, 4, 1))

    def coefficients(model):
        found = [model.get_layer(name).coefficients for name in ("filter", "singular")]
        return np.concatenate([to_numpy(v) for v in keras.tree.flatten(found)])

    def fit(model, epochs=1):
        model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0)

    optimizer = with_coefficient_rates(keras.optimizers.AdamW(5e-5))
    whole.compile(optimizer, loss="mse", jit_compile="auto" if BACKEND == "jax" else False)
    start = coefficients(whole)
    fit(whole, epochs=2)
    assert np.abs(coefficients(whole) - start).mean() > 1e-2  # 8 steps, each of at most 1e-2
    whole.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert applies_coefficient_rates(loaded.optimizer)
    np.testing.assert_array_equal(coefficients(loaded), coefficients(whole))
    fit(whole)
    fit(loaded)
    np.testing.assert_array_equal(coefficients(loaded), coefficients(whole))
    plain = keras.models.clone_model(whole)
    plain.compile(keras.optimizers.AdamW(5e-5), loss="mse")
    plain.optimizer.build(plain.trainable_variables)
    plain.load_weights(tmp_path / "model.keras")  # the saved state is that of a plain optimizer
    assert int(plain.optimizer.iterations) == 8
