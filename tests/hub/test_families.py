"""Families: what becomes of attention of other packages' classes, Llama's and one's own."""

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

import keras_graphattn
from keras_graphattn.filters import Chebyshev
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
from tests.hub.containers import SERIES, answers, moved
from tests.hub.models import (
    BACKBONES,
    assert_equal_outputs,
    fit_one_step,
    outputs,
    random_backbone,
    random_inputs,
)

COEFFICIENT = "transformer_layer_0/self_attention/power_coefficient"


def converted(**options):
    keras.utils.set_random_seed(0)
    backbone = random_backbone("llama")
    return moved(keras_graphattn.convert(backbone, "graph_filter", **{"order": 4, **options}))


def attention_of(backbone, index=0):
    return backbone.transformer_layers[index]._self_attention_layer


def variables(model):
    return {v.path: v for v in model.weights}


def array(x):
    return np.asarray(ops.convert_to_numpy(x), "float64")


@pytest.mark.slow_on("jax", "tensorflow")
def test_sizes_of_every_backbones_attention():
    for name in BACKBONES:
        for site in attention_slots(BACKBONES[name]()):
            shown = view(site.layer)
            sizes, found = shown.head_sizes(), shown.projection_layers()
            assert (sizes.num_heads, sizes.key_dim) == ((4, 4) if "llama" in name else (2, 4))
            assert sizes.groups == (2 if "llama" in name else 1)
            assert sizes.scale == pytest.approx(0.5)
            assert {"query", "key", "value", "attention_output"} <= set(found)
            causal = name in ("gpt2", "opt", "llama", "llama3") or "decoder" in site.path
            causal = causal or (name == "clip" and "text" in site.path)
            assert shown.sees_past_only(site.parent) is causal, site.path


def test_the_layer_stays_the_very_same():
    backbone = BACKBONES["llama"]()
    before, layers = variables(backbone), [attention_of(backbone, i) for i in (0, 1)]
    plain = type(layers[0])
    keras_graphattn.convert(backbone)
    after = variables(backbone)
    assert [attention_of(backbone, i) for i in (0, 1)] == layers
    assert all(isinstance(layer, plain) for layer in layers)
    assert all(after[path] is variable for path, variable in before.items())
    added = sorted(after.keys() - before.keys())
    assert len(added) == 6
    assert COEFFICIENT in added
    rows = keras_graphattn.inspect(backbone)
    assert [row.class_name for row in rows] == ["LlamaGraphFilterAttention"] * 2
    assert [row.parameters_added for row in rows] == [12, 12]
    assert [row.coefficient_learning_rate_multiplier for row in rows] == [100.0] * 2
    held = set(vars(layers[0]))
    keras_graphattn.revert(backbone)
    assert {v.path for v in backbone.weights} == before.keys()
    assert {type(layer) for layer in layers} == {plain}
    assert held - set(vars(layers[0])) >= {"power_coefficient", "settings", "converted_from"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "agf"}, "'attentive_graph_filter' cannot take the place of LlamaAttention"),
        ({"attention": "masked_kernel"}, r"Expected one of \['graph_filter', 'p_laplacian'\]"),
        ({"dropout": 0.1}, "out of.*'filter', 'order'.*dropout=0.1"),
        ({"dropout_on": "filter"}, "LlamaAttention keeps its own settings"),
        ({"attention": "p_laplacian", "p": [1.5, 2.5]}, "4 heads"),
        ({"attention": "p_laplacian", "epsilon": 0}, "epsilon"),
        ({"attention_path": "flash"}, "attention_path"),
        ({"block_size": 0}, "block_size"),
        ({"coefficient_learning_rate_multiplier": 0}, "multiplier"),
        ({"filter": Chebyshev(1, initial_coefficients=[0.0, [1.0, 2.0]])}, "4 heads"),
    ],
)
def test_refuses_options_and_leaves_the_model_alone(options, message):
    backbone = BACKBONES["llama"]()
    before, kept = variables(backbone), type(attention_of(backbone))
    with pytest.raises(ValueError, match=message):
        keras_graphattn.convert(backbone, **options)
    assert type(backbone) is keras_hub.models.LlamaBackbone
    assert type(attention_of(backbone)) is kept
    assert variables(backbone) == before


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


@pytest.mark.parametrize("path", ["blockwise", "fused"])
def test_paths_change_no_number(path):
    backbone = converted()
    inputs = random_inputs(backbone)
    expected = outputs(backbone, inputs)
    other = converted(attention_path=path, block_size=3)
    assert_equal_outputs(outputs(other, inputs), expected, tolerance=1e-5)


def test_padding_on_the_left_changes_nothing():
    """Rotary embedding sees distances between tokens only."""
    backbone = converted()
    inputs = random_inputs(backbone, 5, real=[5, 5])
    left = {
        name: np.pad(value, [[0, 0], [3, 0]], constant_values=int(name == "token_ids"))
        for name, value in inputs.items()
    }
    (short,), (long,) = outputs(backbone, inputs), outputs(backbone, left)
    np.testing.assert_allclose(long[:, 3:], short, atol=1e-5 * np.abs(short).max())


