"""The private attributes of Keras and KerasHub that conversion stands on are still there."""

import keras
import keras_hub
import pytest

from keras_graphattn import keras_internals as internals


def encoder():
    layer = keras_hub.layers.TransformerEncoder(8, num_heads=2, name="encoder")
    layer.build((None, 3, 4))
    return layer


def attention():
    layer = keras.layers.MultiHeadAttention(2, 2, name="attention")
    layer.build((None, 3, 4), (None, 3, 4))
    return layer


def test_layers_are_tracked_in_layers():
    names = [child.name for child in internals.sublayers(encoder())]
    assert names[0] == "self_attention_layer", (
        "Keras no longer tracks sublayers in Layer._layers: internals.sublayers needs another way."
    )


def test_sublayers_are_found_among_attributes():
    assert "_self_attention_layer" in internals.layer_attributes(encoder()), (
        "Sublayers are no longer in vars(layer), nor in _modules on torch, or KerasHub has renamed "
        "TransformerEncoder._self_attention_layer: internals.layer_attributes needs another way."
    )


def test_a_layer_built_in_the_scope_of_another_gets_its_paths():
    for path in ("a", "a/b", "a/b/c"):
        old, new = attention(), keras.layers.Dense(2, name="attention")
        old._path = path
        with internals.scope_of(old):
            new.build((None, 3))
        parent = path.rpartition("/")[0]
        expected = f"{parent}/attention".removeprefix("/")
        assert new.path == expected, "keras.name_scope(override_parent=) no longer sets the path"
        assert new.kernel.path == f"{expected}/kernel"


def test_the_class_of_a_layer_can_change():
    layer = encoder()
    plain = type(layer)
    internals.change_class(layer, type("Sub", (plain,), {}))
    assert type(layer).__name__ == "Sub", "Keras layers no longer let their class change"


def test_compiled_functions_and_slots_are_dropped():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.predict(keras.ops.ones((2, 3)), verbose=0)
    assert model.predict_function is not None, "Model.predict_function has another name now"
    model.optimizer.build(model.trainable_variables)
    internals.forget_compiled(model)
    assert model.predict_function is None
    assert not model.optimizer.built
    internals.track_again(model)


def test_metrics_given_to_compile_are_found_before_they_have_seen_data():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    accuracy = keras.metrics.BinaryAccuracy()
    model.compile("sgd", "mse", metrics=[accuracy], weighted_metrics=["mse"])
    assert any(metric is accuracy for metric in internals.compiled_metrics(model)), (
        "CompileMetrics no longer keeps _user_metrics: internals.compiled_metrics needs another way"
    )


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="jax alone has model parallelism")
def test_a_variable_takes_the_layout_of_a_distribution():
    mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), ["cpu:0"])
    rules = keras.distribution.LayoutMap(mesh)
    rules["attention/query/kernel"] = (None, "model", None)
    distribution = keras.distribution.ModelParallel(layout_map=rules, batch_dim_name="batch")
    assert internals.layouts_of(distribution) is rules, "ModelParallel._layout_map has gone"
    kernel = attention().query_dense.kernel
    internals.place_again(kernel, distribution)
    assert kernel._layout is not None, "Variable._layout no longer says where a variable is"


def test_a_built_layer_gets_the_paths_of_a_part_of_another():
    parent, layer = keras.layers.Dense(2, name="parent"), keras.Sequential(name="layer")
    layer.add(keras.layers.Dense(3, name="inner"))
    for each in (parent, layer):
        each.build((None, 4))
    internals.move(layer, parent)
    assert [weight.path for weight in layer.weights] == [
        "parent/layer/inner/kernel",
        "parent/layer/inner/bias",
    ], "Keras no longer keeps the path of a weight in Variable._path: internals.move needs it."
    assert layer.layers[0].path == "parent/layer/inner"
