"""Wrong ways to name a part of a layer: each error says what was meant."""

import inspect
import json
from functools import partial

import keras
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn import feature_maps, filters, graphs, layers, masks
from keras_graphattn.layers import (
    EdgeAttention,
    GraphFilterAttention,
    GraphKernelAttention,
    MaskedKernelAttention,
)
from keras_graphattn.optimizers import learning_rate_multiplier
from tests.call_inputs import first_needed
from tests.fuzz.cases_of_classes import (
    BIASES,
    LAYERS,
    MASKS,
    SIGNAL,
    TOKEN_LAYERS,
    WIDTH,
    B,
    T,
    bias,
    layer,
    mask,
)
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


@pytest.mark.parametrize(
    "read",
    [
        EdgeAttention,
        masks.GraphDiffusion,
        partial(masks.GraphRandomFeatures, seed=0),
        partial(masks.RandomWalk, seed=0),
        masks.Tree,
    ],
)
def test_a_graph_as_data_is_a_graph(read):
    option = {"graph": EDGES.T} if read is EdgeAttention else {}
    of_edges = read(2, 4, **option) if option else read(EDGES.T)
    graph = graphs.Graph(EDGES.T)
    of_graph = read(2, 4, graph=graph) if option else read(graph)
    configs = [part.get_config() | {"name": "", "seed": 0} for part in (of_edges, of_graph)]
    assert configs[0] == configs[1]
    if not option and read is not masks.Tree:
        weighted = read(graphs.Graph(EDGES.T, [1.0, 2.0, 3.0, 4.0]))
        assert weighted.get_config()["edge_weights"] == [1.0, 2.0, 3.0, 4.0]


WITH_INPUTS = [
    (name, inputs)
    for name in LAYERS
    for inputs in ("mask_inputs", "bias_inputs")
    if inputs in inspect.signature(getattr(layers, name).call).parameters
]


@pytest.mark.all_cases
@pytest.mark.parametrize(("name", "inputs"), WITH_INPUTS)
@pytest.mark.parametrize("convert", [np.asarray, keras.ops.convert_to_tensor, list])
def test_inputs_that_are_no_dictionary(name, inputs, convert):
    query = np.zeros((B, T, WIDTH), "float32")
    wrong, made = {inputs: convert(np.ones((B, T), "int32"))}, layer(name)
    message = f"`{inputs}` must be a dictionary.*Received: {inputs} of"
    with pytest.raises(ValueError, match=message):
        made(query, **wrong)
    decode = getattr(made, "decode", None)
    if decode is not None and inputs in inspect.signature(decode).parameters:
        start = [made.get_initial_cache(B, T), 0] if inputs == "bias_inputs" else [None]
        with pytest.raises(ValueError, match=message):
            decode(query, *start, **wrong)


@pytest.mark.parametrize("name", LAYERS)
def test_sizes_may_be_integers_of_numpy(name):
    for left_out in ((), ("value_dim",)):
        options = {key: value for key, value in LAYERS[name].items() if key not in left_out}
        numbers = {key: value for key, value in options.items() if type(value) is int}
        of_numpy = {key: np.int64(value) for key, value in numbers.items()}
        wanted, config = (
            getattr(layers, name)(**options | given).get_config() for given in ({}, of_numpy)
        )
        for key in {"value_dim", *numbers} & set(wanted):
            assert config[key] == wanted[key]
            assert type(config[key]) is type(wanted[key])


NUMPY_OPTIONS = {
    "num_heads": np.int64(2),
    "dropout": np.float32(0.25),
    "use_bias": np.False_,
    "use_gate": np.True_,
    "seed": np.int64(3),
    "output_shape": np.array([6]),
    "attention_axes": np.array([1]),
    "sliding_window": np.int64(3),
}


@pytest.mark.parametrize("name", sorted(set(LAYERS) - set(TOKEN_LAYERS)))
@pytest.mark.parametrize("option", NUMPY_OPTIONS)
def test_options_may_be_of_numpy(name, option):
    value = NUMPY_OPTIONS[option]
    first, *others = (value, [*value], range(value[0], value[0] + 1)) if value.ndim else (value,)
    kind, known = getattr(layers, name), {"bias": None} if "bias" in LAYERS[name] else {}
    try:
        wanted = kind(**LAYERS[name] | known | {option: value.tolist()}).get_config()
    except ValueError:
        pytest.skip("no option of this layer")
    for given in (first, *others):
        config = kind(**LAYERS[name] | known | {option: given}).get_config()
        assert json.dumps(config[option]) == json.dumps(wanted[option])


def test_sizes_of_a_grid_and_of_batches_may_be_arrays():
    assert masks.BlockToeplitz(np.array([2, 3])).grid_shape == (2, 3)
    batch = [graphs.Graph([[0, 1]], num_nodes=3, label=0)] * 2
    given, wanted = (
        len(graphs.GraphBatches(batch, batch_size=2, sizes=sizes))
        for sizes in (np.array([3, 4]), [3, 4])
    )
    assert given == wanted


@pytest.mark.parametrize(
    "make", [*(partial(mask, x) for x in MASKS), *(partial(bias, x) for x in BIASES)]
)
@pytest.mark.parametrize("shape", [3, None, (1, 2, 3), (None, None, None, 4)])
def test_shapes_that_are_none(make, shape):
    with pytest.raises(ValueError, match=r"known number of heads\. Received: shape"):
        make().build(shape)


@pytest.mark.all_cases
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GraphFilterAttention(2, 4, filter=filters.Polynomial), "base class.*Monomial"),
        (lambda: GraphFilterAttention(2, 4, filter=filters.Polynomial(3)), "write `recurrence`"),
        (lambda: GraphFilterAttention(2, 4, filter=filters.Monomial), r"filter=Monomial\("),
        (lambda: GraphFilterAttention(2, 4, mask="causal"), "MaskedKernelAttention.*take it"),
        (
            lambda: MaskedKernelAttention(2, 4, mask=[masks.Causal(), masks.Segments()]),
            r"2 in a list.*masks.Product\(\[",
        ),
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
        (lambda: masks.GraphDiffusion(np.eye(5, dtype=int)), r"\(5, 5\), dtype int.*csr_array"),
        (lambda: masks.GraphDiffusion(np.eye(5, dtype=bool)), r"\(5, 5\), dtype bool.*csr_array"),
        (lambda: masks.GraphDiffusion([]), "no edges.*Give `num_nodes`"),
        (lambda: masks.RandomWalk(graphs.Graph([[0, 1]]), [1.0]), "has its own weights"),
        (lambda: GraphFilterAttention("2", 4), "`num_heads` must be an integer.*num_heads='2'"),
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
