"""Layers and masks made again, from a file, a copy or a seed, are the same as before."""

import copy
import inspect
import pickle

import keras
import numpy as np
import pytest
import torch
from keras import ops

from keras_graphattn import feature_maps, layers, masks
from keras_graphattn.feature_maps import FEATURE_MAPS
from keras_graphattn.filters import FILTERS
from tests import reference, reference_kernel
from tests.fuzz import cases_of_classes
from tests.layers.capabilities import ROWS, TOKENS, Row, chain, given_inputs, model_of
from tests.layers.twins import FIRST, FORMS
from tests.layers.unseen_cases import BIASES, CASES, HEADS, LENGTH, MASKS, SIZE, scene
from tests.numerics import assert_close, randomise, reference_weights, to_numpy


def from_file(model, folder):
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


WAYS = {
    "file": from_file,
    "clone": lambda model, folder: keras.models.clone_model(model),
    "deepcopy": lambda model, folder: copy.deepcopy(model),
    "pickle": lambda model, folder: pickle.loads(pickle.dumps(model)),
}


def paths(layer):
    return [weight.path for weight in layer.weights]


def assert_made_again(model, inputs, folder, ways=tuple(WAYS)):
    """Made in each way, the model has the same paths, and its state gives the same outputs."""
    config = model.layers[-1].get_config()
    assert type(model.layers[-1]).from_config(config).get_config() == config
    expected = to_numpy(model(inputs))
    model.compile("sgd")
    state = model.get_state_tree("numpy_array")
    for way in ways:
        again = WAYS[way](model, folder)
        assert paths(again) == paths(model)
        if way != "clone":
            np.testing.assert_allclose(to_numpy(again(inputs)), expected, atol=1e-6)
        for weight in again.weights:
            weight.assign(np.zeros(weight.shape))
        again.compile("sgd")
        again.set_state_tree(state)
        np.testing.assert_allclose(to_numpy(again(inputs)), expected, atol=1e-6)


MODELS = {**ROWS, "additive score": Row(CASES["GKAT, additive, GraphDiffusion"].make, None)}
MODELS |= {name: Row(form.make, None) for name, form in FORMS.items()}


EVERY = [
    pytest.param(name, marks=[pytest.mark.slow] if name in FORMS and name not in FIRST else [])
    for name in MODELS
]


@pytest.mark.parametrize("name", EVERY)
def test_weights_have_the_same_paths_however_the_model_was_made(name, tmp_path):
    assert_made_again(*model_of(MODELS[name]), tmp_path, ("file", "clone"))


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_that_is_built_by_hand_gets_the_path_of_its_layer(name):
    def layer_of(mask):
        layer = layers.MaskedKernelAttention(HEADS, SIZE, mask=mask, name="layer")
        layer.build(TOKENS.shape)
        return layer

    mask = MASKS[name][0]()
    config = mask.get_config()
    mask.build((None, LENGTH, HEADS, SIZE))
    assert paths(layer_of(mask)) == paths(layer_of(type(mask).from_config(config)))


def attending(*attention):
    """A model of layers one after the other with random weights, and its inputs."""
    call = scene("", "example", attention[0]).call
    given = {key: x for inputs in given_inputs(call).values() for key, x in inputs.items()}
    model = chain(attention, given)
    randomise(model)
    return model, {"tokens": TOKENS, **given}


