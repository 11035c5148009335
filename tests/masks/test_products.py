"""Products, low-rank masks and given entries equal the product of their matrices."""

import keras
import numpy as np
import pytest
import torch

from keras_graphattn.masks import (
    Causal,
    Entries,
    Exponential,
    LowRank,
    Mask,
    Product,
    Segments,
    StochasticPositions,
)
from tests import reference_kernel as reference
from tests.masks.test_chunked_masks import HEADS, WIDTH, random_ids, signals, with_weights
from tests.numerics import (
    assert_all_close,
    assert_close,
    randomise,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

LENGTH = 70
IDS = random_ids(LENGTH)


class Positive(Mask):
    """A factor with its own path and its own causal form: M[i, j] = a + [i = j]."""

    paths = ("dense", "blockwise", "sum")

    def build(self, input_shape):
        super().build(input_shape)
        self.level = self.add_weight(name="level", shape=(self.num_heads,), initializer="ones")

    def parameters(self):
        return {"level": self.level + 0.0}

    def _rows(self, positions, length, parameters, inputs):
        eye = keras.ops.cast(positions[:, None] == keras.ops.arange(length)[None], "float32")
        return (parameters["level"][:, None, None] + eye)[None]

    def _signal(self, x, path, parameters, inputs):
        return parameters["level"][:, None] * keras.ops.sum(x, axis=1, keepdims=True) + x

    def _causal_signal(self, x, path, parameters, inputs):
        return parameters["level"][:, None] * keras.ops.cumsum(x, axis=1) + x


def exponentials(weights, name):
    return reference.exponential_matrix(
        LENGTH, weights[f"{name}/log_rates"], weights.get(f"{name}/log_weights")
    )


def low_rank(weights, name="low_rank"):
    left, right = (
        torch.exp(weights[f"{name}/log_{side}"][:, :LENGTH]) for side in ("left", "right")
    )
    return (left @ right.transpose(1, 2))[None]


def stochastic(weights, name="stochastic"):
    gains = torch.softmax(torch.nn.functional.pad(weights[f"{name}/gain_logits"], (0, 1)), -1)[
        :, :-1
    ]
    order = torch.arange(LENGTH)
    angles = 2 * np.pi * weights["frequencies"][..., None, None] * (order[:, None] - order[None])
    waves = torch.cos(angles + weights[f"{name}/phases"][..., None, None])
    return 1.0 + (gains[..., None, None] * waves).sum(1)[None]


def positive(weights, name="positive"):
    return (weights[f"{name}/level"][:, None, None] + torch.eye(LENGTH))[None]


CAUSAL = reference.causal_matrix(LENGTH)
RUNS = reference.segment_matrix(torch.tensor(IDS))
PRODUCTS = {
    "causal segments": (lambda: [Causal(), Segments()], lambda w: CAUSAL * RUNS, "chunked"),
    "two exponentials": (
        lambda: [Exponential(2, name="a"), Exponential(name="b"), Segments()],
        lambda w: exponentials(w, "a") * exponentials(w, "b") * RUNS,
        "chunked",
    ),
    "low rank": (
        lambda: [
            LowRank(2, 80, name="low_rank"),
            StochasticPositions(2, name="stochastic", seed=0),
        ],
        lambda w: low_rank(w) * stochastic(w),
        "low_rank",
    ),
    "low rank, causal": (
        lambda: [LowRank(2, 80, name="low_rank"), Causal()],
        lambda w: low_rank(w) * CAUSAL,
        "chunked",
    ),
    "causal form": (
        lambda: [Causal(), Positive(name="positive")],
        lambda w: positive(w) * CAUSAL,
        "sum",
    ),
    "low rank and another": (
        lambda: [Positive(name="positive"), LowRank(2, 80, name="low_rank")],
        lambda w: positive(w) * low_rank(w),
        "sum",
    ),
    "nothing faster": (
        lambda: [Segments(), Positive(name="positive")],
        lambda w: RUNS * positive(w),
        "blockwise",
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_on_all_paths(name):
    make, matrix, own = PRODUCTS[name]
    mask = Product(make(), name="product")
    assert mask.paths[-1] == own
    mask.build((None, None, HEADS, WIDTH))
    randomise(mask)
    inputs = {"segment_ids": IDS} if mask.inputs_at_call else {}
    query, key, x = signals(LENGTH)
    names = [v.path.split("product/")[1] for v in mask.trainable_variables]
    fixed = {v.path.split("/")[-1]: torch.tensor(to_numpy(v)) for v in mask.non_trainable_variables}
    weights = [to_numpy(v) for v in mask.trainable_variables]

    def naive(query, key, x, *weights):
        full = matrix({**dict(zip(names, weights, strict=True)), **fixed})
        return reference.unnormalised(query, key, x, full.expand(2, HEADS, LENGTH, LENGTH))

    arrays = (query, key, x, *weights)
    expected, expected_gradients = reference_value_and_gradients(naive, *arrays)
    for path in dict.fromkeys([own, "dense"]):
        chunk = 2 if path == "sum" else None
        fast = with_weights(mask, lambda q, k, x: mask.attend(q, k, x, path, chunk, **inputs))  # noqa: B023
        value, gradients = value_and_gradients(fast, *arrays)
        assert_close(value, expected, 1e-5)
        assert_all_close(gradients, expected_gradients, 3e-5)
    signal = to_numpy(mask.apply(x, **inputs))
    by_matrix = np.einsum(
        "bnts,bsnd->btnd",
        np.broadcast_to(to_numpy(mask.dense(LENGTH, **inputs)), (2, HEADS, LENGTH, LENGTH)),
        x,
    )
    assert_close(signal, by_matrix, 1e-5)


def test_products_of_products_and_causality():
    mask = Product([Product([Causal(), Segments()]), Exponential(2)])
    assert [type(m).__name__ for m in mask.masks] == ["Causal", "Segments", "Exponential"]
    assert mask.is_causal
    assert mask.has_state
    assert mask.num_decays == 2
    assert not Product([Causal(), LowRank(1, 4)]).has_state
    assert not Product([Segments(), Exponential()]).is_causal


@pytest.mark.parametrize(
    "mask",
    [
        Causal(),
        Segments(),
        Entries(),
        Exponential(3, causal=True, initial_rates=[0.1, 0.2, 0.3]),
        LowRank(2, 12),
        StochasticPositions(3, trainable_frequencies=True, seed=4),
        Product([Causal(), Product([Segments(), Exponential(2)])]),
    ],
    ids=lambda mask: mask.name,
)
def test_serialisation(mask):
    restored = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(mask))
    assert type(restored) is type(mask)
    assert restored.get_config() == mask.get_config()


def test_stochastic_positions_are_not_negative_and_reach_any_length():
    mask = StochasticPositions(8, seed=1)
    mask.build((None, None, HEADS, WIDTH))
    randomise(mask, scale=3.0)
    matrix = to_numpy(mask.dense(500))
    assert (matrix >= -1e-5).all()
    lags = matrix[0, :, 100:200, 50:150]
    np.testing.assert_allclose(lags, matrix[0, :, 300:400, 250:350], atol=1e-3)


def test_rows_are_rows_of_the_matrix():
    for mask, inputs in (
        (Causal(), {}),
        (Segments(), {"segment_ids": IDS}),
        (Exponential(2), {}),
        (LowRank(2, 80), {}),
        (Product([Causal(), Segments()]), {"segment_ids": IDS}),
        (Entries(), {"entries": np.random.default_rng(0).random((LENGTH, LENGTH)) < 0.5}),
    ):
        mask.build((None, None, HEADS, WIDTH))
        rows = to_numpy(mask.rows([3, 69, 0], LENGTH, **inputs))
        matrix = to_numpy(mask.dense(LENGTH, **inputs))
        np.testing.assert_allclose(rows, matrix[:, :, [3, 69, 0]], rtol=1e-6)


def test_refusals():
    x = signals(5)[2]
    for function, message in (
        (lambda: Product([Causal()]), "two or more masks"),
        (lambda: Product([Causal(), "casual"]), "Did you mean 'causal'"),
        (lambda: Product([Segments(), Segments()]), "same name"),
        (lambda: Exponential(0), "`num_decays`"),
        (lambda: Exponential(initial_rates=-1.0), "`initial_rates`"),
        (lambda: Exponential(2, initial_rates=[1.0, 2.0, 3.0]).apply(x), "must broadcast"),
        (lambda: LowRank(0, 3), "`rank`"),
        (lambda: LowRank(2, 4).apply(x), r"4 positions.*Received"),
        (lambda: StochasticPositions(0), "`num_frequencies`"),
        (lambda: Causal().apply(x, "fft"), r"`path`.*Received"),
        (lambda: Causal().apply(x, segment_ids=IDS), r"needs the tensors \[\]"),
        (lambda: Segments().apply(x), r"needs the tensors \['segment_ids'\]"),
        (lambda: Causal().apply(x[0]), r"`x` must have shape \(B, T, N, D\)"),
        (lambda: Causal().dense(), "any length"),
        (lambda: Exponential().dense(3), "no weights yet"),
        (lambda: Exponential().get_initial_state(1, 2, 3, 4), "not causal"),
        (lambda: Entries().dense(entries=np.ones(3)), "must have shape"),
    ):
        with pytest.raises(ValueError, match=message):
            function()
