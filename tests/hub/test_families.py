"""Families: what becomes of attention of other packages' classes, Llama's and one's own."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_graphattn
from keras_graphattn.hub import reach, register_attention, register_family
from keras_graphattn.hub.decoders import RotaryDecoder
from keras_graphattn.hub.families import (
    FAMILIES,
    AttentionFamily,
    ConvertedAttention,
    ConvertedGraphFilter,
    ConvertedPLaplacian,
    Spelling,
    row_of,
    view,
)
from keras_graphattn.hub.slots import attention_slots
from keras_graphattn.hub.stock import StockAttention
from tests.hub import families as every_backbone
from tests.hub.containers import SERIES, answers
from tests.hub.families import converted
from tests.hub.models import BACKBONES, moved


def attention_of(backbone, index=0):
    return backbone.transformer_layers[index]._self_attention_layer


def variables(model):
    return {v.path: v for v in model.weights}


def test_a_failure_at_the_last_layer_takes_the_first_ones_back(monkeypatch):
    backbone = BACKBONES["llama"]()
    before, plain = variables(backbone), type(attention_of(backbone))
    last = attention_of(backbone, 1)
    start = ConvertedGraphFilter.start

    def fails(self, *arguments):
        start(self, *arguments)
        if self is last:
            raise MemoryError

    monkeypatch.setattr(ConvertedGraphFilter, "start", fails)
    with pytest.raises(MemoryError):
        keras_graphattn.convert(backbone)
    assert variables(backbone) == before
    assert {type(attention_of(backbone, i)) for i in (0, 1)} == {plain}
    monkeypatch.undo()
    keras_graphattn.convert(backbone)
    assert len(variables(backbone)) == len(before) + 6


def test_a_converted_layer_is_not_made_from_its_configuration():
    layer = attention_of(converted("llama"))
    config = layer.get_config()
    assert config["order"] == 4
    with pytest.raises(ValueError, match=r"made by keras_graphattn.convert.*LlamaAttention only"):
        type(layer).from_config(config)


# Attention of one's own, of a class that nothing in this package or in KerasHub knows.


class FusedAttention(keras.layers.Layer):
    """One projection of all three; heads first; no `get_config`."""

    def __init__(self, heads, **kwargs):
        super().__init__(**kwargs)
        self.heads = heads
        self.projection = keras.layers.Dense(24, name="projection")
        self.back = keras.layers.Dense(8, name="back")

    def build(self, shape):
        self.projection.build(shape)
        self.back.build((*shape[:-1], 8))

    def mix(self, query, key, value):
        scores = ops.einsum("bnth,bnsh->bnts", query, key) / 2.0
        return ops.einsum("bnts,bnsh->bnth", ops.softmax(scores), value)

    def call(self, x):
        heads = ops.reshape(self.projection(x), (*ops.shape(x)[:2], 3, self.heads, 4))
        query, key, value = (ops.transpose(heads[:, :, i], (0, 2, 1, 3)) for i in range(3))
        mixed = ops.transpose(self.mix(query, key, value), (0, 2, 1, 3))
        return self.back(ops.reshape(mixed, ops.shape(x)))


class FusedFamily(AttentionFamily):
    spelling = Spelling(
        *("projection", "projection", "projection", "back"), num_heads="heads", key_dim="size"
    )
    size = 4

    def mix(self, query, key, value):
        tokens_first = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
        return ops.transpose(self.attend(*tokens_first), (0, 2, 1, 3))


@keras.saving.register_keras_serializable(package="family_tests")
class FusedBlock(keras.layers.Layer):
    def build(self, shape):
        self.mixer = FusedAttention(2, name="mixer")
        self.mixer.build(shape)

    def call(self, x):
        return x + self.mixer(x)


@pytest.fixture
def _fused():
    register_family(FusedFamily, "FusedAttention", {})
    reach(FusedBlock)
    yield
    del FAMILIES[-1]


@pytest.mark.slow_on("jax")
@pytest.mark.usefixtures("_fused")
def test_register_attention_works_for_any_layer_of_a_family(tmp_path):
    x = keras.Input((5, 8))
    model = keras.Model(x, keras.layers.Dense(1)(FusedBlock(name="block")(x)))
    with pytest.raises(ValueError, match="cannot take the place of FusedAttention"):
        keras_graphattn.convert(model)
    register_attention("graph_filter", "FusedAttention", ConvertedGraphFilter)
    before = answers(model, SERIES)[0]
    keras_graphattn.convert(model, order=4)
    assert [row.class_name for row in keras_graphattn.inspect(model)] == [
        "FusedGraphFilterAttention"
    ]
    np.testing.assert_allclose(answers(model, SERIES)[0], before, atol=1e-6)
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(SERIES, np.ones((2, 5, 1)), verbose=0)
    expected = answers(moved(model), SERIES)[0]
    assert np.abs(expected - before).max() > 1e-3
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(answers(loaded, SERIES)[0], expected, atol=1e-6)
    mixer = keras_graphattn.revert(loaded).get_layer("block").mixer
    assert type(mixer) is FusedAttention


@pytest.mark.usefixtures("_fused")
def test_a_class_of_the_same_name_elsewhere_is_none_of_llamas():
    other = type("LlamaAttention", (FusedAttention,), {})
    assert row_of(other(2)) is None
    assert isinstance(view(attention_of(BACKBONES["llama"]())), RotaryDecoder)


OVERRIDDEN = {"from_config", "get_config"}  # Keras describes a layer by them


@pytest.mark.slow_on("jax", "tensorflow")
def test_no_name_of_ours_is_one_of_theirs():
    bases = (AttentionFamily, ConvertedAttention, ConvertedGraphFilter, ConvertedPLaplacian)
    ours = {name for base in bases for name in vars(base) if not name.startswith("__")}
    for name in every_backbone.FAMILIES:
        for slot in attention_slots(every_backbone.family(name).make()):
            if not isinstance(view(slot.layer), StockAttention):
                theirs = {*dir(type(slot.layer)), *vars(slot.layer)}
                assert ours & theirs <= OVERRIDDEN, name
