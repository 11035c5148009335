"""Models to export, and what their files of `Model.export` do in the runtimes of the formats.

`check` exports a model, runs the file and compares it with Keras. `widest` says which sizes a file
takes.
"""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

import keras_graphattn
from tests.export.layer_cases import (
    CASES,
    HEADS,
    LENGTH,
    SIZE,
    TokenLayer,
    batch_for,
    shapes_of_inputs,
)
from tests.numerics import randomise, to_numpy

FORMATS = {  # and the endings of their files
    "tf_saved_model": "",  # a folder
    "onnx": ".onnx",
    "litert": ".tflite",
    "openvino": ".xml",
    "torch": ".pt2",
}
RUNTIMES = {
    "tf_saved_model": "tensorflow",
    "onnx": "onnxruntime",
    "litert": "ai_edge_litert",
    "openvino": "openvino",
}
# What writes a file, if that is no part of the backend
WRITERS = {
    ("onnx", "tensorflow"): "tf2onnx",
    ("onnx", "jax"): "jax2onnx",
    ("onnx", "torch"): "onnxscript",
    ("litert", "torch"): "litert_torch",
}
ANY_LENGTH, ANY_BATCH, FIXED, NOTHING = "any length", "any batch", "fixed", "refused"
WIDEST_FIRST = (ANY_LENGTH, ANY_BATCH, FIXED)
# (batch, length) of the inputs that a file gets; 130 is three chunks of 64 tokens
SIZES = ((2, LENGTH), (5, LENGTH), (2, 9), (3, 130))
LONGEST = 40  # instead of 130, where a mask or a model has a table of positions
HAS_TABLE = ("toeplitz", "alibi", "low_rank", "positions", "bert")
VOCABULARY = 30


class Exported(NamedTuple):
    """A model to export.

    `make` takes a length or `None`; `batch` takes an object with the names of the inputs as
    `input`, a batch and a length. `bound` marks a model that has one length.
    """

    make: Callable[[int | None], Any]
    batch: Callable[[Any, int, int], dict[str, np.ndarray]] = batch_for
    bound: bool = False


def _attention(layer, length, names=("series",), takes="mask_inputs", **call):
    """A model of one layer. An input `padding_mask` is the mask of its tokens."""
    inputs = {
        name: keras.Input(shape, dtype=dtype, name=name)
        for name, (shape, dtype) in shapes_of_inputs(length).items()
        if name in names
    }
    tensors = dict(inputs)
    arguments = [tensors.pop("series")]
    if "padding_mask" in tensors:
        call |= dict.fromkeys(("query_mask", "value_mask"), tensors.pop("padding_mask"))
    if tensors:
        call[takes] = tensors
    if isinstance(layer, keras.layers.MultiHeadAttention):
        arguments *= 2
    outputs = layer(*arguments, **call)
    model = keras.Model(arguments[0] if len(inputs) == 1 else inputs, outputs)
    randomise(model)
    return model


def _keras(*names, **call):
    return Exported(
        lambda length: _attention(
            keras.layers.MultiHeadAttention(HEADS, SIZE), length, ("series", *names), **call
        )
    )


def _case(name, *names, **options):
    case = CASES[name]
    sizes = () if issubclass(case.kind, TokenLayer) else (HEADS, SIZE)
    takes = "bias_inputs" if "bias" in case.options() else "mask_inputs"
    names = ("series", *case.inputs, *names)

    def make(length):
        layer = case.kind(*sizes, **case.options(), **options)
        return _attention(layer, length, names, takes, **case.call)

    return Exported(make, bound=case.length == "bound")