KERNEL, GFA = layers.MaskedKernelAttention, layers.GraphFilterAttention
OBJECTS = {
    **{f"mask {name}": (KERNEL, "mask", make) for name, (make, _) in MASKS.items()},
    **{f"bias {name}": (GFA, "bias", make) for name, make in BIASES.items()},
    **{f"filter {name}": (GFA, "filter", kind) for name, kind in FILTERS.items()},
    **{f"feature map {name}": (KERNEL, "feature_map", kind) for name, kind in FEATURE_MAPS.items()},
}


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_in_two_layers_is_right_or_refused(name, tmp_path):
    kind, argument, make = OBJECTS[name]
    shared = make()
    first, second = (kind(HEADS, SIZE, **{argument: shared}) for _ in range(2))
    first.build(TOKENS.shape)
    if argument in ("mask", "bias") and shared.weights:
        match = f"belongs to '{first.name}'. Give each layer a {argument}"
        with pytest.raises(ValueError, match=match):
            second.build(TOKENS.shape)
        second = kind(HEADS, SIZE, **{argument: shared.from_config(shared.get_config())})
    assert_made_again(*attending(first, second), tmp_path, ("file", "clone"))


def test_a_layer_at_two_places_and_a_mask_twice_in_a_product(tmp_path):
    mask = masks.Exponential()
    layer = KERNEL(HEADS, SIZE, mask=masks.Product([mask, masks.Causal(), mask]))
    model, inputs = attending(layer, layer)
    assert [path for path in paths(model) if "log_rates" in path] == [
        f"{layer.name}/{layer.mask.name}/{mask.name}/log_rates"
    ]
    assert_made_again(model, inputs, tmp_path)


def test_a_mask_in_a_product_and_in_another_layer_is_refused():
    mask = masks.Exponential()
    one = KERNEL(HEADS, SIZE, mask=masks.Product([mask, masks.Causal()]), name="one")  # stays
    one.build(TOKENS.shape)
    for again in (mask, masks.Product([masks.Segments(), mask])):
        with pytest.raises(ValueError, match="belongs to 'one'"):
            KERNEL(HEADS, SIZE, mask=again).build(TOKENS.shape)


def test_a_mask_for_another_number_of_heads_is_refused():
    mask = masks.RandomWalk([[0, 1], [1, 2]], num_nodes=LENGTH)
    layers.GraphKernelAttention(HEADS, SIZE, mask=mask).build(TOKENS.shape)
    with pytest.raises(ValueError, match="built for 2 heads"):
        layers.GraphKernelAttention(4, SIZE, mask=mask).build(TOKENS.shape)


def test_orbax_folders_hold_the_weights_of_masks(tmp_path):
    pytest.importorskip("orbax.checkpoint")
    model, inputs = attending(KERNEL(HEADS, SIZE, mask=masks.Exponential()))
    model.compile("sgd", "mse")
    callback = keras.callbacks.OrbaxCheckpoint(tmp_path, save_on_background=False)
    model.fit(inputs, np.zeros(TOKENS.shape), verbose=0, callbacks=[callback])
    again = keras.saving.load_model(tmp_path)
    np.testing.assert_allclose(to_numpy(again(inputs)), to_numpy(model(inputs)), atol=1e-6)


@keras.saving.register_keras_serializable(package="tests")
def squares(x):
    """Features of the user's own, more of them than channels."""
    return ops.concatenate([ops.square(x), ops.relu(x)], axis=-1)


def test_features_of_the_users_own(tmp_path):
    def make():
        return KERNEL(HEADS, SIZE, feature_map=squares)

    layer, _ = Row(make, None).built()
    weights, inputs = reference_weights(layer), torch.tensor(TOKENS).double()
    query, key, value = reference.projections(inputs, weights)
    phi = (torch.cat([z**2, z.clamp(min=0.0)], dim=-1) for z in (query, key))
    heads = reference_kernel.masked_kernel_attention(*phi, value, torch.ones(()))
    assert_close(to_numpy(layer(TOKENS)), reference.project_out(heads, weights).numpy(), 1e-5)
    assert_made_again(*model_of(Row(make, None)), tmp_path, ("file", "clone"))


