"""Requests to one signature of a served model, as gRPC messages or JSON, and for its warm-up."""

import base64
import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike

from keras_graphattn.checks import Array, Sizes, checked, number, optional, text, whole
from keras_graphattn.export.signature import DEFAULT, Signature, Specs
from keras_graphattn.version import INSTALL_EXTRA

Batch = ArrayLike | Mapping[str, ArrayLike]
WARMUP_FILE = Path("assets.extra", "tf_serving_warmup_requests")


def _specs(name: str, value: Any, sizes: Sizes) -> Specs:
    """Checks a mapping from each input's name to its (shape, dtype)."""
    try:
        specs = {
            text("name", key): (
                tuple(optional(whole())("size", size, {}) for size in shape),
                keras.backend.standardize_dtype(dtype),
            )
            for key, (shape, dtype) in value.items()
            if isinstance(shape, (list, tuple)) and len(shape)
        }
    except (ValueError, TypeError, AttributeError):
        specs = {}
    if not specs or len(specs) < len(value):
        raise ValueError(
            f"`{name}` must map each input's name to its (shape, dtype), such as "
            "{'tokens': ((None, 3), 'int32')}. The first size is the batch (None). Received: "
            f"{name}={value!r}"
        )
    return specs


class PredictRequests:
    """Builds requests to one signature of a served model from preprocessed batches.

    The client does the preprocessing, such as tokenizing, padding and scaling. The results often
    have other types than the served inputs, and a server does not cast. For example, it refuses a
    boolean padding mask where the graph takes integers. This class casts arrays and tensors of any
    backend if the cast loses nothing but floating-point digits. It raises an error for everything
    that the server would refuse.

    Args:
        inputs: Mapping from each input's name to its (shape, dtype). The batch dimension is
            `None`. `of_server` asks a server for them.
        model: Name of the model on the server.
        signature: Name of the signature.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> specs = {"tokens": ((None, 3), "int32"), "mask": ((None, 3), "int32")}
    >>> requests = PredictRequests(specs, model="reviews")
    >>> print(requests.json({"tokens": [[7, 8, 0]], "mask": np.array([[True, True, False]])}))
    {"signature_name": "serving_default", "inputs": {"tokens": [[7, 8, 0]], "mask": [[1, 1, 0]]}}
    """

    @checked(inputs=_specs, model=text, signature=text)
    def __init__(self, inputs: Specs, model: str, signature: str = DEFAULT) -> None:
        self.inputs, self.model, self.signature = inputs, model, signature

    @classmethod
    @checked(model=text, signature=text, timeout=number(above=0))
    def of_server(
        cls, stub: Any, model: str, signature: str = DEFAULT, timeout: float = 10.0
    ) -> "PredictRequests":
        """Gets the signature from a running server.

        Args:
            stub: A `PredictionServiceStub` of `tensorflow_serving.apis`.
            model: Name of the model on the server.
            signature: Name of the signature.
            timeout: Seconds to wait.

        Raises:
            ValueError: If the model has no such signature, or an argument is invalid.
            ImportError: If `tensorflow-serving-api` is not installed.
            grpc.RpcError: If the server does not answer or has no such model.
        """
        messages = serving_messages("get_model_metadata")
        from tensorflow.dtypes import as_dtype

        request = messages.GetModelMetadataRequest()
        request.model_spec.name = model
        request.metadata_field.append("signature_def")
        served = messages.SignatureDefMap()
        stub.GetModelMetadata(request, timeout).metadata["signature_def"].Unpack(served)
        if signature not in served.signature_def:
            public = sorted(name for name in served.signature_def if not name.startswith("__"))
            raise ValueError(f"The served model has no signature '{signature}'. It has: {public}")
        specs: Specs = {}
        for name, info in sorted(served.signature_def[signature].inputs.items()):
            sizes = (dimension.size for dimension in info.tensor_shape.dim)  # -1 where open
            shape = tuple(None if size < 0 else int(size) for size in sizes)
            specs[name] = (shape, as_dtype(info.dtype).name)
        return cls(specs, model, signature)

    def arrays(self, inputs: Batch) -> dict[str, Array]:
        """Checks and casts one batch.

        Args:
            inputs: Mapping from names to arrays, tensors of any backend or nested lists, each of
                shape (B, ...). If the signature has only one input, it may be the array itself.

        Returns:
            Mapping from names to NumPy arrays of the served types.

        Raises:
            ValueError: If names, shapes or types do not match the signature.
        """
        return _checked_batch(inputs, self.inputs, f"The signature '{self.signature}'")

    def grpc(self, inputs: Batch) -> Any:
        """Returns the `PredictRequest` of one batch, for `PredictionServiceStub.Predict`.

        Args:
            inputs: As in `arrays`.

        Raises:
            ValueError: As in `arrays`.
            ImportError: If `tensorflow-serving-api` is not installed.
        """
        return _message(self.arrays(inputs), self.model, self.signature)

    def json(self, inputs: Batch) -> str:
        """Returns the body of one batch for `POST /v1/models/<model>:predict`.

        The body has the column format: one array for each input. In the server's answer, `outputs`
        maps names to values, or is only the values if there is one output. Bytes are sent as the
        server expects them, `{"b64": ...}`.

        Args:
            inputs: As in `arrays`.

        Raises:
            ValueError: As in `arrays`.
        """
        columns = {name: array.tolist() for name, array in self.arrays(inputs).items()}
        body = {"signature_name": self.signature, "inputs": columns}
        return json.dumps(body, default=lambda x: {"b64": base64.b64encode(x).decode()})


