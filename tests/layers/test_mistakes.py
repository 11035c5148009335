"""Wrong ways to name a part of a layer: each error says what was meant."""

import keras
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn import feature_maps, filters, graphs, layers, masks
from keras_graphattn.layers import GraphFilterAttention, GraphKernelAttention, MaskedKernelAttention
from keras_graphattn.optimizers import learning_rate_multiplier
from tests.call_inputs import first_needed
from tests.fuzz.cases_of_classes import LAYERS, MASKS, SIGNAL, WIDTH, B, T, layer, mask
from tests.numerics import to_numpy

REGISTRIES = {
    "filter": (filters.get, filters.FILTERS),
    "feature_map": (feature_maps.get, feature_maps.FEATURE_MAPS),
    "mask": (masks.get, masks.MASKS),
}
NAMED = [(option, name) for option, (_, names) in REGISTRIES.items() for name in names]
EDGES = np.array([[0, 1, 2, 3], [1, 2, 3, 4]])  # (2, E)


def test_every_public_mask_has_a_name():
    assert {cls.__name__ for cls in masks.MASKS.values()} == set(masks.__all__) - {"Mask"}


def test_layers_are_importable_from_the_top():
    for name in layers.__all__:
        assert getattr(keras_graphattn, name) is getattr(layers, name)
        assert name in keras_graphattn.__all__


@pytest.mark.all_cases
@pytest.mark.parametrize(("option", "name"), NAMED)
def test_a_name_a_class_and_a_misspelt_name(option, name):
    get, registry = REGISTRIES[option]
    cls = registry[name]
    with pytest.raises(ValueError, match=rf"Give an object: {option}={cls.__name__}\("):
        get(cls)
    misspelt = name[:2] + name[1:]
    with pytest.raises(ValueError, match=f"{misspelt}'. Did you mean '{name}'"):
        get(misspelt)
    with pytest.raises(ValueError, match=f"Did you mean '{name}'"):
        get(cls.__name__)  # as "PageRank"
    if name == "graph_diffusion":
        with pytest.raises(ValueError, match="Give `spectral_bound`, or use operator"):
            get(name)
        return
    if not first_needed(cls):
        assert type(get(name)) is cls
        return
    with pytest.raises(ValueError, match=rf"{option}={cls.__name__}\({first_needed(cls)}=...\W"):
        get(name)


def test_layers_take_masks_by_name():
    named = MaskedKernelAttention(2, 4, mask="causal")
    again = MaskedKernelAttention.from_config(named.get_config())
    assert isinstance(named.mask, masks.Causal)
    assert isinstance(again.mask, masks.Causal)
    assert isinstance(GraphKernelAttention(2, 4, mask="random_walk").mask, masks.RandomWalk)
    product = masks.Product(["causal", masks.Exponential()])
    assert [type(one) for one in product.masks] == [masks.Causal, masks.Exponential]


@pytest.mark.parametrize("kind", [MaskedKernelAttention, GraphKernelAttention])
@pytest.mark.parametrize("convert", [np.asarray, keras.ops.convert_to_tensor])
def test_an_array_for_a_mask_hears_of_entries(kind, convert):
    with pytest.raises(ValueError, match=r"of shape \(3, 3\).*mask_inputs=\{\"entries\": matrix"):
        kind(2, 4, mask=convert(np.ones((3, 3), "float32")))


@pytest.mark.parametrize(
    "read",
    [
        graphs.Graph,
        masks.GraphDiffusion,
        masks.GraphRandomFeatures,
        masks.RandomWalk,
        masks.Tree,
        lambda edges: masks.GraphDiffusion(edges.tolist()),
    ],
)
def test_edges_in_columns_hear_of_the_transpose(read):
    with pytest.raises(TypeError, match=r"shape \(2, 4\).*np.transpose"):
        read(EDGES)


@pytest.mark.all_cases
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GraphFilterAttention(2, 4, filter=filters.Polynomial), "base class.*Monomial"),
        (lambda: GraphFilterAttention(2, 4, filter=filters.Polynomial(3)), "write `recurrence`"),
        (lambda: GraphFilterAttention(2, 4, filter=filters.Monomial), r"filter=Monomial\("),
        (lambda: GraphFilterAttention(2, 4, mask="causal"), "MaskedKernelAttention.*take it"),
        (
            lambda: GraphFilterAttention(2, 4, dropout=0.1, attention_path="blockwise"),
            'Use attention_path="dense", or dropout=0.0',
        ),
        (lambda: masks.Entries(np.eye(4)), 'type ndarray.*mask_inputs={"entries": ...}'),
        (lambda: masks.Entries(entries=np.eye(4)), '`entries`.*mask_inputs={"entries": ...}'),
        (lambda: masks.Segments([0, 1]), 'type list.*mask_inputs={"segment_ids": ...}'),
        (lambda: masks.Causal(4), "value of type int. Leave it out"),
        (
            lambda: MaskedKernelAttention(2, 4, mask="entries")(np.ones((1, 5, 8))),
            'mask_inputs={"entries": ...}',
        ),
        (lambda: masks.GraphDiffusion(EDGES.T.astype("float32")), "edges.astype"),
    ],
)
def test_an_error_says_how_to_fix_it(make, words):
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=words):
        make()


def weights_of(part):
    """The names of attributes that are weights of a built layer or mask."""
    known = {id(variable) for variable in part.weights}
    return [name for name, value in vars(part).items() if id(value) in known]


@pytest.mark.all_cases
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_inspected_and_says_build_first(name):
    plain, built = layer(name), layer(name)
    built.build((B, T, WIDTH))
    for missing in (
        *weights_of(built),
        *(["coefficients"] if hasattr(built, "coefficients") else []),
    ):
        with pytest.raises(AttributeError, match=f"no attribute '{missing}'.*build it first"):
            getattr(plain, missing)
    assert keras_graphattn.inspect(plain)[0].coefficients == {}
    model = keras.Sequential([keras.layers.Dense(6), built])
    (row,) = keras_graphattn.inspect(model)
    assert (row.index, row.path, row.class_name) == (None, built.path, name)
    known = getattr(built, "coefficients", [])
    assert row.parameters_added == sum(int(np.prod(variable.shape)) for variable in known)
    assert len(row.coefficients) == len(known)
    for found, variable in zip(row.coefficients.values(), known, strict=True):
        np.testing.assert_array_equal(found.values, to_numpy(variable))
        assert found.multiplier == learning_rate_multiplier(variable)
        assert str(found) in str(keras_graphattn.inspect(model))


@pytest.mark.all_cases
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_says_build_first(name):
    built = mask(name)
    built.build(SIGNAL.shape)
    for missing in weights_of(built):
        with pytest.raises(AttributeError, match=f"no attribute '{missing}'.*build it first"):
            getattr(mask(name), missing)
    with pytest.raises(AttributeError, match=r"no attribute 'weigths'$"):
        _ = built.weigths


def test_weights_of_a_mask_are_coefficients_of_its_layer():
    rated = MaskedKernelAttention(2, 4, mask=masks.Toeplitz(9, initial_slopes=0.5))
    rated.build((2, 5, 8))
    (row,) = keras_graphattn.inspect(rated)
    (found,) = row.coefficients.values()
    np.testing.assert_array_equal(found.values, to_numpy(rated.mask.weights[0]))
    assert "(2, 17), mean" in str(keras_graphattn.inspect(rated))
