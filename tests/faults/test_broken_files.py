"""A file that is damaged, or that someone changed, gives one clear error and runs no code."""

import json
import sys
import zipfile
from pathlib import Path

import keras
import keras_hub
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn import export_saved_model, layers, masks
from keras_graphattn.hub.saving import KEY
from tests.recipes.command_line import start

EVIL = {"module": "evil_module", "class_name": "Evil", "config": {}, "registered_name": "Evil"}
CODE = """
open({path!r}, "w").write("ran")
class Evil:
    @classmethod
    def from_config(cls, config):
        return cls()
"""


def model_of(heads=2, size=4):
    tokens = keras.Input((6, 8), name="tokens")
    options = {"mask": masks.Exponential(), "filter": "first_order", "name": "kernel"}
    return keras.Model(tokens, layers.MaskedKernelAttention(heads, size, **options)(tokens))


def converted():
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=20,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=6,
    )
    return keras_graphattn.convert(backbone, order=3)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Whole files of a model of our layers and of a converted one."""
    folder = tmp_path_factory.mktemp("files")
    model, backbone = model_of(), converted()
    model.save(folder / "layer.keras")
    model.save_weights(folder / "layer.weights.h5")
    backbone.save(folder / "converted.keras")
    backbone.enable_lora(2)
    backbone.save_lora_weights(folder / "converted.lora.h5")
    return folder


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """The path of a file that the module with the class Evil writes if it is imported."""
    path = tmp_path / "ran"
    (tmp_path / "evil_module.py").write_text(CODE.format(path=str(path)))
    monkeypatch.syspath_prepend(tmp_path)
    return path


def changed(source, target, change):
    """Writes a `.keras` file with a changed configuration."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "config.json":
                config = json.loads(data)
                change(config)
                data = json.dumps(config)
            new.writestr(name, data)
    return target


def cut(source, target, share):
    data = source.read_bytes()
    target.write_bytes(data[: int(len(data) * share)])
    return target


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_cut_keras_file(files, share, tmp_path):
    path = cut(files / "layer.keras", tmp_path / "cut.keras", share)
    with pytest.raises(ValueError, match=r"cut\.keras.*zip file"):
        keras.saving.load_model(path)


def test_a_cut_file_of_lora_weights(files, tmp_path):
    backbone = converted()
    backbone.enable_lora(2)
    before = [np.array(keras.ops.convert_to_numpy(v)) for v in backbone.weights]
    path = cut(files / "converted.lora.h5", tmp_path / "cut.lora.h5", 0.5)
    with pytest.raises(OSError, match=r"whole file of LoRA weights.*cut\.lora\.h5.*truncated"):
        backbone.load_lora_weights(path)
    for variable, old in zip(backbone.weights, before, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), old)


@pytest.mark.parametrize("sizes", [(3, 4), (2, 6)])
def test_weights_of_other_shapes(files, sizes):
    with pytest.raises(ValueError, match="objects could not be loaded"):
        model_of(*sizes).load_weights(files / "layer.weights.h5")


def set_part(name, value):
    def change(config):
        config["config"]["layers"][1]["config"][name] = value

    return change


def set_class(config):
    config["config"]["layers"][1] |= {"module": "evil_module", "class_name": "Evil"}
    config["config"]["layers"][1]["registered_name"] = "evil>Evil"


LAMBDA = {"class_name": "__lambda__", "config": {"value": "4wAAAAAAAAAA"}}
EVAL = {"class_name": "function", "config": "eval", "module": "builtins"}
DENSE = {"module": "keras.layers", "class_name": "Dense", "config": {"units": 2}}
STRANGERS = {
    "layer": (set_class, "Could not locate class 'Evil'"),
    "mask": (set_part("mask", EVIL), "`mask` cannot be restored.*locate class 'Evil'"),
    "filter": (set_part("filter", EVIL), "`filter` cannot be restored.*locate class 'Evil'"),
    "function": (set_part("feature_map", EVAL), "`feature_map` cannot be restored.*'eval'"),
    "lambda": (set_part("feature_map", LAMBDA), "`feature_map` cannot be restored.*lambda"),
    "other class": (set_part("mask", DENSE), "`mask` must be one of.*Received: mask=.*'Dense'"),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_class_that_is_not_registered(files, name, ran, tmp_path):
    change, words = STRANGERS[name]
    path = changed(files / "layer.keras", tmp_path / "changed.keras", change)
    with pytest.raises((ValueError, TypeError), match=f"(?s){words}"):
        keras.saving.load_model(path)
    assert not ran.exists()
    assert "evil_module" not in sys.modules


DAMAGED = {
    "class": ({"of": {"module": "evil_module", "name": "Evil"}}, "class Evil"),
    "index": ({"conversions": [{"attention": "gfsa", "options": {}, "sites": [9]}]}, "damaged"),
    "part": ({"conversions": [{"attention": "gfsa"}]}, "damaged"),
    "kind": ({"conversions": 3}, "damaged"),
    "number": ({"num_sites": None}, "damaged"),
    "attention": (
        {"conversions": [{"attention": "evil", "options": {}, "sites": [0]}]},
        "attention='evil'",
    ),
    "option": (
        {"conversions": [{"attention": "gfsa", "options": {"filter": EVIL}, "sites": [0]}]},
        "locate class 'Evil'",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_conversion(files, name, ran, tmp_path):
    values, words = DAMAGED[name]
    path = changed(
        files / "converted.keras",
        tmp_path / "changed.keras",
        lambda config: config["config"][KEY].update(values),
    )
    with pytest.raises((ValueError, TypeError), match=f"(?s){words}"):
        keras.saving.load_model(path)
    assert not ran.exists()


@pytest.mark.slow
def test_a_broken_file_is_not_exported(files, tmp_path):
    path = cut(files / "layer.keras", tmp_path / "cut.keras", 0.5)
    with start("-m", "keras_graphattn.export", path, tmp_path / "served") as process:
        _, errors = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "cut.keras" in errors
    assert not (tmp_path / "served").exists()


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow loads the graph")
def test_a_served_model_without_its_variables(tmp_path):
    import tensorflow as tf

    version = export_saved_model(model_of(), tmp_path / "served")
    for part in Path(version, "variables").iterdir():
        part.unlink()
    with pytest.raises(Exception, match=r"variables"):
        tf.saved_model.load(str(version))
    assert export_saved_model(model_of(), tmp_path / "served").name == "2"
