"""Exports, requests and layouts for several devices, with one wrong thing at a time."""

import contextlib
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from hypothesis import strategies as st
from tensorflow import as_dtype, make_ndarray
from tensorflow_serving.apis import get_model_metadata_pb2

from keras_graphattn import distribution, export
from keras_graphattn.export import PredictRequests, export_saved_model, saved_model
from keras_graphattn.export.requests import WARMUP_FILE
from keras_graphattn.export.saved_model import _plain
from keras_graphattn.export.signature import served_signatures
from tests.fuzz.attacks import HOW_OFTEN, ODD, REFUSALS, answer_or_refusal, one_wrong, tried
from tests.numerics import BACKEND

ON_JAX = BACKEND == "jax"
SPECS = {
    "series": ((None, 4, 3), "float32"),
    "ids": ((None, 4), "int32"),
    "real": ((None, 4), "bool"),
    "text": ((None,), "string"),
}
RANDOM = np.random.default_rng(0)
BATCH = {
    "series": RANDOM.normal(size=(2, 4, 3)).astype("float32"),
    "ids": np.arange(8, dtype="int32").reshape(2, 4),
    "real": np.ones((2, 4), bool),
    "text": ["a", b"b\0"],
}
REQUESTS = PredictRequests(SPECS, "mine")
HASHABLE = [wrong for wrong in ODD if getattr(wrong, "__hash__", None) and wrong is not None]


def make_model():
    series = keras.Input((None, 3), name="series")
    ids = keras.Input((None,), dtype="int32", name="ids")
    sum_of_both = keras.layers.Dense(4, name="dense")(series) + keras.layers.Embedding(9, 4)(ids)
    return keras.Model([series, ids], sum_of_both)


MODEL = make_model()
WARMUP = {name: BATCH[name] for name in ("series", "ids")}
MESH = keras.distribution.DeviceMesh((1, 2), ("batch", "model"), ["cpu:0"] * 2)
RULES = keras.distribution.LayoutMap(MESH)
RULES["dense/kernel"] = (None, "model")


def definitions(made):
    signature = made["serving_default"]
    for name, (shape, dtype) in SPECS.items():
        info = signature.inputs[name]
        info.dtype = as_dtype(dtype).as_datatype_enum
        for size in shape:
            info.tensor_shape.dim.add().size = -1 if size is None else size


def metadata(request, timeout):
    assert 0 < timeout < float("inf")
    signatures = get_model_metadata_pb2.SignatureDefMap()
    answer = get_model_metadata_pb2.GetModelMetadataResponse()
    definitions(signatures.signature_def)
    answer.metadata["signature_def"].Pack(signatures)
    return answer


