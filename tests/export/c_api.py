"""Runs a SavedModel through TensorFlow's C API, without Keras and without TensorFlow in Python.

A model server also loads with `TF_LoadSessionFromSavedModel`. Usage as a script:

    python c_api.py SAVED_MODEL_FOLDER INPUTS.npz OUTPUTS.npz

INPUTS.npz has one array for each input. Its label names the batch, the signature and the input,
such as `3:serving_default:series`. OUTPUTS.npz then has `3:classes`. The script loads the model
once. In a test, `run_in_process` runs the script, and `assert_served` compares the outputs.
"""

import argparse
import ctypes
import importlib.util
import subprocess
import sys
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import NamedTuple

import numpy as np

DTYPES = {  # tensorflow/core/framework/types.proto
    1: np.float32,
    2: np.float64,
    3: np.int32,
    4: np.uint8,
    6: np.int8,
    9: np.int64,
    10: np.bool_,
    19: np.float16,
}
NUMBERS = {np.dtype(dtype): number for number, dtype in DTYPES.items()}


class Buffer(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("length", c_size_t), ("data_deallocator", c_void_p)]


class Port(ctypes.Structure):
    """TF_Output: one output of one operation."""

    _fields_ = [("operation", c_void_p), ("index", c_int)]


class TensorInfo(NamedTuple):
    name: str  # "operation:index" in the graph
    dtype: type
    shape: tuple[int, ...]  # -1 where open


class Library:
    """The C functions that are needed, from the shared libraries of the tensorflow package."""

    def __init__(self):
        folder = Path(importlib.util.find_spec("tensorflow").origin).parent
        framework = ctypes.CDLL(str(folder / "libtensorflow_framework.so.2"), ctypes.RTLD_GLOBAL)
        session = ctypes.CDLL(str(folder / "libtensorflow_cc.so.2"), ctypes.RTLD_GLOBAL)
        signatures = {
            framework: {
                "TF_NewStatus": (c_void_p,),
                "TF_GetCode": (c_int, c_void_p),
                "TF_Message": (c_char_p, c_void_p),
                "TF_NewBuffer": (POINTER(Buffer),),
                "TF_AllocateTensor": (c_void_p, c_int, POINTER(c_int64), c_int, c_size_t),
                "TF_TensorData": (c_void_p, c_void_p),
                "TF_TensorByteSize": (c_size_t, c_void_p),
                "TF_TensorType": (c_int, c_void_p),
                "TF_NumDims": (c_int, c_void_p),
                "TF_Dim": (c_int64, c_void_p, c_int),
                "TF_DeleteTensor": (None, c_void_p),
            },
            session: {
                "TF_NewGraph": (c_void_p,),
                "TF_NewSessionOptions": (c_void_p,),
                "TF_GraphOperationByName": (c_void_p, c_void_p, c_char_p),
                "TF_LoadSessionFromSavedModel": (
                    *(c_void_p, c_void_p, c_void_p, c_char_p, POINTER(c_char_p)),
                    *(c_int, c_void_p, POINTER(Buffer), c_void_p),
                ),
                "TF_SessionRun": (
                    *(None, c_void_p, c_void_p),
                    *(POINTER(Port), POINTER(c_void_p), c_int),
                    *(POINTER(Port), POINTER(c_void_p), c_int),
                    *(c_void_p, c_int, c_void_p, c_void_p),
                ),
            },
        }
        for library, functions in signatures.items():
            for name, (result, *arguments) in functions.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
                setattr(self, name, function)


