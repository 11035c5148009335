"""convert, inspect and revert: selection, refusals, tasks, layers of models of one's own."""

import keras
import keras_hub
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn.filters import Chebyshev, FirstOrder
from keras_graphattn.hub import reach
from keras_graphattn.hub.saving import is_reachable
from keras_graphattn.hub.verbs import select
from keras_graphattn.layers import GraphFilterAttention
from tests.hub.containers import SERIES, Block, answers, encoder
from tests.hub.models import (
    BACKBONES,
    assert_equal_outputs,
    moved,
    outputs,
    random_backbone,
    random_inputs,
)
from tests.hub.test_refusals import state_of
from tests.numerics import BACKEND, to_numpy

PATHS = [f"layer_{index}/attention" for index in range(5)]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("all", [0, 1, 2, 3, 4]),
        ("even", [0, 2, 4]),
        ("odd", [1, 3]),
        ("first:2", [0, 1]),
        ("last:2", [3, 4]),
        (3, [3]),
        (-1, [4]),
        ([4, 0, -1], [0, 4]),
        (range(2), [0, 1]),
        ([np.int64(1)], [1]),
        ("layer_[13]/", [1, 3]),
    ],
)
def test_where(where, expected):
    assert select(where, PATHS) == expected


@pytest.mark.parametrize(
    "where", ["layer_9", "", [], 5, [-6], "last:6", "last:0", "(", True, [1.5]]
)
def test_where_that_selects_nothing_lists_the_paths(where):
    listed = not isinstance(where, bool) and where != [1.5]
    with pytest.raises(ValueError, match=r"layer_0/attention" if listed else "where=") as error:
        select(where, PATHS)
    assert "where=" in str(error.value)


@pytest.mark.parametrize(
    ("name", "plain", "kind", "added", "layer"),
    [
        ("bert", "MultiHeadAttention", "GraphFilterAttention", 6, "self_attention_layer"),
        ("llama", "LlamaAttention", "LlamaGraphFilterAttention", 12, "self_attention"),
    ],
)
def test_inspect_tells_what_is_where(name, plain, kind, added, layer):
    backbone = keras_graphattn.convert(BACKBONES[name](), "graph_filter", where=-1, order=2)
    rows = keras_graphattn.inspect(backbone)
    assert [row.class_name for row in rows] == [plain, kind]
    assert [row.parameters_added for row in rows] == [0, added]
    assert rows[1].coefficient_learning_rate_multiplier == 100.0
    assert rows[1].path == f"transformer_layer_1/{layer}"
    assert rows[1].path in str(rows)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_two_attentions_in_one_model_and_a_second_conversion_refused(name, tmp_path):
    backbone = random_backbone(name)
    keras_graphattn.convert(backbone, "graph_filter", where="even", order=4)
    keras_graphattn.convert(backbone, "p_laplacian", where="odd", p=1.5)
    with pytest.raises(ValueError, match="converted already"):
        keras_graphattn.convert(backbone, "graph_filter", where=0)
    inputs = random_inputs(backbone)
    expected = outputs(backbone, inputs)
    backbone.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert str(keras_graphattn.inspect(loaded)) == str(keras_graphattn.inspect(backbone))
    assert_equal_outputs(outputs(loaded, inputs), expected)
    loaded = keras_graphattn.revert(loaded)
    assert_equal_outputs(outputs(loaded, inputs), outputs(keras_graphattn.revert(backbone), inputs))


def f_net():
    widths = {"vocabulary_size": 30, "num_layers": 1, "hidden_dim": 8, "intermediate_dim": 8}
    return keras_hub.models.FNetBackbone(**widths)


