"""Batches of constant shapes, in an order of the seed and the epoch."""

import argparse

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.common.command.parsing import UsageError
from recipes.common.data.batches import Batches, Buckets, Windows, bucket_lengths, in_turn
from recipes.common.data.ragged import Ragged, Split, majority_level
from recipes.common.training.runs import for_keras


def batches_of(count, size, seed=None):
    numbers = np.arange(2.0 * count, dtype="float32").reshape(count, 2)
    return Batches({"x": numbers}, np.arange(count), size, seed)


def test_every_example_counts_once_in_batches_of_constant_shape():
    for seed in (None, 3):
        batches = batches_of(10, 4, seed)
        assert batches.num_batches == 3
        seen = []
        for inputs, labels, weights in map(batches.__getitem__, range(3)):
            assert inputs["x"].shape == (4, 2)
            assert labels.shape == weights.shape == (4,)
            np.testing.assert_array_equal(inputs["x"][:, 0], 2 * labels)
            seen += labels[weights > 0].tolist()
        assert sorted(seen) == list(range(10))


def test_a_batch_larger_than_the_data_is_filled_up():
    inputs, labels, weights = batches_of(3, 8)[0]
    assert inputs["x"].shape == (8, 2)
    np.testing.assert_array_equal(weights, np.float32([8 / 3] * 3 + [0] * 5))  # of mean 1
    np.testing.assert_array_equal(labels[:3], [0, 1, 2])


def sequences(count=50, longest=200):
    random = np.random.default_rng(0)
    lengths = random.integers(5, longest + 1, count)
    tokens = Ragged.of([random.integers(1, 99, size=n).astype("uint8") for n in lengths])
    return Split({"tokens": tokens}, np.arange(count, dtype="int32"))


def order_of_batches(seed, epoch):
    batches = batches_of(50, 4, seed)
    batches.start_epoch(epoch)
    return tuple(batches.order)


def order_of_buckets(seed, epoch):
    batches = Buckets(sequences(), [96, 200], 4, seed)
    batches.start_epoch(epoch)
    return tuple(tuple(members) for _, members in batches.batches)


def test_order_is_a_function_of_seed_and_epoch():
    for order in (order_of_batches, order_of_buckets):
        assert order(1, 2) == order(1, 2)
        assert len({order(1, 2), order(1, 3), order(2, 2), order(None, 0)}) == 4
        assert order(None, 0) == order(None, 5)


def test_fit_takes_the_order_of_each_epoch():
    def made():
        x = keras.Input((2,), name="x")
        model = keras.Model({"x": x}, keras.layers.Dense(1, kernel_initializer="ones")(x))
        model.compile(keras.optimizers.SGD(1e-4), keras.losses.MeanSquaredError("sum"))
        return model, batches_of(10, 4, seed=5)

    (fitted, batches), (expected, reference) = made(), made()
    start = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: batches.start_epoch(epoch)
    )
    passed = for_keras(batches, argparse.Namespace(distribute=False))
    fitted.fit(passed, epochs=3, callbacks=[start], shuffle=False, verbose=0)
    for epoch in range(3):
        reference.start_epoch(epoch)
        for batch in map(reference.__getitem__, range(3)):
            expected.train_on_batch(*batch)
    for actual, wanted in zip(fitted.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5)


def test_every_sequence_counts_once_in_the_least_bucket_that_holds_it():
    split = sequences()
    lengths = bucket_lengths(split.lengths, 200)
    assert len(lengths) == 4
    assert lengths[-1] == 200
    assert bucket_lengths(np.full(10, 1024), 1024) == [1024]
    for seed in (None, 3):
        batches = Buckets(split, lengths, 8, seed)
        assert batches.batches[0][0] != batches.batches[1][0]  # TensorFlow learns sizes there
        seen = []
        for inputs, labels, weights in map(batches.__getitem__, range(batches.num_batches)):
            tokens = inputs["tokens"]
            assert tokens.shape[0] == len(labels) == len(weights) == 8
            for row, label in zip(tokens[weights > 0], labels[weights > 0], strict=True):
                own = split.tokens["tokens"][label]
                np.testing.assert_array_equal(row[: len(own)], own)
                assert not row[len(own) :].any()
                assert len(row) == min(one for one in lengths if one >= len(own))
            seen += labels[weights > 0].tolist()
        assert sorted(seen) == list(range(50))
    assert batches.padding_share() < Buckets(split, [200], 8).padding_share()


