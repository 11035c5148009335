"""Every filter of the registry, against its naive twin and in every layer."""

import keras
import numpy as np
import pytest
import torch
from keras import ops

from keras_graphattn import filters
from keras_graphattn.filters import (
    FILTERS,
    Filter,
    FirstOrder,
    Jacobi,
    Monomial,
    PageRank,
    Polynomial,
    Resolvent,
    Step,
)
from keras_graphattn.filters.filter import STARTS
from keras_graphattn.layers import AttentiveGraphFilter, GraphFilterAttention, MaskedKernelAttention
from keras_graphattn.masks import Causal
from tests.filters import reference
from tests.layers.decoding import decoded
from tests.numerics import (
    assert_all_close,
    assert_close,
    randomise,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

HEADS, SIZE, LENGTH, FEATURES = 3, 4, 7, 6
random = np.random.default_rng(0)
TOKENS = random.normal(size=(2, LENGTH, FEATURES)).astype("float32")


@keras.saving.register_keras_serializable(package="filter_tests")
class Laguerre(Polynomial):
    """A filter of the user's own, in no registry."""

    def recurrence(self):
        return [Step(-1 / k, (2 * k - 1) / k, (k - 1) / k) for k in range(1, self.order + 1)]


def made(name, order=None):
    if name == "laguerre":
        return Laguerre(order or 3)
    if name == "jacobi":
        return Jacobi(order or 3, 0.5, -0.25)
    if order is not None and FILTERS[name]().order == 1:
        return FILTERS[name]()
    return FILTERS[name]() if order is None else FILTERS[name](order)


EVERY = [*FILTERS, "laguerre"]


def drawn(filter):
    """Random weights of a filter, by name."""
    found = filter.coefficients(HEADS)
    return {name: random.normal(size=c.start.shape) for name, c in found.items()}


def stochastic(length=LENGTH):
    matrix = np.exp(random.normal(size=(2, HEADS, length, length)))
    return matrix / matrix.sum(axis=-1, keepdims=True)


def operator(matrix):
    """x -> A x, in the dtype of x."""
    return lambda x: ops.einsum("bnts,bsnh->btnh", ops.cast(matrix, x.dtype), x)


@pytest.mark.parametrize(("length", "order"), [(1, 2), (2, 5), (63, None), (197, 7)])
@pytest.mark.parametrize("name", FILTERS)
def test_agrees_with_its_naive_twin_in_values_and_gradients(name, length, order):
    filter = made(name, order)
    weights, A = drawn(filter), stochastic(length)
    values = random.normal(size=(2, length, HEADS, SIZE))

    def fast(matrix, values, *coefficients):
        columns = (ops.expand_dims(x, -1) for x in coefficients)
        return filter(operator(matrix), values, dict(zip(weights, columns, strict=True)))

    def naive(matrix, values, *coefficients):
        H = reference.matrix(filter, matrix, dict(zip(weights, coefficients, strict=True)))
        return torch.einsum("bnts,bsnh->btnh", H, values)

    value, gradients = value_and_gradients(fast, A, values, *weights.values())
    expected, slopes = reference_value_and_gradients(naive, A, values, *weights.values())
    assert_close(value, expected, 2e-6)
    assert_all_close(gradients, slopes, 1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", EVERY)
def test_half_precision_is_that_of_the_signal(name, dtype):
    filter, values = made(name), random.normal(size=(2, LENGTH, HEADS, SIZE))
    weights = {key: x[..., None].astype("float32") for key, x in drawn(filter).items()}
    apply = operator(ops.convert_to_tensor(stochastic(), dtype))
    half = filter(apply, ops.convert_to_tensor(values, dtype), weights)
    whole = filter(apply, ops.convert_to_tensor(values, "float32"), weights)
    assert keras.backend.standardize_dtype(half.dtype) == dtype
    scale = np.abs(to_numpy(whole)).max()
    error = np.abs(to_numpy(half) - to_numpy(whole)).max()
    assert error < {"float16": 4e-3, "bfloat16": 3e-2}[dtype] * scale


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("name", EVERY)
def test_starts_as_plain_attention_and_counts_its_applications(name, order):
    filter, calls = made(name, order), []
    A = stochastic().astype("float32")

    def apply(x):
        calls.append(x)
        return operator(A)(x)

    values = random.normal(size=(2, LENGTH, HEADS, SIZE)).astype("float32")
    start = {
        key: c.start[..., None].astype("float32") for key, c in filter.coefficients(HEADS).items()
    }
    found = to_numpy(filter(apply, values, start))
    np.testing.assert_allclose(found, np.einsum("bnts,bsnh->btnh", A, values), atol=2e-6)
    assert len(calls) == filter.num_applications


LAYERS = {
    "dense": lambda filter: GraphFilterAttention(HEADS, SIZE, filter=filter),
    "blockwise": lambda filter: GraphFilterAttention(
        HEADS, SIZE, filter=filter, attention_path="blockwise", block_size=3
    ),
    "fused": lambda filter: GraphFilterAttention(
        HEADS, SIZE, filter=filter, attention_path="fused"
    ),
    "kernel": lambda filter: MaskedKernelAttention(HEADS, SIZE, filter=filter),
    "causal kernel": lambda filter: MaskedKernelAttention(
        HEADS, SIZE, filter=filter, mask=Causal(), path="chunked"
    ),
    "singular": lambda filter: AttentiveGraphFilter(HEADS, SIZE, filter=filter),
    "causal singular": lambda filter: AttentiveGraphFilter(HEADS, SIZE, filter=filter, causal=True),
}


@pytest.mark.parametrize("place", LAYERS)
@pytest.mark.parametrize("name", EVERY)
def test_every_layer_takes_it_trains_it_and_saves_it(name, place, tmp_path):
    inputs = keras.Input((LENGTH, FEATURES))
    layer = LAYERS[place](made(name))
    model = keras.Model(inputs, layer(inputs))
    randomise(layer)
    before = [to_numpy(v) for v in layer.coefficients if v.trainable]
    model.compile(keras.optimizers.SGD(1.0), "mse")
    model.fit(TOKENS, random.normal(size=TOKENS.shape), verbose=0)
    after = [to_numpy(v) for v in layer.coefficients if v.trainable]
    moved = [np.abs(one - other).max() for one, other in zip(before, after, strict=True)]
    assert min(moved) > 1e-7
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.layers[-1].filter == layer.filter
    np.testing.assert_array_equal(to_numpy(again(TOKENS)), to_numpy(model(TOKENS)))


@pytest.mark.parametrize("name", EVERY)
def test_paths_agree(name):
    layers = {place: LAYERS[place](made(name)) for place in ("dense", "blockwise", "fused")}
    for layer in layers.values():
        layer.build(TOKENS.shape)
    randomise(layers["dense"])
    for layer in layers.values():
        layer.set_weights(layers["dense"].get_weights())
    outputs = {
        place: to_numpy(layer(TOKENS, use_causal_mask=True)) for place, layer in layers.items()
    }
    for found in outputs.values():
        np.testing.assert_allclose(found, outputs["dense"], atol=2e-6 * np.abs(found).max())


@pytest.mark.parametrize("place", ["dense", "causal kernel", "causal singular"])
@pytest.mark.parametrize("name", EVERY)
def test_decoding_is_the_causal_full_pass(name, place):
    layer = LAYERS[place](made(name))
    layer.build(TOKENS.shape)
    randomise(layer)
    full = to_numpy(layer(TOKENS, use_causal_mask=True))
    found, _ = decoded(layer, TOKENS, (3, 1, 1, 2))
    np.testing.assert_allclose(to_numpy(found), full, atol=1e-5 * np.abs(full).max())


@pytest.mark.parametrize("name", EVERY)
def test_configurations_come_back_equal(name):
    filter = made(name)
    filter = type(filter).from_config({**filter.get_config(), "start": filter.starts[-1]})
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(filter))
    assert again == filter
    assert hash(again) == hash(filter)
    assert filter != made(name if name == "page_rank" else "page_rank", 7)
    assert type(filter).__name__ in repr(filter)
    assert filters.get(keras.saving.serialize_keras_object(filter)) == filter


@pytest.mark.parametrize("of", [ops.convert_to_tensor, keras.Variable])
def test_tensors_as_start_values_become_numbers(of):
    numbers = np.array([1.0, 2.0], "float32")
    for filter, same in (
        (FirstOrder(initial_coefficients={"power": of(numbers)}), {"power": [1.0, 2.0]}),
        (Monomial(2, initial_coefficients=[of(numbers), 1.0, 0.0]), [[1.0, 2.0], 1.0, 0.0]),
        (Monomial(1, initial_coefficients=of(np.stack([numbers] * 2))), [[1.0, 2.0]] * 2),
    ):
        assert filter.get_config()["initial_coefficients"] == same


@pytest.mark.parametrize("start", ["high_pass", "high_boost"])
def test_a_start_of_degree_one_needs_no_square(start):
    """P_2 of this basis has degree 1."""
    identity, plain, square = (
        Jacobi(2, -1.5, -1.5, start=start).coefficients(1)["filter_coefficients"].start[:, 0]
    )
    slope, offset, _ = Jacobi(2, -1.5, -1.5).recurrence()[0]
    found = [identity + plain * offset, plain * slope, square]
    np.testing.assert_allclose(found, STARTS[start])


def test_layers_that_share_a_filter_have_coefficients_of_their_own():
    filter = FirstOrder(4)
    first, second = (GraphFilterAttention(HEADS, SIZE, filter=filter) for _ in range(2))
    for layer in (first, second):
        layer.build(TOKENS.shape)
    first.power_coefficient.assign(np.ones(HEADS))
    assert to_numpy(second.power_coefficient).tolist() == [0.0] * HEADS


def page_rank(order, restart):
    limit = lambda A: restart * np.linalg.inv(np.eye(LENGTH) - (1 - restart) * A)  # noqa: E731
    filter = PageRank(order, restart, initial_coefficients={"mix": 1.0})
    start = {key: c.start for key, c in filter.coefficients(HEADS).items()}
    return filter, start, limit, 2 * (1 - restart) ** order


def resolvent(order, bound, sign):
    limit = lambda A: A @ np.linalg.inv(np.eye(LENGTH) + sign * bound * A)  # noqa: E731
    start = {"feedback_coefficient": np.full(HEADS, sign * 20.0)}
    return Resolvent(order, bound), start, limit, bound**order / (1 - bound)


SERIES = [page_rank(*each) for each in ((1, 0.5), (4, 0.5), (8, 0.15), (20, 0.15))]
for order, bound in ((1, 0.5), (4, 0.5), (8, 0.5), (20, 0.9)):
    SERIES += [resolvent(order, bound, sign) for sign in (-1.0, 1.0)]


@pytest.mark.parametrize(("filter", "start", "limit", "bound"), SERIES)
def test_a_series_is_as_near_its_limit_as_it_says(filter, start, limit, bound):
    A, values = stochastic(), random.normal(size=(2, LENGTH, HEADS, SIZE))
    start = {key: x[..., None].astype("float32") for key, x in start.items()}
    found = filter(operator(A), values.astype("float32"), start)
    remainder = np.abs(to_numpy(found) - np.einsum("bnts,bsnh->btnh", limit(A), values)).max()
    assert remainder <= bound * np.abs(values).max() + 1e-5


def test_a_resolvent_of_an_older_file_is_the_series_or_refused():
    config = Resolvent(5, bound=0.9).get_config()
    assert Resolvent.from_config({**config, "causal": False}) == Resolvent(5, bound=0.9)
    with pytest.raises(ValueError, match="no exact causal form"):
        Resolvent.from_config({**config, "causal": True})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: filters.get("fourier"), r"`filter` must be one of.*'fourier'"),
        (lambda: filters.get(Filter), "`filter` must be one of"),
        (lambda: filters.get(Jacobi(2), order=2), "may only be given if `filter` is a name"),
        (lambda: filters.get({"class_name": "Nothing", "config": {}}), "cannot be restored"),
        (lambda: Jacobi(2, -1.0, -1.0), "divides by zero at degree 2"),
        (lambda: Jacobi(3, -1.5, -1.5), "divides by zero at degree 3"),
        (lambda: Jacobi(2, -1.5, -1.5, start="twicing"), "P_2 of this basis has no A"),
        (
            lambda: Monomial(2, initial_coefficients=[1.0, [1.0, 2.0], [1.0, 2.0, 3.0]]),
            "one number, or one for each head",
        ),
        (lambda: Jacobi(1, alpha=float("nan")), "`alpha` must be a finite number"),
        (lambda: Jacobi(1, beta="1"), "`beta` must be a finite number"),
        (lambda: Jacobi(1, -1.0, -1.0), "P_1 of this basis is a constant"),
        (lambda: FirstOrder(trainable_coefficients=["quadratic"]), r"names from \['identity'"),
        (lambda: FirstOrder(trainable_coefficients="power"), "`trainable_coefficients`"),
        (lambda: Jacobi(trainable_coefficients=["power"]), "must be True or False. Received"),
        (lambda: FirstOrder(initial_coefficients={"square": 1.0}), "must be a dictionary"),
        (lambda: FirstOrder(initial_coefficients=[0.0, 1.0, 0.0]), "must be a dictionary"),
        (lambda: FirstOrder(initial_coefficients={"power": float("nan")}), "finite number"),
        (lambda: FirstOrder(initial_coefficients={"power": "one"}), "finite number"),
        (lambda: Jacobi(initial_coefficients=[1.0]), "list of 4 entries"),
        (lambda: Jacobi(initial_coefficients={"power": 1.0}), "list of 4 entries"),
        (lambda: Jacobi(1, initial_coefficients=[1.0, [1.0, 2.0]]).coefficients(3), "3 heads"),
        (lambda: filters.get("inverted", order=2), "filter of order 1"),
        (lambda: PageRank(restart=0.0), "`restart` must be a finite number above 0 and below 1"),
        (lambda: PageRank(start="high_pass"), "`start` must be one of"),
        (lambda: FirstOrder(start="sharp"), "`start` must be one of"),
        (
            lambda: FirstOrder(start="high_pass", initial_coefficients={"identity": 1.0}),
            "give only one of the two",
        ),
        (lambda: Resolvent(bound=1.0), "`bound` must be a finite number above 0 and below 1"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is outside")
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
