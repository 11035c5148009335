"""Programs that torch traces: exported with open sizes, and compiled into one graph.

Keras' own attention does both. So every layer, mask and filter must: batch and length are open,
and the program of one size equals the model at others.
"""

import warnings

import keras
import numpy as np
import pytest
import torch

import keras_graphattn
from keras_graphattn.filters import FILTERS
from keras_graphattn.layers import GraphFilterAttention, MaskedKernelAttention
from tests.export.layer_cases import (
    CASES,
    CHANNELS,
    HEADS,
    LENGTH,
    SIZE,
    batch_for,
    model_of,
    shapes_of_inputs,
)
from tests.numerics import BACKEND, randomise, relative_rms, to_numpy

pytestmark = pytest.mark.skipif(BACKEND != "torch", reason="of torch's exports and its compiler")

BATCH, TRACED = 2, 7
SIZES = ((3, 5), (5, 70))  # of chunks of 64 tokens, the second has two
VOCABULARY = 30
LONGEST = 40  # where a mask has a table of positions
HAS_TABLE = ("low_rank", "positions", "toeplitz")
# Keras' layer has no such masks. Each has one length, of its topology or of its Fourier transform.
ONE_LENGTH = [name for name, case in CASES.items() if case.length == "bound"]
ONE_LENGTH += ["kernel_toeplitz_fft", "kernel_alibi", "kernel_causal_toeplitz"]
# NumPy and SciPy plan the products with a topology that is given once, in the first call.
PLANNED = ("kernel_tree", "kernel_diffusion", "kernel_walks", "gkat", "kernel_random_features")
FAST = ("gfa_blockwise", "p_laplacian", "agf", "kernel_packed", "kernel_low_rank")
FAST += ("kernel_toeplitz_auto", "kernel_diffusion", "gkat_exponential")


def some_fast(names, fast=FAST):
    return [pytest.param(n, marks=[] if n in fast else pytest.mark.slow) for n in names]


def open_sizes(model, length=None, longest=None):
    """The open axes of each input of a model; only the batch if the length is given."""
    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("length", max=longest)
    axes = {name: {0: batch} for name in model.input}
    for name, (shape, _) in shapes_of_inputs(None).items():
        if name in axes and length is None:
            axes[name] |= {i + 1: tokens for i, size in enumerate(shape) if size is None}
    return axes


def exported(model, batch, axes):
    tensors = {name: torch.tensor(array) for name, array in batch.items()}
    return torch.export.export(model, (tensors,), dynamic_shapes=[(axes,)], strict=False).module()


def check(program, model, batches):
    for batch in batches:
        outputs = program({name: torch.tensor(array) for name, array in batch.items()})
        expected = model(batch, training=False)
        for name, array in keras.tree.map_structure(to_numpy, expected).items():
            assert relative_rms(to_numpy(outputs[name].detach()), array) < 1e-5


@pytest.mark.all_cases
@pytest.mark.parametrize("name", some_fast(CASES))
def test_each_layer_and_mask(name):
    length = LENGTH if name in ONE_LENGTH else None
    longest = LONGEST if length is None and any(part in name for part in HAS_TABLE) else None
    model = model_of([name], length)
    traced = batch_for(model, BATCH, length or TRACED)
    program = exported(model, traced, open_sizes(model, length, longest))
    sizes = [(batch, length or min(tokens, longest or tokens)) for batch, tokens in SIZES]
    check(program, model, [batch_for(model, *size) for size in sizes])


def filtered_model(layer, filter, **call):
    """A model of attention with a filter."""
    inputs = {"series": keras.Input((None, CHANNELS), name="series")}
    model = keras.Model(inputs, {"y": layer(HEADS, SIZE, filter=filter)(inputs["series"], **call)})
    randomise(model)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("filter", FILTERS)
def test_each_filter(filter):
    for layer in (GraphFilterAttention, MaskedKernelAttention):
        model = filtered_model(layer, filter)
        program = exported(model, batch_for(model, BATCH, TRACED), open_sizes(model))
        check(program, model, [batch_for(model, *size) for size in SIZES])


def converted(attention):
    models = pytest.importorskip("keras_hub").models
    backbone = models.BertBackbone(VOCABULARY, 1, 2, 8, 16, max_sequence_length=80)
    return keras_graphattn.convert(backbone, attention)


def tokens_of(batch, length):
    generator = np.random.default_rng(length)
    ids = generator.integers(0, VOCABULARY, (batch, length))
    real = (np.arange(length) < generator.integers(1, length + 1, (batch, 1))).astype("int32")
    return {"token_ids": ids, "segment_ids": np.zeros_like(ids), "padding_mask": real}


@pytest.mark.parametrize(
    "attention", ["graph_filter", *some_fast(["p_laplacian", "attentive_graph_filter"])]
)
def test_a_converted_model(attention):
    model = converted(attention)
    randomise(model)
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=80)
    axes = {name: {0: batch, 1: length} for name in model.input}
    program = exported(model, tokens_of(BATCH, TRACED), axes)
    check(program, model, [tokens_of(*size) for size in SIZES])


@pytest.mark.parametrize("name", ["gfa", *some_fast(["kernel_causal", "agf_causal"])])
def test_export_by_keras(name, tmp_path):
    model = model_of([name], None)
    path = tmp_path / "model.pt2"  # Keras traces with a batch of 2 and a length of 2
    model.export(path, format="torch", dynamic_shapes=open_sizes(model), verbose=False)
    program = torch.export.load(path).module()
    check(program, model, [batch_for(model, *size) for size in SIZES])


@pytest.mark.all_cases
@pytest.mark.parametrize(
    "name", some_fast([n for n in CASES if not n.startswith(PLANNED) or n.endswith("example")])
)
def test_each_layer_compiles_into_one_graph(name):
    model = model_of([name], LENGTH)
    batch = batch_for(model, BATCH, LENGTH)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # such as those of the compiler
        outputs = compiled({key: torch.tensor(array) for key, array in batch.items()})
    check(lambda _: outputs, model, [batch])


# torch exports to ONNX what it traces so: without `ravel`, and wrongly where indices repeat
NOT_IN_ONNX = ("aten::ravel(", "aten::index_add(", "PythonOp")


@pytest.mark.parametrize(
    "name", ["kernel_toeplitz_auto", "gkat_walks_per_example", "gkat_factored"]
)
def test_what_onnx_does_not_have_is_not_traced(name):
    model = model_of([name], None)
    batch = batch_for(model, BATCH, TRACED)
    names = list(batch)

    class Positional(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *tensors):
            return self.model(dict(zip(names, tensors, strict=True)))[name]

    tensors = tuple(torch.tensor(array) for array in batch.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        graph = str(torch.jit.trace(Positional(), tensors, check_trace=False).inlined_graph)
    assert [part for part in NOT_IN_ONNX if part in graph] == []
