"""Exports and layouts for several devices, with one wrong thing at a time."""

import contextlib
import json
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_graphattn import distribution, export
from keras_graphattn.export import export_saved_model, saved_model
from keras_graphattn.export.saved_model import _plain
from keras_graphattn.export.signature import served_signatures
from tests.fuzz.attacks import ODD, REFUSALS, answer_or_refusal
from tests.numerics import BACKEND

ON_JAX = BACKEND == "jax"
HASHABLE = [wrong for wrong in ODD if getattr(wrong, "__hash__", None) and wrong is not None]


def make_model():
    series = keras.Input((None, 3), name="series")
    ids = keras.Input((None,), dtype="int32", name="ids")
    sum_of_both = keras.layers.Dense(4, name="dense")(series) + keras.layers.Embedding(9, 4)(ids)
    return keras.Model([series, ids], sum_of_both)


MODEL = make_model()
MESH = keras.distribution.DeviceMesh((1, 2), ("batch", "model"), ["cpu:0"] * 2)
RULES = keras.distribution.LayoutMap(MESH)
RULES["dense/kernel"] = (None, "model")


# What each takes; None stands for a new folder.
ARGUMENTS = {
    "export_saved_model": {
        "model": MODEL,
        "directory": None,
        "version": 7,
        "signature": {"short": {"series": (4, 3), "ids": (4,)}},
    },
    "check_export": {"model": MODEL, "format": "onnx", "input_signature": None},
    "layout_map": {
        "model": MODEL,
        "device_mesh": MESH,
        "axis": "model",
        "replicate": ["dense"],
        "large": 1,
    },
    "check_layout_map": {"model": MODEL, "rules": RULES},
    "distribute": {"model": MODEL},
    "SequenceParallel": {
        "device_mesh": MESH,
        "sequence_axis": "model",
        "batch_axis": "batch",
        "shortest": 8,
    },
}
ONLY_JAX = ("layout_map", "distribute", "SequenceParallel")
HERE = [name for name in ARGUMENTS if ON_JAX or name not in ONLY_JAX]
CASES = [(name, argument) for name in HERE for argument in ARGUMENTS[name]]


def test_everything_has_a_case():
    own = {name for name in vars(distribution.SequenceParallel) if name[0] != "_"}
    assert own == {"num_model_replicas", "get_data_layout"}  # Keras' own names
    assert {*export.__all__, *distribution.__all__} == set(ARGUMENTS)


@pytest.fixture
def written(monkeypatch):
    """The graphs that were written, which is stood in for."""
    calls = []

    def write(model, path, signature):
        calls.append(path)
        sent = json.loads(json.dumps(signature, default=_plain))
        assert served_signatures(model, sent) == served_signatures(model, signature)
        path.mkdir()

    monkeypatch.setattr(saved_model, "write_graph", write)
    return calls


