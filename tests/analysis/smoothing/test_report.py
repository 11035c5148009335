"""The table, the pictures and the callback, against the figures that they show."""

import csv
import itertools
import os
import sys

import keras
import numpy as np
import pytest

from keras_graphattn.analysis import (
    SmoothingLogger,
    inspect_smoothing,
    plot_attention_maps,
    plot_responses,
    plot_similarity,
)
from keras_graphattn.layers import AttentiveGraphFilter
from tests.analysis.smoothing.models import MapAttention, attention, stack
from tests.numerics import randomise

TOKENS = np.random.default_rng(4).normal(size=(4, 6, 8)).astype("float32")


@pytest.fixture(scope="module")
def report():
    return report_of("graph_filter")


@pytest.fixture(scope="module")
def plain():
    return report_of("plain", depth=3)


def report_of(kind, depth=2):
    layers = [attention(kind, name=f"layer_{number}") for number in range(depth)]
    model = stack(*layers, keras.layers.LayerNormalization(), length=6)
    randomise(model)
    return inspect_smoothing(model, TOKENS)


def test_the_table_has_a_line_for_each_layer(report):
    lines = str(report).splitlines()
    assert lines[0].endswith("4 sequences, the operators and ranks of 4")
    for depth, layer in enumerate(report.layers):
        cells = lines[2 + depth].split()
        assert cells[0] == str(depth)
        assert cells[1:4] == [
            f"{getattr(layer, place).cosine:.3f}" for place in ("before", "after", "block")
        ]
        assert cells[-2] == f"{layer.heads.high_gain():.3f}"
        assert cells[-1] == "GraphFilterAttention"
    assert len({line.index("GraphFilter") for line in lines[2:4]}) == 1  # columns are aligned
    assert max(map(len, lines)) <= 105


def test_a_figure_that_is_unknown_is_a_dash():
    report = inspect_smoothing(stack(AttentiveGraphFilter(2, 4), length=6), TOKENS)
    assert np.isnan(report.layers[0].summary()["attention_high_gain"])
    assert " - " in str(report)


def test_high_gain_is_the_mean_of_the_upper_frequencies(report):
    heads = report.layers[0].heads
    assert heads.frequencies.tolist() == [0, 1 / 6, 2 / 6, 3 / 6]
    assert heads.high_gain() == pytest.approx(heads.operator_fourier[:, 2:].mean())
    assert heads.high_gain("attention") == pytest.approx(heads.attention_fourier[:, 2:].mean())
    assert report.layers[0].summary()["operator_high_gain"] == heads.high_gain()


def lines(axis):
    return [line.get_ydata() for line in axis.get_lines()]


def test_similarity_by_depth(report, plain):
    block, after = lines(plot_similarity(report))
    first = report.layers[0]
    assert list(block[:2]) == [first.before.cosine, first.block.cosine]
    assert after[0] == first.after.cosine
    axis = plot_similarity([report, plain], labels=["filter", "plain"])
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["filter", "plain"]
    assert lines(axis)[1][1] == plain.layers[0].block.cosine


def test_responses_of_each_head(report, plain):
    drawn = lines(plot_responses(report, depth=-1))
    heads = report.layers[1].heads
    np.testing.assert_array_equal(drawn[0], heads.operator_fourier[0])
    np.testing.assert_array_equal(drawn[1], heads.attention_fourier[0])
    assert len(drawn) == 5  # H and A of two heads, and the line at 1
    assert len(lines(plot_responses(plain, depth=0))) == 3  # A and H are the same


def test_maps_before_and_after_the_filter(report):
    figure = plot_attention_maps(report, depth=1, head=1)
    (before,), (after,) = (axis.get_images() for axis in figure.axes[:2])
    heads = report.layers[1].heads
    np.testing.assert_allclose(before.get_array(), heads.attention_map[1])
    np.testing.assert_allclose(after.get_array(), heads.operator_map[1])
    low, high = after.get_clim()
    assert low == -high  # 0 is white
    singular = inspect_smoothing(stack(AttentiveGraphFilter(2, 4), length=6), TOKENS)
    assert len(plot_attention_maps(singular, depth=0).axes[0].get_images()) == 0