def _bert(attention):
    names = ("token_ids", "segment_ids", "padding_mask")

    def make(length):
        from keras_hub.models import BertBackbone

        backbone = BertBackbone(VOCABULARY, 1, 2, 8, 16, max_sequence_length=LONGEST)
        if attention is not None:
            keras_graphattn.convert(backbone, attention)
        randomise(backbone)
        inputs = {name: keras.Input((length,), dtype="int32", name=name) for name in names}
        return keras.Model(inputs, backbone(inputs)["sequence_output"])

    def batch(model, size, length):
        generator = np.random.default_rng(length)
        ids = generator.integers(0, VOCABULARY, (size, length))
        real = np.arange(length) < generator.integers(1, length + 1, (size, 1))
        arrays = zip(names, (ids, np.zeros_like(ids), real), strict=True)
        return {name: array.astype("int32") for name, array in arrays}

    return Exported(make, batch)


MODELS = {
    "keras": _keras(),
    "keras_causal": _keras(use_causal_mask=True),
    "keras_padded": _keras("padding_mask"),
    **{name: _case(name) for name in CASES},
    "gfa_blockwise": _case("gfa_blockwise", block_size=16),
    "gfa_padded": _case("gfa", "padding_mask"),
    "p_laplacian_dense": _case("p_laplacian", attention_path="dense"),
    "kernel_exponential_dense": _case("kernel_exponential", path="dense"),
    "bert_keras": _bert(None),
    "bert_graph_filter": _bert("graph_filter"),
    "bert_p_laplacian": _bert("p_laplacian"),
    "bert_attentive_graph_filter": _bert("attentive_graph_filter"),
}


class Named(NamedTuple):
    """What `batch_for` reads of a model: the inputs by name."""

    input: dict[str, Any]

    @classmethod
    def of(cls, model):
        tensors = keras.tree.flatten(model.input)
        return cls({tensor._keras_history.operation.name: tensor for tensor in tensors})


def model_with(name, sizes):
    """The model for files that take these sizes."""
    return MODELS[name].make(None if sizes == ANY_LENGTH else LENGTH)


def signature_with(model, sizes):
    """`input_signature` of an export: `None` for the sizes of the model."""
    if sizes != FIXED:
        return None

    def fixed(x):
        return keras.InputSpec(shape=(SIZES[0][0], *x.shape[1:]), dtype=x.dtype, name=x.name)

    return [keras.tree.map_structure(fixed, model.input)]


def export(model, path, format, sizes, longest):
    """`model.export` with the sizes of the model open, or all of them fixed."""
    options = {}
    if sizes == FIXED:
        options["input_signature"] = signature_with(model, sizes)
    elif format == "torch":
        options["dynamic_shapes"] = _open_axes(model, longest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.export(str(path), format=format, verbose=False, **options)


def _open_axes(model, longest):
    import torch

    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=longest)

    def open_axes(x):
        return {0: batch} | {i: length for i, n in enumerate(x.shape) if i and n is None}

    return [(keras.tree.map_structure(open_axes, model.input),)]


def runs(path, format, batches):
    """The outputs that a file gives for each batch, in the runtime of its format."""
    runtimes = {
        "onnx": _by_onnx,
        "torch": _by_torch,
        "litert": _by_litert,
        "openvino": _by_openvino,
        "tf_saved_model": _by_tensorflow,
    }
    return runtimes[format](str(path), batches)


def _by_onnx(path, batches):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    for batch in batches:
        yield session.run(None, dict(zip(names, _in_order(batch, names), strict=True)))[0]


def _by_torch(path, batches):
    import torch

    program = torch.export.load(path).module()
    for batch in batches:
        tensors = {name: torch.tensor(array) for name, array in batch.items()}
        given = next(iter(tensors.values())) if len(tensors) == 1 else tensors
        yield program(given).detach().numpy()


def _by_tensorflow(path, batches):
    import tensorflow as tf

    served = tf.saved_model.load(path)
    for batch in batches:
        tensors = {name: tf.constant(array) for name, array in batch.items()}
        given = next(iter(tensors.values())) if len(tensors) == 1 else tensors
        yield served.serve(given).numpy()


