"""What is refused is refused before anything has changed, and says what to do instead."""

import sys

import keras
import keras_hub
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn.filters import FirstOrder
from keras_graphattn.hub import reach, register_attention
from keras_graphattn.hub.families import ConvertedGraphFilter, attention_name, names_of
from keras_graphattn.keras_internals import walk
from keras_graphattn.layers import GraphFilterAttention
from tests.hub.containers import SERIES, Block, answers, encoder
from tests.hub.models import BACKBONES, outputs, random_backbone, random_inputs

models = keras_hub.models


def state_of(model):
    """All that `convert` can change, by identity."""
    layers = list(walk(model))
    compiled = [
        getattr(layer, name, None)
        for layer in layers
        for name in ("train_function", "test_function", "predict_function", "optimizer")
    ]
    attributes = [id(child) for layer in layers for child in layer._layers]
    kept = [(id(layer), type(layer), layer.built, layer.trainable) for layer in layers]
    weights = [(id(variable), variable.path) for variable in model.weights]
    values = [keras.ops.convert_to_numpy(variable).tobytes() for variable in model.weights]
    return kept, attributes, weights, values, [id(x) for x in compiled]


def two_widths():
    """Encoders of 2 and of 4 heads: a list of two exponents fits only the first."""
    x = keras.Input((5, 8))
    y = encoder("narrow")(x)
    y = keras_hub.layers.TransformerEncoder(16, num_heads=4, name="wide")(y)
    return keras.Model(x, keras.layers.Dense(1)(y[:, 0]))


def clip_of_two_widths():
    """CLIP's towers may have different numbers of heads."""
    vision = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8}
    words = {"vocabulary_size": 9, "embedding_dim": 8, "max_sequence_length": 6}
    return models.CLIPBackbone(
        models.CLIPVisionEncoder(patch_size=4, image_shape=(8, 8, 3), **vision),
        models.CLIPTextEncoder(**words, **{**vision, "num_heads": 4}),
        projection_dim=8,
    )


@pytest.mark.parametrize("option", ["kernel_regularizer", "bias_initializer", "name"])
def test_options_of_what_the_model_keeps_are_refused(option):
    model = two_widths()
    before = state_of(model)
    with pytest.raises(ValueError, match=f"Received: {option}='l2'.* they keep"):
        keras_graphattn.convert(model, "graph_filter", **{option: "l2"})
    assert state_of(model) == before
    if option != "name":  # AGF has a projection of its own, of singular values
        keras_graphattn.convert(model, "agf", kernel_regularizer="l2")
        assert model.losses


@pytest.mark.parametrize("make", [two_widths, clip_of_two_widths])
@pytest.mark.parametrize(
    ("attention", "options"),
    [
        ("p_laplacian", {"p": [1.5, 2.5]}),
        ("graph_filter", {"filter": FirstOrder(initial_coefficients={"power": [0.1, 0.2]})}),
    ],
)
def test_a_refusal_at_a_later_layer_leaves_the_model_alone(attention, options, make):
    model = make()
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    model.make_train_function()
    model.make_predict_function()
    before = state_of(model)
    with pytest.raises(ValueError, match="heads"):
        keras_graphattn.convert(model, attention, **options)
    assert state_of(model) == before


class Unlucky(keras.optimizers.SGD):
    """An optimizer that cannot be made again."""

    def get_config(self):
        raise NotImplementedError("no configuration")


def test_an_optimizer_without_a_configuration_is_refused_before_the_conversion():
    model = two_widths()
    model.compile(Unlucky(), "mse")
    model.optimizer.build(model.trainable_variables)
    before = state_of(model)
    with pytest.raises(NotImplementedError):
        keras_graphattn.convert(model)
    assert state_of(model) == before


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gfsa", "graph_filter"),
        ("GFSA", "graph_filter"),
        ("graph filter", "graph_filter"),
        ("Graph-Filter", "graph_filter"),
        ("GraphFilterAttention", "graph_filter"),
        ("p-lat", "p_laplacian"),
        ("plat", "p_laplacian"),
        ("p-Laplacian", "p_laplacian"),
        ("agf", "attentive_graph_filter"),
        ("masked kernel", "masked_kernel"),
        ("AttnScale", "scaled_high_frequency"),
        ("ContraNorm", "contra_norm"),
    ],
)
def test_published_names(name, meant):
    assert attention_name(name) == meant


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("graph_filters", "Did you mean 'graph_filter'"),
        ("p_laplace", "Did you mean 'p_laplacian'"),
        ("performer", 'attention="masked_kernel" with feature_map="favor"'),
        ("GKAT", "GraphKernelAttention"),
        ("softmax", "revert"),
        ("xyz", "must be one of"),
        (3, "must be one of"),
    ],
)
def test_other_names_get_a_hint(name, hint):
    with pytest.raises(ValueError, match=hint) as error:
        attention_name(name)
    assert "'masked_kernel'" in str(error.value)