@pytest.mark.parametrize("steps", [2, 5, 13, 40])
def test_epochs_of_a_number_of_steps_go_on_through_the_data(steps):
    batches = Buckets(sequences(), [96, 200], 4, 1, steps)
    size = len(batches.one_pass(0))
    assert batches.batches[0][0] != batches.batches[1][0]
    seen = []
    for epoch in range(-(-3 * size // steps)):
        batches.start_epoch(epoch)
        assert batches.num_batches == steps
        seen += batches.batches
    for number in range(3):
        expected = batches.one_pass(number)
        for actual, wanted in zip(seen[number * size :], expected, strict=False):
            assert actual[0] == wanted[0]
            np.testing.assert_array_equal(actual[1], wanted[1])
    assert batches.padding_share() == Buckets(sequences(), [96, 200], 4).padding_share()


def test_majority_level_is_the_best_constant_answer():
    labels = np.array([0, 0, 0, 1])
    level = majority_level(labels)
    assert level["accuracy"] == 0.75
    losses = [-np.log(np.where(labels == 0, p, 1 - p)).mean() for p in np.linspace(0.01, 0.99, 99)]
    assert min(losses) >= level["cross_entropy"]
    np.testing.assert_allclose(min(losses), level["cross_entropy"], atol=1e-9)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only TensorFlow tunes")
@pytest.mark.parametrize("kind", ["arrays", "buckets", "steps"])
def test_tensorflow_does_not_tune_batches(kind):
    # the thread that tunes sleeps for up to seconds, and the end of an epoch waits for it
    batches = batches_of(10, 4) if kind == "arrays" else Buckets(sequences(), [96, 200], 4, seed=0)
    if kind == "steps":
        batches = Buckets(sequences(), [96, 200], 4, seed=0, steps_per_epoch=2)
    data = for_keras(batches, argparse.Namespace(distribute=False))
    assert data.options().autotune.enabled is False
    assert len(data) == batches.num_batches
    for epoch in range(2):
        batches.start_epoch(epoch)
        arrays = in_turn(batches)
        for actual, expected in zip(in_turn(data), arrays, strict=True):
            keras.tree.map_structure(np.testing.assert_array_equal, actual, expected)


@given(
    length=st.integers(3, 40),
    context=st.integers(2, 12),
    stride=st.integers(1, 12),
    batch_size=st.integers(1, 5),
)
def test_every_token_but_the_first_is_counted_once(length, context, stride, batch_size):
    tokens = np.arange(100, 100 + length)
    stride = min(stride, context)
    if length <= context:
        with pytest.raises(UsageError, match=f"has {length} tokens"):
            Windows(tokens, context, batch_size, stride)
        return
    windows = Windows(tokens, context, batch_size, stride)
    seen = []
    for index in range(windows.num_batches):
        inputs, targets, weights = windows[index]
        assert targets.shape == weights.shape == (batch_size, context)
        np.testing.assert_array_equal(inputs["token_ids"] + 1, targets)
        for row in range(batch_size):
            counted = np.flatnonzero(weights[row])
            seen += targets[row, counted].tolist()
            if len(counted) and inputs["token_ids"][row, 0] != 100:  # not the first window
                assert counted[0] >= context - stride
    assert seen == tokens[1:].tolist()
    assert len(seen) == windows.num_predictions


def test_windows_are_shuffled_by_seed_and_epoch():
    windows = Windows(np.arange(101), 5, 4, seed=3)

    def starts(epoch):
        windows.start_epoch(epoch)
        taken = [windows[index] for index in range(windows.num_batches)]
        return np.concatenate([batch[0]["token_ids"][:, 0] for batch in taken])

    first, second = starts(0), starts(1)
    assert sorted(first) == list(range(0, 100, 5)) == sorted(second)
    assert first.tolist() != second.tolist()
    np.testing.assert_array_equal(starts(0), first)
