"""Every call, mask and axis form of `keras.layers.MultiHeadAttention`, with equal results.

Each layer that starts as plain attention is given the weights of Keras' own layer and called in the
same way. What differs on purpose stands in guides/differences_from_keras.md; the last tests check
the rows of that table, and `test_refusals.py` those of calls that are refused.
"""

import functools
import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_graphattn.layers import (
    AttentiveGraphFilter,
    ContraNormAttention,
    DifferentialAttention,
    EdgeAttention,
    GatedDeltaRule,
    GraphFilterAttention,
    GraphKernelAttention,
    MaskedKernelAttention,
    PLaplacianAttention,
    ScaledHighFrequencyAttention,
)
from keras_graphattn.masks import Exponential
from tests.numerics import to_numpy

BATCH, LENGTH, WIDTH, HEADS, SIZE = 2, 5, 6, 2, 4

PLAIN_STARTS = {
    "graph filter": GraphFilterAttention,
    "blockwise": lambda *args, **kwargs: GraphFilterAttention(
        *args, attention_path="blockwise", block_size=3, **kwargs
    ),
    "fused": lambda *args, **kwargs: GraphFilterAttention(*args, attention_path="fused", **kwargs),
    "p-Laplacian, p = 2": lambda *args, **kwargs: PLaplacianAttention(*args, p=2.0, **kwargs),
    "high frequencies": ScaledHighFrequencyAttention,
    "ContraNorm, scale 0": functools.partial(ContraNormAttention, scale=0.0),
}
DENSE = ("graph filter", "high frequencies")  # any axes, and scores
SCORES = (*DENSE, "p-Laplacian, p = 2")


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def twins(make, shapes, **options):
    """Keras' own layer and ours with the same weights, copied by path."""
    stock = keras.layers.MultiHeadAttention(HEADS, SIZE, **options)
    ours = make(HEADS, SIZE, **options)
    for layer in (stock, ours):
        layer.build(*shapes)
    own = {w.path.removeprefix(ours.name): w for w in ours.weights}
    generator = np.random.default_rng(1)
    for weight in stock.weights:
        values = 0.5 * generator.standard_normal(tuple(weight.shape))
        weight.assign(values)
        own[weight.path.removeprefix(stock.name)].assign(values)
    return stock, ours


def assert_equal(actual, expected, tolerance=1e-5):
    actual, expected = (x if isinstance(x, tuple) else (x,) for x in (actual, expected))
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert tuple(one.shape) == tuple(other.shape)
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), atol=tolerance, rtol=tolerance)


def lower(dtype):
    return np.tri(LENGTH, dtype=dtype)