def serving_messages(name: str) -> Any:
    """The module of TensorFlow Serving's messages; an `ImportError` if it is missing."""
    try:
        return importlib.import_module(f"tensorflow_serving.apis.{name}_pb2")
    except ImportError as error:
        raise ImportError(
            "Requests and warm-up records are messages of TensorFlow Serving. They need "
            "tensorflow-serving-api. "
            f"Install the extra `serving` in a checkout: {INSTALL_EXTRA.format('serving')}"
        ) from error


def _message(arrays: dict[str, Array], model: str, signature: str) -> Any:
    request = serving_messages("predict").PredictRequest()
    from tensorflow import make_tensor_proto

    request.model_spec.name = model
    request.model_spec.signature_name = signature
    for name, array in arrays.items():
        request.inputs[name].CopyFrom(make_tensor_proto(array))
    return request


def _checked_batch(inputs: Batch, specs: Specs, owner: str) -> dict[str, Array]:
    """One batch as arrays of the shapes and types in `specs`, those of `owner`."""
    if not isinstance(inputs, Mapping) and len(specs) == 1:
        inputs = {next(iter(specs)): inputs}
    if not isinstance(inputs, Mapping) or set(inputs) != set(specs):
        names = sorted(map(str, inputs)) if isinstance(inputs, Mapping) else type(inputs).__name__
        raise ValueError(f"{owner} takes a dictionary of {sorted(specs)}. Received: {names}")
    arrays = {}
    for name, (shape, dtype) in specs.items():
        array = arrays[name] = _cast(inputs[name], dtype, name, owner)
        if len(array.shape) != len(shape) or any(
            expected not in (None, size) for size, expected in zip(array.shape, shape, strict=True)
        ):
            raise ValueError(
                f"{owner} takes '{name}' of shape {shape}. Received: shape={array.shape}"
            )
    sizes = {name: array.shape[0] for name, array in arrays.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        raise ValueError(
            f"{owner} takes inputs of one batch size of at least 1. Received sizes: {sizes}"
        )
    return arrays


def _cast(value: ArrayLike, dtype: str, name: str, owner: str) -> Array:
    """An array of one input. Floats may lose digits and integers may change width, nothing else."""
    if keras.ops.is_tensor(value):
        value = keras.ops.convert_to_numpy(value)
    try:
        # NumPy's string types drop zero bytes at the end, so text is kept as Python objects.
        is_text = dtype == "string" and isinstance(value, (list, tuple, str, bytes))
        array = np.asarray(value, object if is_text else None)
    except Exception as error:  # an object may raise anything
        raise ValueError(
            f"The input '{name}' must be an array, a tensor or a nested list. Received a "
            f"{type(value).__name__}: {error} Pad rows of different lengths."
        ) from error
    if dtype == "string":
        cast = array.astype(object)
        fits = all(isinstance(value, (str, bytes)) for value in cast.flat)
    else:
        served = np.dtype(dtype)
        integers = array.dtype.kind in "biu" and served.kind in "iu"
        numbers = array.dtype.kind not in "cSU" or served.kind == "c"
        cast = array
        fits = integers or (numbers and np.can_cast(array.dtype, served, "same_kind"))
        if fits:
            with np.errstate(over="ignore"):
                cast = array.astype(served)
            same = cast == array if integers else np.isfinite(cast) == np.isfinite(array)
            fits = bool(np.all(same))
    if not fits:
        raise ValueError(
            f"{owner} takes '{name}' as {dtype}. The given values cannot be cast to it without "
            f"loss. Received: dtype={array.dtype}"
        )
    return cast


def warmup_requests(
    model: keras.Model, signatures: dict[str, Signature], warmup: Batch | Sequence[Batch]
) -> list[tuple[str, dict[str, Array]]]:
    """Checks warm-up batches, and runs the model on each: a server refuses one that fails.

    Returns:
        A signature's name and the arrays of a batch, for each signature that accepts its shapes.
    """
    serving_messages("prediction_log")
    requests: list[tuple[str, dict[str, Array]]] = []
    for place, batch in enumerate(warmup if isinstance(warmup, (list, tuple)) else [warmup]):
        fitting, refusals = {}, []
        for name, signature in signatures.items():
            try:
                fitting[name] = _checked_batch(batch, signature.inputs, f"The signature '{name}'")
            except ValueError as error:
                refusals.append(str(error))
        if not fitting:
            raise ValueError(f"`warmup[{place}]` fits no signature. " + " ".join(refusals))
        name, arrays = next(iter(fitting.items()))
        structure = signatures[name].input_structure
        try:
            model.predict_on_batch(keras.tree.map_structure(arrays.__getitem__, structure))
        except Exception as error:
            raise ValueError(
                f"`warmup[{place}]` has the shapes of the signature '{name}', but the model fails "
                f"on it. A server would refuse this version. {type(error).__name__}: {error}"
            ) from error
        requests += fitting.items()
    if not requests:
        raise ValueError("`warmup` is an empty list. Give at least one batch, or leave it out.")
    return requests


def write_warmup(
    requests: list[tuple[str, dict[str, Array]]], folder: Path, model_name: str
) -> None:
    """Writes the requests as `PredictionLog` records into the SavedModel in `folder`."""
    from tensorflow import io

    (folder / WARMUP_FILE).parent.mkdir(exist_ok=True)
    with io.TFRecordWriter(str(folder / WARMUP_FILE)) as writer:
        for name, arrays in requests:
            log = serving_messages("prediction_log").PredictionLog()
            log.predict_log.request.CopyFrom(_message(arrays, model_name, name))
            writer.write(log.SerializeToString())
