import pickle

import keras
import numpy as np
import pytest

from keras_graphattn.analysis import inspect_smoothing
from keras_graphattn.analysis.smoothing.inspection import LayerFigures, Pass, attention_layers
from keras_graphattn.keras_internals import walk
from tests.analysis.smoothing.models import MapAttention, attention, figures_of, stack

random = np.random.default_rng(2)
TOKENS = random.normal(size=(5, 4, 8)).astype("float32")


class Batches(keras.utils.PyDataset):
    num_batches = 3

    def __getitem__(self, index):
        part = TOKENS[2 * index : 2 * index + 2]
        return part, np.zeros((len(part), 1))


def one_layer(*layers):
    return stack(*(layers or [attention("plain")]))


@pytest.mark.slow_on("jax")
def test_data_come_in_every_form():
    model = one_layer()
    expected = figures_of(inspect_smoothing(model, TOKENS))
    for data in (
        (TOKENS, np.zeros((5, 1))),
        TOKENS.astype("float64"),
        Batches(),
        (TOKENS[start : start + 2] for start in (0, 2, 4)),
        keras.ops.convert_to_tensor(TOKENS),
    ):
        figures = figures_of(inspect_smoothing(model, data))
        assert figures.keys() == expected.keys()
        for name, value in figures.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.slow_on("jax")
def test_several_inputs_are_a_list_or_a_dictionary():
    inputs = [keras.Input((4, 8), name="a"), keras.Input((4, 8), name="b")]
    model = keras.Model(inputs, attention("graph_filter")(keras.layers.Add()(inputs)))
    report = inspect_smoothing(model, [TOKENS, TOKENS], batch_size=2)
    other = inspect_smoothing(model, {"a": TOKENS, "b": TOKENS}, batch_size=2)
    assert (report.sequences, other.sequences) == (5, 5)
    assert report.layers[0].block == report.layers[0].after  # which is the model's output
    assert report.layers[0].after.cosine == pytest.approx(other.layers[0].after.cosine)


def test_a_layer_that_is_called_twice_has_two_entries():
    shared, inputs = attention("plain", name="shared"), keras.Input((4, 8))
    once = shared(inputs, inputs)
    report = inspect_smoothing(keras.Model(inputs, shared(once, once)), TOKENS)
    assert [layer.path for layer in report.layers] == ["shared", "shared (2)"]
    assert report.layers[0].after.cosine == pytest.approx(report.layers[1].before.cosine)


class OddAttention(keras.layers.Layer):
    def call(self, x):
        return x + keras.ops.mean(x, axis=1, keepdims=True)


class SquaredAttention(keras.layers.MultiHeadAttention):
    """Its outputs are not a matrix times its values."""

    def _compute_attention(self, query, key, value, *args, **kwargs):
        return keras.ops.square(value) + query, None


def test_what_cannot_be_probed_is_named():
    odd, squared = OddAttention(name="odd"), SquaredAttention(2, 4, name="squared")
    inputs = keras.Input((4, 8))
    x = odd(inputs)
    x = squared(x, x)
    other = keras.layers.Dense(8)(inputs)
    x = attention("plain", name="across")(x, other)
    maps = MapAttention(name="map")(keras.layers.Reshape((2, 2, 8))(x))
    model = keras.Model(inputs, maps)
    report = inspect_smoothing(model, TOKENS)
    reasons = {layer.path: layer.reason for layer in report.layers}
    assert "OddAttention has no `_compute_attention" in reasons["odd"]
    assert "not the product of one matrix" in reasons["squared"]
    assert "other tokens than those of its queries" in reasons["across"]
    assert report.not_measured == {"map": "MapAttention got no tokens of the shape (B, T, d)"}
    assert all(layer.heads is None and layer.before is not None for layer in report.layers)
    for path, reason in {**reasons, **report.not_measured}.items():
        assert f"not measured at '{path}': {reason}" in str(report)


class Failing(keras.layers.Layer):
    fails = False

    def call(self, x):
        if self.fails:
            raise RuntimeError("no")
        return x


@pytest.mark.parametrize("kind", ["plain", "graph_filter"])
def test_an_error_leaves_the_model_as_it_was(kind, monkeypatch):
    model = one_layer(attention(kind), Failing())
    model(TOKENS)
    before = [dict(vars(layer)) for layer in walk(model)]
    monkeypatch.setattr(Failing, "fails", True)
    with pytest.raises(RuntimeError, match="no"):
        inspect_smoothing(model, TOKENS)
    after = [dict(vars(layer)) for layer in walk(model)]
    assert [set(body) for body in before] == [set(body) for body in after]
    for body, other in zip(before, after, strict=True):
        assert all(other[name] is value for name, value in body.items() if callable(value))
        assert other.get("filter") is body.get("filter")


def test_what_is_refused():
    with pytest.raises(ValueError, match="no attention layers"):
        inspect_smoothing(one_layer(keras.layers.Dense(2)), TOKENS)
    with pytest.raises(ValueError, match="preprocessor"):
        inspect_smoothing(one_layer(), np.array(["a text"]))
    with pytest.raises(ValueError, match="at least one batch"):
        inspect_smoothing(one_layer(), iter([]))
    for name in ("batch_size", "max_sequences", "max_tokens"):
        with pytest.raises(ValueError, match=name):
            inspect_smoothing(one_layer(), TOKENS, **{name: 0})


def _size_after(batches):
    model = one_layer(attention("graph_filter"), attention("plain"))
    tokens = random.normal(size=(2, 4, 8)).astype("float32")
    layers, all_figures = attention_layers(model, tokens), {}
    for number in range(batches):
        one = Pass(model, layers, 2 * (number < 3), 8)
        one.run(tokens)
        for call in one.calls:
            all_figures.setdefault(call.path, LayerFigures(call)).add(call, 2 * (number < 3))
    kept = [{k: v for k, v in vars(x).items() if k != "layer"} for x in all_figures.values()]
    return len(pickle.dumps(kept))


def test_what_is_kept_does_not_grow_with_the_batches():
    assert abs(_size_after(25) - _size_after(4)) < 200  # integers may take a byte more