def test_an_alias_is_saved_under_the_name_that_is_known():
    backbone = keras_graphattn.convert(BACKBONES["bert"](), "GFSA", order=4)
    (conversion,) = backbone.get_config()["graph_attention"]["conversions"]
    assert conversion["attention"] == "graph_filter"


def bare():
    x = keras.Input((5, 8))
    return keras.Model(x, keras.layers.MultiHeadAttention(2, 4, name="bare")(x, x))


def ours():
    x = keras.Input((5, 8))
    return keras.Model(x, GraphFilterAttention(2, 4, name="ours")(x))


def dense():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)], name="plain")


@pytest.mark.parametrize("verb", [keras_graphattn.convert, keras_graphattn.inspect])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (bare, "MultiHeadAttention 'bare' is a layer of the model itself.*GraphFilterAttention"),
        (
            dense,
            "'plain' has no layer of keras_graphattn.*GraphFilterAttention takes the arguments",
        ),
        (encoder, "'encoder' has no self-attention yet: it is not built"),
    ],
)
def test_a_model_of_ones_own_hears_what_to_do_instead(verb, make, message):
    with pytest.raises(ValueError, match=message):
        verb(make())


def test_a_layer_of_ours_is_not_converted_but_inspected():
    with pytest.raises(ValueError, match="'ours' is a layer of the model itself and graph atten"):
        keras_graphattn.convert(ours())
    assert [row.class_name for row in keras_graphattn.inspect(ours())] == ["GraphFilterAttention"]


@pytest.mark.parametrize("make", [bare, dense])
def test_without_keras_hub_the_error_names_what_can_be_converted(make, monkeypatch):
    # `hub.reach` is the function of that name
    for name in ("reach", "saving"):
        monkeypatch.setattr(sys.modules[f"keras_graphattn.hub.{name}"], "REACHED", set())
    with pytest.raises(ValueError, match=r"hub\.reach\(<the.*BertBackbone, .*TransformerEncoder"):
        keras_graphattn.convert(make())


def test_reach_refuses_what_holds_no_attention():
    for plain in (keras.layers.Dense, keras.layers.MultiHeadAttention, keras.Model):
        with pytest.raises(ValueError, match="a layer of Keras"):
            reach(plain)
    with pytest.raises(ValueError, match=r"reach\(MistralBackbone|tasks are converted with"):
        reach(models.MistralCausalLM)


def test_reach_takes_all_that_convert_reaches():
    for name in names_of("backbones"):
        plain = getattr(models, name)
        assert issubclass(reach(plain), plain)
        assert reach(reach(plain)) is reach(plain)


def test_register_attention_refuses_classes_of_no_family():
    with pytest.raises(ValueError, match=r"MobileAttention'.*keras_hub.*register_family"):
        register_attention("graph_filter", "MobileAttention", GraphFilterAttention)


def test_register_attention_refuses_what_does_not_fit_the_family():
    with pytest.raises(ValueError, match=r"LlamaAttention must be a subclass of.*in place"):
        register_attention("graph_filter", "LlamaAttention", GraphFilterAttention)
    with pytest.raises(ValueError, match=r"like those of keras_graphattn.layers"):
        register_attention("graph_filter", "MultiHeadAttention", ConvertedGraphFilter)


class OtherAttention(keras.layers.MultiHeadAttention):
    """A class of one's own with the projections of Keras' attention."""


class OwnBlock(Block):
    kind = OtherAttention


def test_register_attention_works_for_a_class_of_ones_own():
    register_attention("graph_filter", "OtherAttention", GraphFilterAttention)
    reach(OwnBlock)
    block = OwnBlock()
    block(SERIES)
    before = answers(block, SERIES)[0]
    keras_graphattn.convert(block, order=4)
    assert isinstance(block.attention, GraphFilterAttention)
    np.testing.assert_allclose(answers(block, SERIES)[0], before, atol=1e-6)


@pytest.mark.slow_on("jax")
def test_revert_of_a_part_is_what_the_whole_tells():
    task = models.BertTextClassifier(random_backbone("bert"), num_classes=2)
    inputs = random_inputs(task.backbone)
    before = outputs(task, inputs)
    keras_graphattn.convert(task, "p_laplacian", p=1.5, epsilon=0.5)
    keras_graphattn.revert(task.backbone)
    new = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(task))
    new.set_weights(task.get_weights())
    np.testing.assert_allclose(outputs(new, inputs)[0], before[0], atol=1e-6)


def test_a_converted_model_is_not_written_for_transformers(tmp_path):
    task = models.GPT2CausalLM(models.GPT2Backbone(30, 1, 2, 8, 16, max_sequence_length=16))
    keras_graphattn.convert(task, "graph_filter")
    for model in (task, task.backbone):
        with pytest.raises(ValueError, match=r"First call keras_graphattn\.revert"):
            model.export_to_transformers(tmp_path)
    assert not list(tmp_path.iterdir())
    keras_graphattn.revert(task)
    task.backbone.export_to_transformers(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