class SavedModel:
    """A loaded SavedModel: `model.inputs`, `model.outputs`, `model(name=array, ...)`."""

    def __init__(self, folder, signature="serving_default"):
        self.library = library = Library()
        self.status = library.TF_NewStatus()
        self.graph = library.TF_NewGraph()
        meta_graph = library.TF_NewBuffer()
        tags = (c_char_p * 1)(b"serve")
        options = library.TF_NewSessionOptions()
        self.session = library.TF_LoadSessionFromSavedModel(
            *(options, None, str(folder).encode(), tags, 1, self.graph, meta_graph, self.status)
        )
        self._check()
        self.meta_graph = ctypes.string_at(meta_graph.contents.data, meta_graph.contents.length)
        self.choose(signature)

    def choose(self, signature):
        """Switches to another signature."""
        self.inputs, self.outputs = signature_of(self.meta_graph, signature)

    def __call__(self, **inputs):
        library = self.library
        assert set(inputs) == set(self.inputs), (sorted(inputs), sorted(self.inputs))
        names, fetched = list(inputs), list(self.outputs)
        feeds = (Port * len(names))(*(self._port(self.inputs[name]) for name in names))
        fetches = (Port * len(fetched))(*(self._port(self.outputs[name]) for name in fetched))
        arrays = [np.ascontiguousarray(inputs[name], self.inputs[name].dtype) for name in names]
        tensors = (c_void_p * len(names))(*map(self._to_tensor, arrays))
        results = (c_void_p * len(fetched))()
        library.TF_SessionRun(
            *(self.session, None, feeds, tensors, len(names)),
            *(fetches, results, len(fetched), None, 0, None, self.status),
        )
        for tensor in tensors:
            library.TF_DeleteTensor(tensor)
        self._check()
        return {name: self._to_array(tensor) for name, tensor in zip(fetched, results, strict=True)}

    def _check(self):
        if self.library.TF_GetCode(self.status):
            raise RuntimeError(self.library.TF_Message(self.status).decode())

    def _port(self, info):
        name, index = info.name.split(":")
        operation = self.library.TF_GraphOperationByName(self.graph, name.encode())
        assert operation, f"the graph has no operation {name}"
        return Port(operation, int(index))

    def _to_tensor(self, array):
        shape = (c_int64 * array.ndim)(*array.shape)
        tensor = self.library.TF_AllocateTensor(
            NUMBERS[array.dtype], shape, array.ndim, array.nbytes
        )
        ctypes.memmove(self.library.TF_TensorData(tensor), array.ctypes.data, array.nbytes)
        return tensor

    def _to_array(self, tensor):
        library = self.library
        shape = [library.TF_Dim(tensor, axis) for axis in range(library.TF_NumDims(tensor))]
        data = ctypes.string_at(library.TF_TensorData(tensor), library.TF_TensorByteSize(tensor))
        array = np.frombuffer(data, DTYPES[library.TF_TensorType(tensor)]).reshape(shape)
        library.TF_DeleteTensor(tensor)
        return array


def fields(message):
    """Yields the (field number, value) pairs of a serialised protocol buffer message."""
    position = 0

    def varint():
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while position < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
        else:
            size = {1: 8, 2: None, 5: 4}[kind] or varint()
            yield number, message[position : position + size]
            position += size


def entries(message, number):
    """Returns the keys and values of a map<string, message> field."""
    for key, entry in fields(message):
        if key == number:
            pair = dict(fields(entry))
            yield pair[1].decode(), pair.get(2, b"")


def signature_of(meta_graph, name):
    """Returns inputs and outputs of one signature of a MetaGraphDef, as name -> TensorInfo."""
    signatures = dict(entries(meta_graph, 5))
    assert name in signatures, (name, sorted(signatures))
    return tuple(
        {key: tensor_info(value) for key, value in sorted(entries(signatures[name], number))}
        for number in (1, 2)
    )


def tensor_info(message):
    info = dict(fields(message))
    sizes = [dict(fields(value)).get(1, 0) for key, value in fields(info.get(3, b"")) if key == 2]
    shape = tuple(size - 2**64 if size >= 2**63 else size for size in sizes)
    return TensorInfo(info[1].decode(), DTYPES[info[2]], shape)


def run_in_process(folder, batches, scratch, signatures=None):
    """Runs batches (a list of name -> array) through a SavedModel in a separate process.

    Returns the list of outputs, each name -> array. `scratch` is a folder for the arrays.
    `signatures` names the signature of each batch; the default is `serving_default`.
    """
    files = [Path(scratch) / "inputs.npz", Path(scratch) / "outputs.npz"]
    signatures = signatures or ["serving_default"] * len(batches)
    labelled = {
        f"{index}:{signature}:{name}": array
        for index, (signature, batch) in enumerate(zip(signatures, batches, strict=True))
        for name, array in batch.items()
    }
    np.savez(files[0], **labelled)
    command = [sys.executable, __file__, str(folder), *map(str, files)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-4000:]
    results = [{} for _ in batches]
    with np.load(files[1]) as arrays:
        for label in arrays:
            index, name = label.split(":", 1)
            results[int(index)][name] = arrays[label]
    return results


def assert_served(folder, batches, expected, scratch, signatures=None, tolerance=1e-5):
    """Compares a SavedModel with Keras' outputs: `expected` has name -> array for each batch."""
    results = run_in_process(folder, batches, scratch, signatures)
    for batch, result, arrays in zip(batches, results, expected, strict=True):
        assert set(result) == set(arrays)
        shapes = {name: array.shape for name, array in batch.items()}
        for name, array in arrays.items():
            assert np.isfinite(array).all(), (name, shapes)
            error = np.abs(result[name] - array).max() / max(1.0, np.abs(array).max())
            assert error < tolerance, (name, shapes, error)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("folder", "inputs", "outputs"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    model = SavedModel(arguments.folder)
    batches = {}
    with np.load(arguments.inputs) as arrays:
        for label in arrays:
            batch, signature, name = label.split(":")
            batches.setdefault((batch, signature), {})[name] = arrays[label]
    outputs = {}
    for (batch, signature), inputs in batches.items():
        model.choose(signature)
        outputs.update({f"{batch}:{name}": array for name, array in model(**inputs).items()})
    np.savez(arguments.outputs, **outputs)
    assert not {"keras", "tensorflow", "jax", "torch"} & set(sys.modules)


if __name__ == "__main__":
    main()