CALLS = {
    "query and value": lambda q, v, k: ((q, v), {}),
    "all by position": lambda q, v, k: ((q, v, k), {}),
    "all by name": lambda q, v, k: ((), {"query": q, "value": v, "key": k}),
    "no key": lambda q, v, k: ((q,), {"value": v, "key": None}),
    "training": lambda q, v, k: ((q, v), {"training": True}),
    "causal": lambda q, v, k: ((q, v), {"use_causal_mask": True}),
    "causal by a one": lambda q, v, k: ((q, v), {"use_causal_mask": 1}),
    "not causal by a zero": lambda q, v, k: ((q, v), {"use_causal_mask": 0}),
    "not causal by NumPy": lambda q, v, k: ((q, v), {"use_causal_mask": np.bool_(False)}),
    "mask (T, S)": lambda q, v, k: ((q, v), {"attention_mask": lower("bool")}),
    "mask (1, T, S)": lambda q, v, k: ((q, v), {"attention_mask": lower("bool")[None]}),
    "mask (B, T, S)": lambda q, v, k: ((q, v), {"attention_mask": np.stack([lower("bool")] * 2)}),
    "mask (B, 1, S)": lambda q, v, k: ((q, v), {"attention_mask": lower("bool")[2:4, None]}),
    "mask (B, N, T, S)": lambda q, v, k: (
        (q, v),
        {"attention_mask": np.tri(LENGTH, dtype=bool) | (np.arange(4).reshape(2, 2, 1, 1) > 1)},
    ),
    "mask of a tensor": lambda q, v, k: ((q, v), {"attention_mask": ops.tril(ops.ones((5, 5)))}),
    "key mask": lambda q, v, k: ((q, v), {"value_mask": np.arange(5)[None] < [[3], [5]]}),
    "key mask of integers": lambda q, v, k: (
        (q, v),
        {"key_mask": (np.arange(5)[None] < [[3], [5]]).astype("int64"), "key": k},
    ),
    "several masks": lambda q, v, k: (
        (q, v),
        {
            "value_mask": np.arange(5)[None] < [[3], [5]],
            "attention_mask": np.tri(LENGTH, k=1, dtype="uint8")[None],
            "use_causal_mask": True,
        },
    ),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", PLAIN_STARTS)
def test_every_call_form(name, call):
    shapes = [(BATCH, LENGTH, WIDTH), (BATCH, LENGTH, WIDTH + 1), (BATCH, LENGTH, WIDTH + 2)]
    query, value, key = (random(*shape, seed=seed) for seed, shape in enumerate(shapes))
    args, kwargs = CALLS[call](query, value, key)
    uses_key = len(args) > 2 or kwargs.get("key") is not None
    stock, ours = twins(PLAIN_STARTS[name], shapes if uses_key else shapes[:2])
    assert_equal(ours(*args, **kwargs), stock(*args, **kwargs))


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64"]
)
@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_masks_of_zeros_and_ones_in_any_dtype(dtype, kind):
    x = random(BATCH, LENGTH, WIDTH)
    masks = {
        "attention_mask": np.tri(LENGTH, k=1).astype(dtype),
        "query_mask": np.ones((BATCH, LENGTH)).astype(dtype),
        "value_mask": (np.arange(LENGTH)[None] < [[3], [5]]).astype(dtype),
    }
    if kind == "tensor":
        masks = {name: ops.convert_to_tensor(mask) for name, mask in masks.items()}
    stock, ours = twins(GraphFilterAttention, [x.shape, x.shape])
    assert_equal(ours(x, x, **masks), stock(x, x, **masks))


@pytest.mark.parametrize("value", [-1e9, 0.5, np.nan, np.inf])
@pytest.mark.parametrize("name", ["query_mask", "value_mask", "key_mask", "attention_mask"])
def test_a_known_float_mask_of_other_numbers_is_refused(name, value):
    x = random(BATCH, LENGTH, WIDTH)
    mask = np.ones((LENGTH, LENGTH) if name == "attention_mask" else (BATCH, LENGTH), "float32")
    mask[1, 2] = value
    layer = GraphFilterAttention(HEADS, SIZE)
    for given in (mask, ops.convert_to_tensor(mask)):
        with pytest.raises(ValueError, match=rf"`{name}` must hold 0 and 1 .*\[1, 2\]"):
            layer(x, x, **{name: given})


AXES = {
    "one axis of three": ((3, 4), (2,), None),
    "one axis, mask (T, S)": ((3, 4), (2,), (4, 4)),
    "one axis, mask (B, T, S)": ((3, 4), (2,), (2, 4, 4)),
    "one axis, mask of all axes": ((3, 4), (2,), (2, 3, 4, 4)),
    "two axes": ((3, 4), (1, 2), (3, 4, 3, 4)),
    "two axes by default": ((3, 4), None, (3, 4, 3, 4)),
    "the first axis": ((3, 4), (1,), (3, 3)),
    "a negative axis": ((3, 4), (-2,), (4, 4)),
    "two axes of three": ((3, 2, 4), (2, 3), (2, 4, 2, 4)),
    "two axes of three, with a batch": ((3, 2, 4), (2, 3), (2, 2, 4, 2, 4)),
    "two axes of three, full mask": ((3, 2, 4), (2, 3), (2, 3, 2, 4, 2, 4)),
    "three axes": ((3, 2, 4), None, (3, 2, 4, 3, 2, 4)),
}


@pytest.mark.parametrize("form", AXES)
@pytest.mark.parametrize("name", DENSE)
def test_every_axis_form(name, form):
    sizes, axes, mask_shape = AXES[form]
    x = random(BATCH, *sizes, WIDTH)
    kwargs = {}
    if mask_shape is not None:
        mask = np.random.default_rng(2).random(mask_shape) < 0.7
        mask[(..., *[0] * (1 if axes == (2,) else len(axes or sizes)))] = True  # no row is blind
        kwargs["attention_mask"] = mask
    stock, ours = twins(PLAIN_STARTS[name], [x.shape, x.shape], attention_axes=axes)
    expected = stock(x, x, **kwargs)
    assert_equal(ours(x, x, **kwargs), expected)
    found = ours(x, x, return_attention_scores=True, **kwargs)
    assert_equal(found, stock(x, x, return_attention_scores=True, **kwargs))