P_LAPLACIAN = {"attention": "p_laplacian"}
TWO_HEADS = Chebyshev(1, initial_coefficients=[0.0, [1.0, 2.0]])


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (BACKBONES["bert"], {"attention": "softmax"}, "masked_kernel"),
        (BACKBONES["bert"], {"num_heads": 3}, "num_heads=3"),
        (BACKBONES["bert"], {"num_key_value_heads": 1}, "weights would not fit"),
        (BACKBONES["bert"], {"order": 0}, "order"),
        (BACKBONES["bert"], {**P_LAPLACIAN, "p": 0.5}, "`p`"),
        (BACKBONES["bert"], {"where": "decoder"}, "transformer_layer_1/self_attention_layer"),
        (BACKBONES["llama"], {"dropout": 0.1}, "out of.*'filter', 'order'.*dropout=0.1"),
        (BACKBONES["llama"], {"dropout_on": "filter"}, "LlamaAttention keeps its own settings"),
        (BACKBONES["llama"], {**P_LAPLACIAN, "p": [1.5, 2.5]}, "4 heads"),
        (BACKBONES["llama"], {**P_LAPLACIAN, "epsilon": 0}, "epsilon"),
        (BACKBONES["llama"], {"attention_path": "flash"}, "attention_path"),
        (BACKBONES["llama"], {"block_size": 0}, "block_size"),
        (BACKBONES["llama"], {"coefficient_learning_rate_multiplier": 0}, "multiplier"),
        (BACKBONES["llama"], {"filter": TWO_HEADS}, "4 heads"),
        (BACKBONES["llama"], {"attention": "agf"}, "Expected one of .'graph_filter', 'p_laplacian"),
        (f_net, {}, r"FNetBackbone is not among.*BertBackbone.*GPT2Backbone"),
    ],
)
def test_refuses_options_and_leaves_the_model_alone(make, options, message):
    backbone = make()
    before = state_of(backbone)
    with pytest.raises(ValueError, match=message):
        keras_graphattn.convert(backbone, **options)
    assert state_of(backbone) == before


def test_refuses_what_is_no_model():
    with pytest.raises(ValueError, match="must be a Keras model"):
        keras_graphattn.convert("bert_base_en")


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_frozen_model_stays_frozen_and_others_train(name):
    backbone = BACKBONES[name]()
    backbone.trainable = False
    keras_graphattn.convert(backbone)
    assert not backbone.trainable_variables
    backbone.trainable = True
    paths = [v.path for v in backbone.trainable_variables]
    assert any(path.endswith("power_coefficient") for path in paths)


@pytest.mark.slow_on("jax")
def test_tasks_keep_their_heads_and_tell_their_class():
    models = keras_hub.models
    for task in (
        models.BertTextClassifier(random_backbone("bert"), num_classes=3),
        models.BertMaskedLM(random_backbone("bert")),
        models.ViTImageClassifier(random_backbone("vit"), num_classes=3),
        models.GPT2CausalLM(random_backbone("gpt2")),
    ):
        plain, inputs = type(task), random_inputs(task.backbone)
        if isinstance(task, models.MaskedLM):
            inputs["mask_positions"] = np.array([[1, 2], [0, 1]])
        before = outputs(task, inputs)
        keras_graphattn.convert(task, order=4)
        assert isinstance(task, plain)
        assert type(task) is not plain
        assert type(task).backbone_cls is type(task.backbone)
        assert_equal_outputs(outputs(task, inputs), before)
        keras_graphattn.revert(task)
        assert type(task) is plain


@pytest.mark.slow_on("jax")
def test_a_compiled_model_forgets_what_it_compiled():
    """A `predict` compiled before the conversion would keep the old attention."""
    task = keras_hub.models.BertTextClassifier(random_backbone("bert"), num_classes=2)
    inputs = random_inputs(task.backbone)
    task.compile(
        optimizer=keras.optimizers.SGD(0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=BACKEND == "jax",
    )
    task.fit(inputs, np.array([0, 1]), batch_size=2, verbose=0)
    before = task.predict(inputs, verbose=0)
    keras_graphattn.convert(
        task, filter=FirstOrder(initial_coefficients={"linear": -1.0, "power": 0.5})
    )
    after = task.predict(inputs, verbose=0)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, outputs(task, inputs)[0], atol=1e-5)
    layer = task.backbone.transformer_layers[0]._self_attention_layer
    old = keras.ops.convert_to_numpy(layer.power_coefficient)
    task.fit(inputs, np.array([0, 1]), batch_size=2, verbose=0)
    assert np.abs(keras.ops.convert_to_numpy(layer.power_coefficient) - old).max() > 1e-6


@pytest.mark.slow_on("jax")
def test_an_encoder_of_keras_cv(tmp_path):
    import keras_cv

    inputs = keras.Input((5, 8))
    encoder = keras_cv.layers.TransformerEncoder(8, num_heads=2, mlp_dim=16, name="encoder")
    model = keras.Model(inputs, encoder(inputs))
    (before,) = answers(model, SERIES)
    keras_graphattn.convert(model, order=4)
    np.testing.assert_allclose(answers(model, SERIES)[0], before, atol=1e-6)
    moved(model)
    expected = answers(model, SERIES)[0]
    assert np.abs(expected - before).max() > 1e-5
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(answers(loaded, SERIES)[0], expected, atol=1e-6)
    keras_graphattn.revert(loaded)
    np.testing.assert_allclose(answers(loaded, SERIES)[0], before, atol=1e-6)


