"""Files of `Model.export` in the runtimes of their formats, and `check_export`.

`guides/formats.json` says what each file takes. The tests write and run that file, and ask
`check_export` to refuse what it does not take.
"""

import json
from contextlib import nullcontext

import keras
import pytest

import keras_graphattn
from keras_graphattn.export.saved_model import readable_by_tensorflow
from keras_graphattn.keras_internals import walk
from keras_graphattn.layers.conversion_mark import ConversionMark
from keras_graphattn.layers.token_layer import TokenLayer
from tests.export.format_table import COLUMNS, LABELS, OUTCOMES, TABLE, rendered
from tests.export.formats import (
    MODELS,
    NOTHING,
    RUNTIMES,
    WRITERS,
    check,
    check_padding,
    model_with,
    possible_sizes,
    signature_with,
)
from tests.numerics import BACKEND

KEPT = json.loads(OUTCOMES.read_text())
FORMATS = [format for format, backend in COLUMNS if backend == BACKEND]
QUICK = {
    ("tf_saved_model", "gfa_blockwise"),
    ("onnx", "gfa"),
    ("onnx", "kernel_exponential"),
    ("torch", "gfa"),
}
# Small or special cases, refused as their layer or path is in general
BY_FFT = ("kernel_alibi", "kernel_causal_toeplitz")
REFUSED_AS_OTHERS = {
    ("onnx", "jax"): BY_FFT,
    ("onnx", "tensorflow"): (*BY_FFT, "delta_rule_packed"),
    ("litert", "tensorflow"): (*BY_FFT, "delta_rule_packed", "gkat_dynamic_walks"),
    ("litert", "torch"): ("max_pooling", "mean_pooling", "sum_pooling"),
    ("openvino", "tensorflow"): (*BY_FFT, "delta_rule_packed"),
}
# KerasHub's own model has the same limit
OF_KERAS = ("keras", "bert")
OF_OURS = (ConversionMark, TokenLayer)


def cells():
    for format in FORMATS:
        for name in MODELS:
            is_quick = (format, name) in QUICK
            yield pytest.param(
                name, format, marks=() if is_quick else pytest.mark.slow, id=f"{name}-{format}"
            )


def kept(name, format):
    return KEPT["cells"][name][format][BACKEND]


@pytest.fixture(autouse=True)
def _readable_by_tensorflow():
    """Of itself, `Model.export` writes from JAX 0.11 and later what TensorFlow 2.21 cannot read."""
    with readable_by_tensorflow() if BACKEND == "jax" else nullcontext():
        yield


@pytest.mark.all_cases
@pytest.mark.parametrize(("name", "format"), cells())
def test_a_file_runs_with_the_sizes_of_the_table(name, format, tmp_path):
    for module in {RUNTIMES.get(format), WRITERS.get((format, BACKEND))} - {None}:
        pytest.importorskip(module)
    if name.startswith("bert"):
        pytest.importorskip("keras_hub")
    if kept(name, format) != NOTHING:
        check(name, format, kept(name, format), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_nan_in_padding_changes_nothing_in_a_file(format, tmp_path):
    for module in {RUNTIMES.get(format), WRITERS.get((format, BACKEND))} - {None}:
        pytest.importorskip(module)
    case = "gfa_padded", format, kept("gfa_padded", format), tmp_path
    if (format, BACKEND) == ("onnx", "tensorflow"):  # the page says so
        with pytest.raises(AssertionError, match="nan location mismatch"):
            check_padding(*case)
    else:
        check_padding(*case)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith(OF_KERAS)])
def test_check_export_refuses_what_the_table_does_not_have(name):
    for format in FORMATS:
        sizes = possible_sizes(name)
        found = kept(name, format)
        wider = sizes if found == NOTHING else sizes[: sizes.index(found)]
        for each in sizes:
            model = model_with(name, each)
            signature = signature_with(model, each)
            if each in wider:
                layer = next(x for x in walk(model) if isinstance(x, OF_OURS))
                with pytest.raises(ValueError, match=f"{type(layer).__name__} '{layer.name}'"):
                    keras_graphattn.check_export(model, format, signature)
            elif name not in REFUSED_AS_OTHERS.get((format, BACKEND), ()):
                keras_graphattn.check_export(model, format, signature)


def test_check_export_names_the_backends_of_a_format():
    x = keras.Input((4, 6))
    model = keras.Model(x, keras_graphattn.GraphFilterAttention(2, 4)(x))
    refused = {"tensorflow": ["torch"], "jax": ["litert", "openvino", "torch"]}
    for format in refused.get(BACKEND, ["tf_saved_model"]):
        with pytest.raises(ValueError, match=f"Keras writes the format '{format}' from"):
            keras_graphattn.check_export(model, format)
    keras_graphattn.check_export(model, "onnx")
    with pytest.raises(ValueError, match="`format` must be"):
        keras_graphattn.check_export(model, "gguf")


def test_check_export_needs_the_sizes():
    class Own(keras.Model):
        def call(self, x):
            return x

    with pytest.raises(ValueError, match="give `input_signature`"):
        keras_graphattn.check_export(Own(), "onnx")
    keras_graphattn.check_export(Own(), "onnx", [keras.InputSpec(shape=(1, 4))])


def test_the_page_is_that_of_the_outcomes():
    assert TABLE.read_text() == rendered(KEPT)
    assert list(LABELS) == list(KEPT["cells"])
    assert LABELS.keys() == MODELS.keys()
    for name, formats in KEPT["cells"].items():
        for format, backend in COLUMNS:
            sizes = (*possible_sizes(name), NOTHING)
            assert formats[format][backend] in sizes, (name, format, backend)