def test_axes_of_unknown_length():
    """Two attention axes whose lengths are open in the model."""
    stock, ours = twins(GraphFilterAttention, [(None, 3, 2, 4, WIDTH)] * 2, attention_axes=(2, 3))
    inputs = keras.Input((3, None, None, WIDTH))
    x = random(BATCH, 3, 2, 4, WIDTH)
    model = keras.Model(inputs, ours(inputs, inputs))
    assert_equal(model.predict(x, verbose=0), stock(x, x))


@pytest.mark.parametrize("name", SCORES)
def test_scores_and_options(name):
    x = random(BATCH, LENGTH, WIDTH)
    options = {"sliding_window": 2, "use_gate": True, "use_bias": False, "output_shape": (3, 2)}
    options |= {"value_dim": 3}
    stock, ours = twins(PLAIN_STARTS[name], [x.shape, x.shape], **options)
    for kwargs in ({}, {"use_causal_mask": True}):
        kwargs["return_attention_scores"] = True
        assert_equal(ours(x, x, **kwargs), stock(x, x, **kwargs))


@pytest.mark.parametrize("name", PLAIN_STARTS)
def test_symbolic_calls(name):
    x = random(BATCH, LENGTH, WIDTH)
    stock, ours = twins(PLAIN_STARTS[name], [x.shape, x.shape])
    inputs = keras.Input((None, WIDTH))
    model = keras.Model(inputs, ours(inputs, inputs, use_causal_mask=True))
    assert_equal(model.predict(x, verbose=0), stock(x, x, use_causal_mask=True))


EVERY_LAYER = {
    "graph filter": GraphFilterAttention,
    "graph filter, groups": functools.partial(GraphFilterAttention, num_key_value_heads=1),
    "differential": DifferentialAttention,
    "p-Laplacian": PLaplacianAttention,
    "high frequencies": ScaledHighFrequencyAttention,
    "ContraNorm": ContraNormAttention,
    "AGF": AttentiveGraphFilter,
    "delta rule": GatedDeltaRule,
    "kernel": MaskedKernelAttention,
    "edges": functools.partial(EdgeAttention, expander_degree=2),
    "graph kernel": functools.partial(GraphKernelAttention, mask=Exponential()),
}
X = random(BATCH, LENGTH, WIDTH)
MISTAKES = {
    "num_heads": lambda make: make(0, SIZE),
    "key_dim": lambda make: make(HEADS, 4.0),
    "value_dim": lambda make: make(HEADS, SIZE, value_dim=0),
    "output_shape": lambda make: make(HEADS, SIZE, output_shape=8.0),
    "attention_axes": lambda make: make(HEADS, SIZE, attention_axes=1.5),
    "sliding_window": lambda make: make(HEADS, SIZE, sliding_window=0),
    "dropout with flash_attention": lambda make: make(
        HEADS, SIZE, dropout=0.1, flash_attention=True
    ),
    "initializer": lambda make: make(HEADS, SIZE, kernel_initializer="none"),
    "regularizer": lambda make: make(HEADS, SIZE, bias_regularizer="none"),
    "constraint": lambda make: make(HEADS, SIZE, kernel_constraint="none"),
    "dtype": lambda make: make(HEADS, SIZE, dtype="half"),
    "name": lambda make: make(HEADS, SIZE, name="a/b"),
    "unknown option": lambda make: make(HEADS, SIZE, heads=2),
    "option left out": lambda make: make(HEADS),
    "unknown argument": lambda make: make(HEADS, SIZE)(X, X, keys=X),
    "too many arguments": lambda make: make(HEADS, SIZE)(*[X] * 13),
    "key of other tokens": lambda make: make(HEADS, SIZE)(X, X, X[:, 1:]),
    "key of another rank": lambda make: make(HEADS, SIZE)(X, X, X[0]),
    "key of an open batch": lambda make: make(HEADS, SIZE)(
        *(keras.Input((length, WIDTH)) for length in (5, 5, 3))
    ),
    "key in build": lambda make: make(HEADS, SIZE).build(X.shape, X.shape, (2, 3, WIDTH)),
    "rank of key in build": lambda make: make(HEADS, SIZE).build(X.shape, X.shape, (5, WIDTH)),
    "key in compute_output_shape": lambda make: make(HEADS, SIZE).compute_output_shape(
        X.shape, X.shape, (2, 3, WIDTH)
    ),
    "weights before build": lambda make: make(HEADS, SIZE).set_weights([X]),
    "quantize": lambda make: make(HEADS, SIZE).quantize("int8"),
}