def test_what_cannot_be_drawn(report, monkeypatch):
    with pytest.raises(ValueError, match="`depth` must be from -2 to 1"):
        plot_responses(report, depth=2)
    with pytest.raises(ValueError, match="`head` must be from 0 to 1"):
        plot_attention_maps(report, depth=0, head=2)
    with pytest.raises(ValueError, match="`labels`"):
        plot_similarity([report, report], labels=["one"])
    long = inspect_smoothing(stack(attention("plain"), length=6), TOKENS, max_tokens=3)
    for plot in (plot_responses, plot_attention_maps):
        with pytest.raises(ValueError, match="no operators"):
            plot(long, 0)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        plot_similarity(report)


def trained(callback, epochs=4):
    model = stack(attention("graph_filter"), keras.layers.LayerNormalization(), length=6)
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    model.fit(TOKENS, -TOKENS, epochs=epochs, batch_size=4, verbose=0, callbacks=[callback])
    return model


@pytest.mark.slow_on("jax")
def test_the_callback_writes_every_few_epochs(tmp_path):
    path = tmp_path / "new" / "smoothing.csv"
    logger = SmoothingLogger(TOKENS, path, every=2, max_sequences=2)
    model = trained(logger)
    with path.open() as opened:
        rows = list(csv.DictReader(opened))
    assert [(row["epoch"], row["depth"]) for row in rows] == [("2", "0"), ("4", "0")]
    again = inspect_smoothing(model, TOKENS).layers[0]  # the weights after training
    assert float(rows[1]["block_cosine"]) == pytest.approx(again.block.cosine, abs=1e-6)
    assert float(rows[0]["block_cosine"]) != float(rows[1]["block_cosine"])
    assert logger.report.sampled == 2


def test_the_callback_warns_if_it_can_measure_no_layer(tmp_path):
    inputs = keras.Input((6, 8))
    maps = MapAttention(name="maps")(keras.layers.Reshape((2, 3, 8))(inputs))
    model = keras.Model(inputs, keras.layers.Dense(8)(maps))
    model.compile("sgd", "mse", jit_compile=False)
    logger = SmoothingLogger(TOKENS, tmp_path / "x.csv")
    with pytest.warns(UserWarning, match=r"nothing to write to .*x\.csv: 'maps': .* no tokens of"):
        model.fit(TOKENS, TOKENS.reshape(4, 2, 3, 8), verbose=0, callbacks=[logger])
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_the_callback_is_whole_after_an_interrupted_write(tmp_path, monkeypatch):
    path, number, fsync = tmp_path / "smoothing.csv", itertools.count(1), os.fsync

    def interrupted(handle):
        if next(number) == 3:
            raise KeyboardInterrupt
        fsync(handle)

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained(SmoothingLogger(TOKENS, path))
    with path.open() as opened:
        rows = list(csv.DictReader(opened))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert all(map(float, (row["block_cosine"] for row in rows)))
    assert [file.name for file in tmp_path.iterdir()] == ["smoothing.csv"]


def test_training_goes_on_as_without_the_callback(tmp_path):
    weights = []
    for callback in (SmoothingLogger(TOKENS, tmp_path / "x.csv"), keras.callbacks.Callback()):
        keras.utils.set_random_seed(0)
        weights.append(trained(callback, epochs=2).get_weights())
    for actual, expected in zip(*weights, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    ("data", "options", "error"),
    [(iter([TOKENS]), {}, "generator"), (TOKENS, {"every": 0}, "every")],
)
def test_what_the_callback_refuses(tmp_path, data, options, error):
    with pytest.raises(ValueError, match=error):
        SmoothingLogger(data, tmp_path / "x.csv", **options)


def test_the_callback_refuses_other_options_before_training(tmp_path):
    with pytest.raises(TypeError, match="tokens"):
        SmoothingLogger(TOKENS, tmp_path / "x.csv", tokens=3)