TOKENS_OF, SIGNALS_OF = (2, 4, 6), (None, 4, cases_of_classes.N, SIZE)
SMALL = {"num_heads": 2, "key_dim": 3}
# Every public layer, mask and feature map with all its options but the seed
UNSEEDED = {
    **{
        name: (getattr(layers, name), options, TOKENS_OF)
        for name, options in cases_of_classes.LAYERS.items()
    },
    **{
        name: (
            getattr(masks, name),
            {**options, **({"exact": False} if "exact" in options else {})},
            SIGNALS_OF,
        )
        for name, options in cases_of_classes.MASKS.items()
    },
    **{
        f"{name} features": (KERNEL, {**SMALL, "feature_map": kind()}, TOKENS_OF)
        for name, kind in FEATURE_MAPS.items()
    },
    "features of GKAT": (
        layers.GraphKernelAttention,
        {**SMALL, "mask": masks.Causal(), "feature_map": "favor"},
        TOKENS_OF,
    ),
}
DRAWING = [
    name
    for name, (kind, options, _) in UNSEEDED.items()
    if "seed" in inspect.signature(kind).parameters
    or hasattr(feature_maps.get(options.get("feature_map") or "relu"), "seed")
]


def unseeded(name):
    kind, options, _ = UNSEEDED[name]
    return kind(**{key: value for key, value in options.items() if key != "seed"})


def numbers(name, part, only_drawn=False):
    """The weights of a layer or a mask, and the mask's matrix."""
    part.build(UNSEEDED[name][2])
    if only_drawn and hasattr(part, "directions"):
        return [to_numpy(part.directions)]
    found = [to_numpy(weight) for weight in part.weights]
    has_matrix = isinstance(part, masks.Mask) and not part.inputs_at_call
    return [*found, to_numpy(part.dense(4))] if has_matrix else found


def are_equal(first, second):
    return all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("name", UNSEEDED)
def test_the_same_random_seed_gives_the_same_numbers(name):
    found = []
    for _ in range(2):
        keras.utils.set_random_seed(3)
        found.append(numbers(name, unseeded(name)))
    assert are_equal(*found)


@pytest.mark.parametrize("name", DRAWING)
def test_each_draw_is_its_own_and_is_kept_in_the_configuration(name):
    first, second = unseeded(name), unseeded(name)
    again = type(first).from_config(first.get_config())
    drawn, other, kept = (numbers(name, part, only_drawn=True) for part in (first, second, again))
    assert are_equal(drawn, kept)
    assert not are_equal(drawn, other)


def test_features_that_are_drawn_again_follow_the_random_seed():
    found = []
    for seed in (1, 1, 2):
        layer = KERNEL(HEADS, SIZE, feature_map="favor")
        layer.build(TOKENS.shape)
        keras.utils.set_random_seed(seed)
        layer.redraw_features()
        found.append([to_numpy(layer.directions)])
    assert are_equal(found[0], found[1])
    assert not are_equal(found[0], found[2])
    before = to_numpy(layer(TOKENS))
    layer.redraw_features(seed=5)
    assert (to_numpy(layer(TOKENS)) != before).any()
    with pytest.raises(ValueError, match="draws weights at random"):
        KERNEL(HEADS, SIZE).redraw_features()


@pytest.mark.parametrize("kind", [masks.RandomWalk, masks.GraphRandomFeatures])
def test_weights_for_other_walks_are_refused(kind, tmp_path):
    def model_of_walks(seed=None):
        mask = kind([[0, 1], [1, 2]], num_nodes=LENGTH, seed=seed)
        return attending(KERNEL(HEADS, SIZE, mask=mask, name="layer"))

    (model, inputs), (other, _) = model_of_walks(), model_of_walks()
    model.save_weights(tmp_path / "model.weights.h5")
    seed = model.get_layer("layer").mask.seed
    with pytest.raises(ValueError, match=f"Make the mask with seed={seed}"):
        other.load_weights(tmp_path / "model.weights.h5")
    again, _ = model_of_walks(seed)
    again.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(to_numpy(again(inputs)), to_numpy(model(inputs)), atol=1e-6)
