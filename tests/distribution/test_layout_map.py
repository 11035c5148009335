"""Rules of layout maps, on a mesh that only names one device eight times."""

import re

import keras
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn.distribution import SequenceParallel, check_layout_map, distribute, layout_map
from keras_graphattn.layers import (
    AttentiveGraphFilter,
    GraphFilterAttention,
    GraphKernelAttention,
    MaskedKernelAttention,
)
from keras_graphattn.masks import Toeplitz
from tests.numerics import BACKEND

on_jax = pytest.mark.skipif(BACKEND != "jax", reason="layouts are jax's")


def mesh(shape=(2, 4), names=("batch", "model")):
    return keras.distribution.DeviceMesh(shape, names, ["cpu:0"] * int(np.prod(shape)))


def model(heads=4, width=16, vocabulary=64, classes=3):
    tokens = keras.Input((8,), dtype="int32")
    x = keras.layers.Embedding(vocabulary, width)(tokens)
    x = GraphFilterAttention(heads, 4, use_gate=True)(x)
    x = AttentiveGraphFilter(heads, 4)(x)
    x = MaskedKernelAttention(heads, 4, mask=Toeplitz(8), feature_map="favor")(x)
    x = keras.layers.GroupQueryAttention(4, heads, heads // 2)(x, x)
    x = keras.layers.LayerNormalization()(x)
    for number in range(2):
        x = keras.layers.Dense(4 * width, name=f"hidden_{number}")(x)
        x = keras.layers.Dense(width, name=f"output_{number}")(x)
    return keras.Model(tokens, keras.layers.Dense(classes, name="classes")(x))


@on_jax
def test_every_weight_has_the_layout_of_its_kind_in_this_and_the_next_instance():
    first = model()
    rules = layout_map(first, mesh((4, 2)), large=1)
    expected = {
        r".*/(query|key|value|gate|singular)/kernel": (None, "model", None),
        r".*/attention_output/kernel": ("model", None, None),
        r"embedding.*/embeddings": ("model", None),
        r".*/directions": ("model", None, None),
        r"hidden_\d/kernel": (None, "model"),
        r"output_\d/kernel": ("model", None),
        r"classes/kernel": ("model", None),
    }
    for built in (first, model()):
        layouts = check_layout_map(built, rules)
        for pattern, axes in expected.items():
            paths = [path for path in layouts if re.fullmatch(pattern, path)]
            assert paths
            assert {layouts.pop(path) for path in paths} == {axes}, pattern
        assert not layouts


@on_jax
def test_random_features_of_a_graph_kernel_are_split_too():
    inputs = keras.Input((8, 16))
    layer = GraphKernelAttention(4, 4, mask=Toeplitz(8), feature_map="favor")
    built = keras.Model(inputs, layer(inputs))
    layouts = check_layout_map(built, layout_map(built, mesh((4, 2)), large=1))
    assert layouts[layer.directions.path] == ("model", None, None)


@on_jax
@pytest.mark.parametrize(
    ("options", "devices", "words"),
    [
        ({"heads": 6}, 4, ["query/kernel", "(16, 6, 4)", "4 devices", "replicate=["]),
        ({"vocabulary": 31, "width": 15}, 2, ["embeddings", "(31, 15)", "replicate=["]),
    ],
)
def test_what_cannot_be_shared_evenly_is_refused(options, devices, words):
    built = model(**options)
    with pytest.raises(ValueError, match=re.escape(words[0])) as error:
        layout_map(built, mesh((1, devices)), large=1)
    for word in words:
        assert word in str(error.value)


@on_jax
def test_weights_can_be_left_whole():
    built = model(heads=6)
    rules = layout_map(built, mesh((1, 4)), replicate=["attention", "filter"], large=128)
    assert all("query" not in rule for rule in rules)


@on_jax
def test_rules_that_match_nothing_are_an_error():
    def unnamed():  # automatic names with numbers: one rule cannot be right for both
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(16), keras.layers.Dense(4)])

    rules = layout_map(unnamed(), mesh((1, 2)), large=1)
    with pytest.raises(ValueError, match=r"match no weight .*dense"):
        check_layout_map(unnamed(), rules)
    with pytest.raises(ValueError, match="must be a built Keras model"):
        layout_map(GraphFilterAttention(2, 4), mesh())


@on_jax
def test_distribute_refuses_what_would_go_wrong():
    built = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="No distribution is set"):
        distribute(built)
    built.compile("adam", "mse")
    distribution = keras.distribution.DataParallel(devices=["cpu:0"])
    with distribution.scope():
        distribute(built)
        built.optimizer.build(built.trainable_variables)
        with pytest.raises(ValueError, match="already has slot variables"):
            distribute(built)
    other = keras.distribution.LayoutMap(mesh((1,), ("model",)))
    other["elsewhere/kernel"] = (None, "model")
    fresh = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with (
        keras.distribution.ModelParallel(layout_map=other).scope(),
        pytest.raises(ValueError, match="match no weight"),
    ):
        distribute(fresh)


@on_jax
def test_layouts_of_sequences():
    parallel = SequenceParallel(mesh((2, 4), ("batch", "sequence")), batch_axis="batch")
    assert parallel.get_data_layout((8, 256, 3)).axes == ("batch", "sequence", None)
    assert parallel.get_data_layout((8, 256)).axes == ("batch", "sequence")
    assert parallel.get_data_layout((8, 10)).axes == ("batch", None)
    assert parallel.num_model_replicas == 2
    with pytest.raises(ValueError, match=r"4 devices .* 258 tokens.*\(8, 258\)"):
        parallel.get_data_layout((8, 258))


@on_jax
def test_conversion_on_other_devices_than_the_model_is_refused():
    keras_hub = pytest.importorskip("keras_hub")
    build = lambda: keras_hub.models.BertBackbone(  # noqa: E731
        vocabulary_size=16, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=8
    )
    distribution = keras.distribution.DataParallel(devices=["cpu:0"])
    plain = build()
    with distribution.scope():
        with pytest.raises(ValueError, match="was built on one device"):
            keras_graphattn.convert(plain)
        placed = build()
    with pytest.raises(ValueError, match=r"self_attention_layer' was built under a distribution"):
        keras_graphattn.convert(placed)
    with distribution.scope():
        keras_graphattn.convert(placed)
        keras_graphattn.convert(distribute(plain))