# What each takes; None stands for a new folder.
ARGUMENTS = {
    "PredictRequests": {"inputs": SPECS, "model": "mine", "signature": "any"},
    "PredictRequests.of_server": {
        "stub": SimpleNamespace(GetModelMetadata=metadata),
        "model": "mine",
        "signature": "serving_default",
        "timeout": 1.0,
    },
    "PredictRequests.arrays": {"inputs": BATCH},
    "PredictRequests.grpc": {"inputs": BATCH},
    "PredictRequests.json": {"inputs": BATCH},
    "export_saved_model": {
        "model": MODEL,
        "directory": None,
        "version": 7,
        "signature": {"short": {"series": (4, 3), "ids": (4,)}},
        "warmup": [WARMUP],
    },
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
HERE = [name for name in ARGUMENTS if ON_JAX or name.split(".")[0] not in ONLY_JAX]
CASES = [(name, argument) for name in HERE for argument in ARGUMENTS[name] if argument != "stub"]


def test_everything_has_a_case():
    classes = [PredictRequests, distribution.SequenceParallel]
    methods = {f"{one.__name__}.{name}" for one in classes for name in vars(one) if name[0] != "_"}
    public = {*export.__all__, *distribution.__all__, *methods}
    of_keras = {"SequenceParallel.num_model_replicas", "SequenceParallel.get_data_layout"}
    assert public - of_keras == set(ARGUMENTS)


def check_arrays(arrays, expected, specs=SPECS):
    """Served shapes and types, and the values that were given."""
    assert set(arrays) == set(specs)
    for name, (shape, dtype) in specs.items():
        assert arrays[name].dtype == (object if dtype == "string" else dtype)
        assert arrays[name].shape == (len(arrays[name]), *shape[1:])
        values = np.asarray(expected[name], object if dtype == "string" else None)
        np.testing.assert_array_equal(arrays[name], values)


def sent_by_grpc(made, batch):
    request = made.grpc(batch)
    assert request.model_spec.name == made.model
    assert request.model_spec.signature_name == made.signature
    return {name: make_ndarray(proto) for name, proto in request.inputs.items()}


def check_requests(made, batch=None):
    """The three forms of a request hold the same."""
    batch = BATCH if batch is None else batch
    arrays = made.arrays(batch)
    check_arrays(arrays, batch, made.inputs)
    sent = sent_by_grpc(made, batch)
    body = json.loads(made.json(batch))
    assert body["signature_name"] == made.signature
    for name, array in arrays.items():
        if made.inputs[name][1] != "string":
            assert sent[name].dtype == array.dtype
            np.testing.assert_array_equal(sent[name], array)
            np.testing.assert_array_equal(body["inputs"][name], array)
    return arrays


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


def attack_export(written, names=None, **changes):
    """An export in an empty folder: a version as asked for, or no trace."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        arguments = {**ARGUMENTS["export_saved_model"], "directory": "served", **changes}
        written.clear()
        made = []

        def call():
            made.append(export_saved_model(**arguments))

        # TensorFlow's and the system's refusals of a folder are OSErrors
        answer_or_refusal(call, names or list(changes), (*REFUSALS, OSError))
        folders = sorted(path.name for path in Path(folder).rglob("*") if path.is_dir())
        if not made:
            assert not written
            assert folders == []
            return None
        number = 1 if arguments["version"] is None else arguments["version"]
        assert made == [Path(arguments["directory"], str(number))]
        assert made[0].is_dir()
        assert not list(Path(folder).rglob(".export-*"))
        assert (made[0] / WARMUP_FILE).is_file() == (arguments["warmup"] is not None)
        return made[0]


def check_layouts(rules, model=MODEL):
    """Weights that are split have an axis of an even size."""
    layouts = distribution.check_layout_map(model, rules)
    shapes = {variable.path: tuple(variable.shape) for variable in model.variables}
    for path, axes in layouts.items():
        assert shapes[path][axes.index("model")] % 2 == 0


def call_of(name, arguments):
    """Calls the function and checks what it answers."""
    if name.startswith("PredictRequests."):
        method = name.split(".")[1]
        if method == "of_server":
            check_requests(PredictRequests.of_server(**arguments))
        else:
            getattr(REQUESTS, method)(**arguments)
            check_requests(REQUESTS, arguments["inputs"])
    elif name == "PredictRequests":
        check_requests(PredictRequests(**arguments))
    elif name == "layout_map":
        replicate = arguments["replicate"]
        rules = distribution.layout_map(**arguments)
        check_layouts(rules)
        assert not any(word in rule for rule in rules for word in replicate)
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
    # the requests of one batch are told of the signature's inputs
    names = [argument, *SPECS] if arguments.get("inputs") is BATCH else [argument]
    for wrong in [*ODD, len]:
        if name == "export_saved_model":
            attack_export(written, **{argument: wrong})
        else:
            call = lambda x=wrong: call_of(name, {**arguments, argument: x})  # noqa: E731
            answer_or_refusal(call, names)


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


# A batch, of a request and of a warm-up


def attack_batch(data):
    name, _, wrong = one_wrong(data, BATCH)
    if data.draw(st.booleans(), label="as a tensor") and isinstance(wrong, np.ndarray):
        with contextlib.suppress(Exception):  # no tensor of this backend
            wrong = keras.ops.convert_to_tensor(wrong)
    answer_or_refusal(lambda: check_requests(REQUESTS, {**BATCH, name: wrong}), [name])


def attack_warmup(written, data):
    name, _, wrong = one_wrong(data, WARMUP)
    batches = [WARMUP, {**WARMUP, name: wrong}]
    signature = data.draw(st.sampled_from(["any", {"short": {"ids": (4,)}}]), label="signature")
    attack_export(written, ["warmup[1]"], warmup=batches, signature=signature)


@HOW_OFTEN
def test_one_wrong_input(how_often, written):
    tried(how_often, attack_batch)
    tried(how_often, attack_warmup, written)


@pytest.mark.parametrize(
    ("dtype", "values", "fits"),
    [
        ("float32", [1e300], False),
        ("float16", [70000], False),
        ("float16", np.array([-1e5], "float32"), False),
        ("bfloat16", [1e39], False),
        ("bfloat16", [1j], False),
        ("uint8", [0, 255], True),
        ("uint8", [256], False),
        ("uint8", [-1], False),
        ("int64", np.array([2**63], "uint64"), False),
        ("int64", np.array([3], "m8[D]"), False),
        ("float32", [float("inf"), float("nan")], True),
        ("string", [1], False),
        ("string", ["a", None], False),
        ("string", [["a"], ["a", "b"]], False),
    ],
)
def test_values_arrive_whole_or_not_at_all(dtype, values, fits):
    made = PredictRequests({"x": ((None,), dtype)}, "mine")
    if fits:
        check_requests(made, {"x": values})
    else:
        with pytest.raises(ValueError, match="'x'"):
            made.arrays({"x": values})


def test_bytes_and_text_arrive_whole():
    made = PredictRequests({"x": ((None,), "string")}, "mine")
    values = [b"\xff\0", "\u00e4"]
    assert list(made.arrays(values)["x"]) == values
    assert list(sent_by_grpc(made, values)["x"]) == [b"\xff\0", "\u00e4".encode()]
    assert json.loads(made.json(values))["inputs"]["x"] == [{"b64": "/wA="}, "\u00e4"]


# Within an argument


SPEC_ATTACKS = {
    "spec": lambda wrong: {"x": wrong},
    "shape": lambda wrong: {"x": (wrong, "int32")},
    "size": lambda wrong: {"x": ((None, wrong), "int32")},
    "batch": lambda wrong: {"x": ((wrong, 2), "int32")},
    "dtype": lambda wrong: {"x": ((None, 2), wrong)},
}


@pytest.mark.parametrize("place", sorted(SPEC_ATTACKS))
def test_one_wrong_thing_in_the_specs(place):
    for wrong in (*ODD, "float32", (), [None], "resource"):
        inputs = SPEC_ATTACKS[place](wrong)

        def call(inputs=inputs):
            made = PredictRequests(inputs, "mine")
            (shape, dtype), rows = made.inputs["x"], made.inputs["x"][0][0] or 2
            zeros = np.zeros((rows, *(size or 2 for size in shape[1:])), dtype)
            assert made.arrays({"x": zeros})["x"].dtype == dtype

        answer_or_refusal(call, ["inputs"])
    for wrong in [*HASHABLE, ""]:
        answer_or_refusal(lambda x=wrong: PredictRequests({x: ((None,), "int32")}, "m"), ["inputs"])


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
        made = attack_export(written, signature=signature, warmup=None)
        assert made is None or wrong is None or wrong in (2, 4) or wrong == {}
    for wrong in [*HASHABLE, "a/b", ""]:
        attack_export(written, signature={wrong: None}, warmup=None)
        attack_export(written, signature={"short": {wrong: (4,)}}, warmup=None)


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