def attack_export(written, **changes):
    """An export in an empty folder: a version as asked for, or no trace."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        arguments = {**ARGUMENTS["export_saved_model"], "directory": "served", **changes}
        written.clear()
        made = []

        def call():
            made.append(export_saved_model(**arguments))

        # TensorFlow's and the system's refusals of a folder are OSErrors
        answer_or_refusal(call, list(changes), (*REFUSALS, OSError))
        folders = sorted(path.name for path in Path(folder).rglob("*") if path.is_dir())
        if not made:
            assert not written
            assert folders == []
            return None
        number = 1 if arguments["version"] is None else arguments["version"]
        assert made == [Path(arguments["directory"], str(number))]
        assert made[0].is_dir()
        assert not list(Path(folder).rglob(".export-*"))
        return made[0]


def check_layouts(rules, model=MODEL):
    """Weights that are split have an axis of an even size."""
    layouts = distribution.check_layout_map(model, rules)
    shapes = {variable.path: tuple(variable.shape) for variable in model.variables}
    for path, axes in layouts.items():
        assert shapes[path][axes.index("model")] % 2 == 0


def call_of(name, arguments):
    """Calls the function and checks what it answers."""
    if name == "layout_map":
        replicate = arguments["replicate"]
        rules = distribution.layout_map(**arguments)
        check_layouts(rules)
        assert not any(word in rule for rule in rules for word in replicate)
    elif name == "check_export":
        assert export.check_export(**arguments) is None
    elif name == "check_layout_map":
        check_layouts(**arguments)
    elif name == "distribute":
        with keras.distribution.DataParallel(devices=["cpu:0"]).scope():
            assert distribution.distribute(**arguments) is MODEL
    else:
        made = distribution.SequenceParallel(**arguments)
        axis = arguments["sequence_axis"] if arguments["shortest"] <= 16 else None
        expected = (arguments["batch_axis"], axis, None)
        assert made.get_data_layout((2, 16, 3)).axes == expected


@pytest.mark.parametrize(("name", "argument"), CASES)
def test_one_wrong_argument(name, argument, written):
    arguments = ARGUMENTS[name]
    for wrong in [*ODD, len]:
        if name == "export_saved_model":
            attack_export(written, **{argument: wrong})
        else:
            call = lambda x=wrong: call_of(name, {**arguments, argument: x})  # noqa: E731
            answer_or_refusal(call, [argument])


@pytest.mark.parametrize("name", HERE)
def test_right_arguments(name, written):
    if name == "export_saved_model":
        assert attack_export(written, directory="below/served") is not None
        return
    call_of(name, ARGUMENTS[name])


@pytest.mark.skipif(ON_JAX, reason="jax has layouts")
@pytest.mark.parametrize("name", ONLY_JAX)
def test_other_backends_refuse_right_and_wrong_arguments(name):
    for wrong in (None, *ARGUMENTS[name].values()):
        arguments = {**ARGUMENTS[name], next(iter(ARGUMENTS[name])): wrong}
        with pytest.raises(ValueError, match=f"jax only. Received: the backend {BACKEND}"):
            getattr(distribution, name)(**arguments)


SIGNATURE_ATTACKS = {
    "shapes": lambda wrong: {"short": wrong},
    "shape": lambda wrong: {"short": {"series": wrong}},
    "open size": lambda wrong: {"short": {"series": (wrong, 3), "ids": (wrong,)}},
    "known size": lambda wrong: {"short": {"series": (None, wrong)}},
}


@pytest.mark.parametrize("place", sorted(SIGNATURE_ATTACKS))
def test_one_wrong_thing_in_the_signature(place, written):
    for wrong in (*ODD, np.int64(4), np.array([1, 2]), 3.0, np.float32(3)):
        signature = SIGNATURE_ATTACKS[place](wrong)
        made = attack_export(written, signature=signature)
        assert made is None or wrong is None or wrong in (2, 4) or wrong == {}
    for wrong in [*HASHABLE, "a/b", ""]:
        attack_export(written, signature={wrong: None})
        attack_export(written, signature={"short": {wrong: (4,)}})


@pytest.mark.parametrize("wrong", ["", "a\0b", "x" * 300, "gs://bucket/model", "file", "file/1"])
def test_wrong_folders(wrong, written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises((*REFUSALS, OSError), match="`directory`"):
        export_saved_model(MODEL, wrong)
    assert not written
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"nowhere": (None, "model")}, "These rules of the layout map match no weight"),
        ({"d.*/kernel": (None, "model"), "dense/k.*": (None, None)}, "in the LayoutMap"),
    ],
)
def test_wrong_rules(entries, words):
    rules = keras.distribution.LayoutMap(MESH)
    for pattern, axes in entries.items():
        rules[pattern] = axes
    layer = keras.layers.Dense(4, name="dense")
    layer.build((2, 3))
    with pytest.raises(ValueError, match=words):
        distribution.check_layout_map(layer, rules)


@pytest.mark.skipif(not ON_JAX, reason="layouts are jax's")
@pytest.mark.parametrize("wrong", [*ODD, "(", "nowhere"], ids=lambda wrong: repr(wrong)[:20])
def test_wrong_patterns_name_the_argument(wrong):
    with pytest.raises(ValueError, match="`replicate`"):
        distribution.layout_map(MODEL, MESH, replicate=["dense", wrong])


@pytest.mark.skipif(not ON_JAX, reason="layouts are jax's")
def test_the_two_axes_of_a_sequence_differ():
    with pytest.raises(ValueError, match=r"`batch_axis` must be one of \['model'\]"):
        distribution.SequenceParallel(MESH, "batch", "batch")
    assert distribution.SequenceParallel(MESH, "model", "batch").get_data_layout(()).axes == ()