def refusal(mistake, make):
    """The type of an error, and its words without the layer's name."""
    with pytest.raises(Exception) as refused:  # noqa: PT011  # the types are compared
        mistake(make)
    words = str(refused.value).replace("\n", " ")
    words = re.sub(r"\x1b\[\d+m|^Exception encountered when calling \S+ +", "", words)
    names = r"\b[A-Z]\w*(Attention|Filter|Layer|Rule)\b|\w*_(attention|filter|rule)(_\d+)?\b"
    return refused.type, re.sub(names, "", words)


@pytest.mark.parametrize("name", EVERY_LAYER)
def test_what_keras_refuses_in_words_is_refused_in_the_same_words(name):
    options = EVERY_LAYER[name](HEADS, SIZE).get_config()
    for kind, mistake in MISTAKES.items():
        if kind in ("attention_axes", "sliding_window") and kind not in options:
            continue  # there is no such option
        if "flash" in kind and "graph filter" not in name:
            continue
        error, words = refusal(mistake, keras.layers.MultiHeadAttention)
        ours, our_words = refusal(mistake, EVERY_LAYER[name])
        assert ours is error, kind
        assert words.split("Received")[0].strip(" .") in our_words, kind


OPTIONS = {"dropout": 0.2, "value_dim": 6, "output_shape": 5, "use_bias": False, "seed": 1}
BY_KERAS = [  # layers that Keras' own test of layers runs
    (GraphFilterAttention, {}),
    (GraphFilterAttention, OPTIONS),
    (GraphFilterAttention, {"sliding_window": 2, "use_gate": True}),
    (DifferentialAttention, {}),
    (DifferentialAttention, {**OPTIONS, "version": 2, "num_key_value_heads": 1}),
    (PLaplacianAttention, {"value_dim": 2, "output_shape": 5}),
    (AttentiveGraphFilter, {}),
    (AttentiveGraphFilter, OPTIONS),
    (AttentiveGraphFilter, {"filter": "monomial", "use_gate": True, "orthogonality_weight": 0.1}),
    (GatedDeltaRule, {}),
    (GatedDeltaRule, {**OPTIONS, "filter": "first_order"}),
]


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize(("kind", "options"), BY_KERAS)
def test_keras_layer_test(kind, options):
    from keras.src.testing import TestCase

    shape = (2, 5, 8)
    is_alone = kind in (AttentiveGraphFilter, GatedDeltaRule)
    TestCase().run_layer_test(
        kind,
        {"num_heads": 2, "key_dim": 3, **options},
        input_shape=shape if is_alone else {"query_shape": shape, "value_shape": shape},
        expected_output_shape=(2, 5, options.get("output_shape", 8)),
        expected_num_seed_generators=1 if options.get("dropout") else 0,
        expected_num_losses=1 if options.get("orthogonality_weight") else 0,
        supports_masking=True,
        run_training_check=is_alone,
    )


# What guides/differences_from_keras.md says


def test_difference_a_row_that_sees_nothing_is_zero():
    x = random(BATCH, LENGTH, WIDTH)
    stock, ours = twins(GraphFilterAttention, [x.shape, x.shape], use_bias=False)
    mask = np.ones((LENGTH, LENGTH), bool)
    mask[2] = False
    outputs = to_numpy(ours(x, x, attention_mask=mask))
    assert (outputs[:, 2] == 0).all()
    others = [0, 1, 3, 4]
    expected = to_numpy(stock(x, x, attention_mask=mask))
    np.testing.assert_allclose(outputs[:, others], expected[:, others], atol=1e-5)