def _by_litert(path, batches):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path)
    for batch in batches:
        details = interpreter.get_input_details()
        arrays = _in_order(batch, [_plain(detail["name"]) for detail in details])
        for detail, array in zip(details, arrays, strict=True):
            interpreter.resize_tensor_input(detail["index"], array.shape)
        try:
            interpreter.allocate_tensors()
        except RuntimeError as error:
            missing = sorted(set(re.findall(rb"Flex\w+", Path(path).read_bytes())))
            raise RuntimeError(f"LiteRT does not have {missing}. {error}") from error
        for detail, array in zip(details, arrays, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        yield interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).copy()


def _plain(name):
    """`serving_default_series:0` or, from torch, `serving_default_args_0_series` -> `series`."""
    return name.removeprefix("serving_default_").removeprefix("args_0_").split(":")[0]


def _by_openvino(path, batches):
    import openvino

    core, options = openvino.Core(), {"INFERENCE_PRECISION_HINT": "f32"}
    for operation in core.read_model(path).get_ops():
        if operation.get_type_name() == "StridedSlice":
            shape = operation.input(0).get_partial_shape()
            what = "OpenVINO 2026.4 reads memory that nobody wrote for `number[None]`"
            assert not (shape.rank.is_static and len(shape) == 0), (what, operation)
    model = core.compile_model(path, "CPU", options)
    names = [x.node.friendly_name for x in model.inputs]  # `any_name` is another one from torch
    for batch in batches:
        yield next(iter(model(_in_order(batch, names)).values()))


def _in_order(batch, names):
    """The arrays of a batch by the names of a file, or else in the order of their names."""
    names = [name.split(":")[0] for name in names]
    return [batch[name] for name in (names if set(names) == set(batch) else sorted(batch))]


def check(name, format, sizes, folder, tolerance=1e-5):
    """Exports a model with these sizes open, runs the file, and compares it with Keras."""
    keras.utils.set_random_seed(0)
    longest = LONGEST if any(part in name for part in HAS_TABLE) else SIZES[-1][1]
    wanted = [(batch, min(length, longest)) for batch, length in SIZES]
    if sizes != ANY_LENGTH:
        wanted = [size for size in wanted if size[1] == LENGTH][: 1 if sizes == FIXED else None]
    model = model_with(name, sizes)
    batches = [MODELS[name].batch(Named.of(model), *size) for size in wanted]
    given = [next(iter(x.values())) if len(x) == 1 else x for x in batches]
    expected = [to_numpy(model(x, training=False)) for x in given]  # ONNX: only after a call
    path = Path(folder) / f"model{FORMATS[format]}"
    export(model, path, format, sizes, longest)
    for size, array, found in zip(wanted, expected, runs(path, format, batches), strict=True):
        assert found.shape == array.shape, (size, found.shape, array.shape)
        error = np.abs(found - array).max() / max(1.0, np.abs(array).max())
        assert error < tolerance, f"wrong numbers at {size}: {error}"


def check_padding(name, format, sizes, folder):
    """Exports a model and checks that its file gives the same numbers if padding holds NaN."""
    keras.utils.set_random_seed(0)
    model = model_with(name, sizes)
    zeros = MODELS[name].batch(Named.of(model), *SIZES[0])
    real = zeros["padding_mask"]
    assert not real.all()
    zeros["series"][~real] = 0.0
    nans = {**zeros, "series": np.where(real[..., None], zeros["series"], np.float32("nan"))}
    path = Path(folder) / f"model{FORMATS[format]}"
    model(zeros)
    export(model, path, format, sizes, SIZES[-1][1])
    expected, found = (x[real] for x in runs(path, format, [zeros, nans]))
    np.testing.assert_array_equal(found, expected)


def possible_sizes(name):
    """What a file may take, the widest first."""
    return WIDEST_FIRST[1:] if MODELS[name].bound else WIDEST_FIRST