def test_layers_of_ones_own_once_they_are_reached(tmp_path):
    inputs = keras.Input((5, 8))
    model = keras.Model(inputs, Block(name="block")(inputs))
    if not is_reachable(model.get_layer("block")):
        with pytest.raises(ValueError, match=r"Block 'block'.*keras_graphattn.hub.reach"):
            keras_graphattn.convert(model)
    reach(Block)
    keras_graphattn.convert(model, filter=FirstOrder(initial_coefficients={"power": 0.5}))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.get_layer("block").attention, GraphFilterAttention)
    np.testing.assert_allclose(answers(loaded, SERIES)[0], answers(model, SERIES)[0], atol=1e-6)


def test_keras_nlp_names_convert():
    keras_nlp = pytest.importorskip("keras_nlp")
    backbone = keras_nlp.models.BertBackbone(
        vocabulary_size=30, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=8
    )
    keras_graphattn.convert(backbone)
    assert keras_graphattn.inspect(backbone)[0].class_name == "GraphFilterAttention"


class Kept(keras.layers.Layer):
    """Self-attention and cross-attention in an attribute, a list and a dictionary."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        make = keras.layers.MultiHeadAttention
        self.single, self.cross_attention = make(2, 4, name="a"), make(2, 4, name="x")
        self.pairs = [(make(2, 4, name="b"), keras.layers.Dense(8))]
        self.by_name = {"own": make(2, 4, name="c"), "cross": make(2, 4, name="y")}
        self.all = [self.single, self.cross_attention]

    def build(self, shape):
        for layer in self._layers:
            layer.build(*[shape] * (1 + isinstance(layer, keras.layers.MultiHeadAttention)))

    def call(self, x):
        for layer in (self.single, self.pairs[0][0], self.by_name["own"]):
            x = x + layer(x, x)
        x = self.pairs[0][1](x)
        return x + self.cross_attention(x, x[:, :2]) + self.by_name["cross"](x, x[:, :2])


def test_attention_in_lists_and_dictionaries_is_converted(tmp_path):
    keras.utils.set_random_seed(0)
    inputs = keras.Input(SERIES.shape[1:])
    model = keras.Model(inputs, Kept()(inputs))
    with pytest.raises(ValueError, match=r"Kept '.*hub\.reach\(<its class>\)"):
        keras_graphattn.convert(model)
    reach(Kept)
    before = to_numpy(model(SERIES))
    keras_graphattn.convert(model)
    rows = keras_graphattn.inspect(model)
    assert [row.path.rpartition("/")[2] for row in rows] == ["a", "b", "c"]
    assert {row.class_name for row in rows} == {"GraphFilterAttention"}
    np.testing.assert_allclose(to_numpy(model(SERIES)), before, atol=1e-5)
    model.set_weights([x + 0.1 for x in model.get_weights()])
    after = to_numpy(model(SERIES))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", custom_objects={"Kept": Kept})
    np.testing.assert_allclose(to_numpy(loaded(SERIES)), after, atol=1e-5)
    keras_graphattn.revert(loaded)
    assert not any(row.parameters_added for row in keras_graphattn.inspect(loaded))


def test_revert_of_a_model_with_other_attention():
    inputs = keras.Input(SERIES.shape[1:])
    attend = keras.layers.MultiHeadAttention(2, 4)
    plain = keras.Model(inputs, attend(inputs, inputs))
    assert keras_graphattn.revert(plain) is plain  # nothing to revert, no error
    part = keras_graphattn.convert(encoder_model())
    tokens = part(inputs)
    model = keras.Model(inputs, keras.layers.MultiHeadAttention(2, 4)(tokens, tokens))
    keras_graphattn.revert(model)
    assert keras_graphattn.inspect(part)[0].class_name == "MultiHeadAttention"


def encoder_model():
    inputs = keras.Input(SERIES.shape[1:])
    return keras.Model(inputs, encoder()(inputs))


@pytest.mark.parametrize("indices", [np.array([0, 2]), np.array([0, -1]), range(0, 3, 2)])
def test_indices_may_be_an_array(indices):
    assert select(indices, ["a", "b", "c"]) == [0, 2]