def test_difference_a_mask_per_head_joins_the_token_masks():
    """Keras aligns the masks' axes from the right, so that batch meets heads there."""
    x = random(3, LENGTH, WIDTH)
    heads = np.ones((3, HEADS, LENGTH, LENGTH), bool)
    heads[:, 1, :, 2] = False
    keys = np.arange(LENGTH)[None] < [[3], [5], [4]]
    stock, ours = twins(GraphFilterAttention, [x.shape, x.shape])
    joined = heads & keys[:, None, None]
    assert_equal(
        ours(x, x, attention_mask=heads, value_mask=keys), stock(x, x, attention_mask=joined)
    )


def test_difference_a_given_query_mask_is_used():
    x = random(BATCH, LENGTH, WIDTH)
    mask = np.arange(LENGTH)[None] < [[3], [5]]
    stock, ours = twins(GraphFilterAttention, [x.shape, x.shape], use_bias=False)
    assert_equal(stock(x, x, query_mask=mask), stock(x, x))
    outputs, expected = to_numpy(ours(x, x, query_mask=mask)), to_numpy(stock(x, x))
    np.testing.assert_allclose(outputs, expected * mask[..., None], atol=1e-5)
    for form in ({"value": x, "mask": mask, "value_mask": mask}, {"mask": mask}):
        assert_equal(ours(x, **form), ours(x, query_mask=mask))
    with pytest.raises(TypeError, match="mask"):
        stock(x, x, mask=mask)


@pytest.mark.parametrize(
    "name", sorted(set(EVERY_LAYER) - {"graph filter", "graph filter, groups", "differential"})
)
def test_difference_most_layers_have_no_flash_kernel(name):
    with pytest.raises(ValueError, match="does not run on a flash attention kernel"):
        EVERY_LAYER[name](HEADS, SIZE, flash_attention=True)


@pytest.mark.parametrize(
    "option",
    [
        {"use_bias": "no"},
        {"seed": 1.5},
        {"seed": keras.random.SeedGenerator(1)},
        {"output_shape": 0},
        {"dropout": 1.0},
    ],
)
def test_difference_options_of_a_wrong_type_are_refused_by_the_constructor(option):
    keras.layers.MultiHeadAttention(HEADS, SIZE, **option)
    for make in EVERY_LAYER.values():
        with pytest.raises(ValueError, match=next(iter(option))):
            make(HEADS, SIZE, **option)


def test_difference_arguments_that_are_no_tensors_or_do_not_fit_are_named():
    stock, ours = twins(GraphFilterAttention, [X.shape, X.shape])
    with pytest.raises(ValueError, match="Only input tensors may be passed as positional"):
        stock("tokens", X)
    with pytest.raises(TypeError, match="`query` must be a tensor or an array"):
        ours("tokens", X)
    with pytest.raises(ValueError, match=r"`value` must have shape .* with B=2 as in `query`"):
        ours(X, X[:1])
    with pytest.raises(ValueError, match=r"`value_mask` must have shape .* S=5 as in `value`"):
        ours(X, X, value_mask=np.ones((BATCH, LENGTH - 1), bool))


@pytest.mark.parametrize("name", EVERY_LAYER)
def test_difference_inputs_of_a_mask_that_a_layer_does_not_have_are_refused(name):
    inputs = {"an unknown one": np.zeros((BATCH, LENGTH), "int32")}
    layer = EVERY_LAYER[name](HEADS, SIZE)
    symbolic = [] if layer.takes_mask_inputs else [keras.Input(X.shape[1:])]
    for tokens in (X, *symbolic):
        with pytest.raises(ValueError, match="an unknown one"):
            layer(tokens, tokens, mask_inputs=inputs)


@pytest.mark.parametrize("name", EVERY_LAYER)
def test_difference_tokens_of_integers_are_refused_in_words(name):
    layer = EVERY_LAYER[name](HEADS, SIZE)
    for argument in ("query", "value", "key"):
        with pytest.raises(ValueError, match=rf"`{argument}` must be a tensor of floats.*Embed"):
            layer(**{"query": X, argument: np.ones(X.shape, int)})
    if hasattr(layer, "get_initial_cache"):
        with pytest.raises(ValueError, match=r"`tokens` must be a tensor of floats.*Embed"):
            layer.decode(np.ones(X.shape, int), layer.get_initial_cache(BATCH, LENGTH), 0)