@pytest.mark.slow_on("jax")
def test_two_attentions_in_one_model_last(tmp_path):
    backbone = random_backbone("llama")
    inputs = random_inputs(backbone)
    before = outputs(backbone, inputs)
    keras_graphattn.convert(backbone, "graph_filter", where="even", filter="chebyshev", order=2)
    keras_graphattn.convert(backbone, "p_laplacian", where="odd", p=[1.5, 2.0, 2.5, 3.0])
    expected = outputs(moved(backbone), inputs)
    backbone.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert str(keras_graphattn.inspect(loaded)) == str(keras_graphattn.inspect(backbone))
    assert_equal_outputs(outputs(loaded, inputs), expected)
    assert_equal_outputs(outputs(keras_graphattn.revert(loaded), inputs), before)


def test_a_preset_of_a_task_decodes_as_before(tmp_path):
    task = keras_hub.models.LlamaCausalLM(converted())
    task.save_to_preset(str(tmp_path))
    loaded = keras_hub.models.CausalLM.from_preset(str(tmp_path), preprocessor=None)
    assert type(loaded).__name__ == "GraphAttentionLlamaCausalLM"
    assert type(loaded) is type(task) or isinstance(loaded, keras_hub.models.LlamaCausalLM)
    inputs = {"token_ids": np.array([[3, 4, 5, 0, 0, 0]]), "padding_mask": np.arange(6)[None] < 3}
    found = []
    for each in (task, loaded):
        each.compile(sampler="greedy", run_eagerly=keras.backend.backend() == "tensorflow")
        given = {name: value.copy() for name, value in inputs.items()}
        found.append(array(each.generate(given, stop_token_ids=None)["token_ids"]))
    np.testing.assert_array_equal(*found)


@pytest.mark.slow_on("jax")
def test_lora_before_and_after_the_conversion():
    before, after = random_backbone("llama"), converted()
    before.enable_lora(2)
    keras_graphattn.convert(before, order=4)
    after.enable_lora(2)
    for backbone in (before, after):
        trained = {v.path for v in backbone.trainable_variables}
        assert COEFFICIENT in trained
        assert any("lora" in path for path in trained)
        assert "transformer_layer_0/self_attention/query/kernel" not in trained
        old = array(variables(backbone)[COEFFICIENT])
        fit_one_step(backbone, random_inputs(backbone))
        assert np.abs(array(variables(backbone)[COEFFICIENT]) - old).max() > 1e-5


def test_a_frozen_model_stays_frozen():
    backbone = BACKBONES["llama"]()
    backbone.trainable = False
    keras_graphattn.convert(backbone)
    assert not backbone.trainable_variables
    backbone.trainable = True
    assert COEFFICIENT in {v.path for v in backbone.trainable_variables}


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("quantised_first", [False, True])
def test_int8(quantised_first, tmp_path):
    backbone = random_backbone("llama")
    inputs = random_inputs(backbone)
    exact = outputs(backbone, inputs)
    if quantised_first:
        backbone.quantize("int8")
    keras_graphattn.convert(backbone, order=4)
    if not quantised_first:
        backbone.quantize("int8")
    rounded = outputs(backbone, inputs)
    assert attention_of(backbone)._query_dense.quantization_mode == "int8"
    for new, old in zip(rounded, exact, strict=True):
        assert 0 < np.abs(new - old).max() < 0.2 * np.abs(old).max()
    backbone.save(tmp_path / "int8.keras")
    loaded = keras.saving.load_model(tmp_path / "int8.keras")
    assert_equal_outputs(outputs(loaded, inputs), rounded, tolerance=1e-5)


def test_mixed_bfloat16(tmp_path):
    exact = converted()
    backbone = type(exact).from_config({**exact.get_config(), "dtype": "mixed_bfloat16"})
    exact.save_weights(tmp_path / "model.weights.h5")
    backbone.load_weights(tmp_path / "model.weights.h5")
    assert attention_of(backbone).compute_dtype == "bfloat16"
    assert attention_of(backbone).power_coefficient.dtype == "float32"
    inputs = random_inputs(backbone)
    for new, old in zip(outputs(backbone, inputs), outputs(exact, inputs), strict=True):
        assert np.abs(new - old).max() < 0.1 * np.abs(old).max()


def test_a_converted_layer_is_not_made_from_its_configuration():
    layer = attention_of(converted())
    config = layer.get_config()
    assert config["order"] == 4
    with pytest.raises(ValueError, match=r"made by keras_graphattn.convert.*LlamaAttention only"):
        type(layer).from_config(config)


def test_refuses_what_a_converted_layer_cannot_do():
    layer, x = attention_of(converted()), ops.ones((1, 1, 16))
    with pytest.raises(ValueError, match="cache_update_index"):
        layer(x, cache=ops.zeros((1, 4, 4, 2, 4)))


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
