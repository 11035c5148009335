"""Builds a client's requests to one signature, as gRPC messages or JSON."""

import base64
import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from keras_graphattn.checks import Sizes, checked, folder, number, optional, text, whole
from keras_graphattn.export.batches import checked_batch
from keras_graphattn.export.signature import DEFAULT, Specs
from keras_graphattn.version import INSTALL_EXTRA

Array = Any
Message = Any
Stub = Any

VERSION = whole(0, below=2**63)


def _inputs(name: str, value: Any, sizes: Sizes) -> Specs:
    """Checks a mapping from each input's name to its (shape, dtype); it must not be empty."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError(
            f"`{name}` must map each input's name to its (shape, dtype), such as "
            f"{{'tokens': ((None, 3), 'int32')}}. Received: {name}={value!r}"
        )
    return {text(f"key of {name}", key): _spec(f"{name}[{key!r}]", value[key]) for key in value}


def _spec(name: str, value: Any) -> tuple[tuple[int | None, ...], str]:
    """Checks one (shape, dtype)."""
    try:
        shape, dtype = value
        is_list = isinstance(shape, (list, tuple))
        shape = tuple(optional(whole())("shape", x, {}) for x in shape) if is_list else ()
        dtype = None if dtype is None else keras.backend.standardize_dtype(dtype)
    except (ValueError, TypeError, AttributeError):
        shape, dtype = (), None
    if not shape or dtype is None:
        raise ValueError(
            f"`{name}` must be a pair of a shape and a dtype, such as ((None, 3), 'int32'). The "
            f"first size is the batch (None). Received: {value!r}"
        )
    return shape, dtype


def _stub(name: str, value: Any, sizes: Sizes) -> Stub:
    if not callable(getattr(value, "GetModelMetadata", None)):
        raise ValueError(
            f"`{name}` must be a PredictionServiceStub of tensorflow_serving.apis. Received: "
            f"{name}={value!r}"
        )
    return value


class PredictRequests:
    """Builds requests to one signature of a served model from preprocessed batches.

    The client does the preprocessing, such as tokenizing, padding and scaling. The results often
    have other types than the served inputs, and a server does not cast. For example, it refuses a
    boolean padding mask where the graph takes integers. This class casts arrays and tensors of any
    backend if the cast loses nothing but floating-point digits. It raises an error for everything
    that the server would refuse.

    Args:
        inputs: Mapping from each input's name to its (shape, dtype). The batch dimension is
            `None`.
        model: Name of the model on the server.
        signature: Name of the signature.
        version: The model version to request. By default, the server chooses.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> specs = {"tokens": ((None, 3), "int32"), "mask": ((None, 3), "int32")}
    >>> requests = PredictRequests(specs, model="reviews")
    >>> print(requests.json({"tokens": [[7, 8, 0]], "mask": np.array([[True, True, False]])}))
    {"signature_name": "serving_default", "inputs": {"tokens": [[7, 8, 0]], "mask": [[1, 1, 0]]}}
    """

    @checked(inputs=_inputs, model=text, signature=text, version=optional(VERSION))
    def __init__(
        self, inputs: Specs, model: str, signature: str = DEFAULT, version: int | None = None
    ) -> None:
        self.inputs, self.model, self.signature, self.version = inputs, model, signature, version

    @classmethod
    @checked(folder=folder, model=optional(text), signature=text)
    def of_folder(
        cls, folder: str | os.PathLike[str], model: str | None = None, signature: str = DEFAULT
    ) -> "PredictRequests":
        """Reads the signature from the folder of a version, such as `served/reviews/1`.

        Args:
            folder: The version's folder.
            model: Name of the model on the server. By default, the name of the parent folder.
            signature: Name of the signature.

        Raises:
            ValueError: If the version has no such signature, or its file is damaged.
            OSError: If `folder` contains no SavedModel.
        """
        from google.protobuf.message import DecodeError
        from tensorflow.core.protobuf import saved_model_pb2

        folder = Path(folder).resolve()
        saved_model = saved_model_pb2.SavedModel()
        try:
            saved_model.ParseFromString((folder / "saved_model.pb").read_bytes())
            specs = _specs(saved_model.meta_graphs[0].signature_def, signature)
        except OSError as error:
            raise type(error)(
                f"`folder` must contain the saved_model.pb of an exported version. Received: "
                f"folder='{folder}', where this file cannot be read: {error.strerror}."
            ) from error
        except (DecodeError, IndexError, TypeError) as error:
            raise ValueError(
                f"`folder` contains a saved_model.pb that is damaged or not a SavedModel. "
                f"Received: folder='{folder}'. Export the version again. ({error})"
            ) from error
        return cls(specs, model or folder.parent.name, signature)

    @classmethod
    @checked(stub=_stub, model=text, signature=text, timeout=number(above=0))
    def of_server(
        cls, stub: Stub, model: str, signature: str = DEFAULT, timeout: float = 10.0
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
        check_serving_api()
        from tensorflow_serving.apis import get_model_metadata_pb2

        request = get_model_metadata_pb2.GetModelMetadataRequest()
        request.model_spec.name = model
        request.metadata_field.append("signature_def")
        answer = stub.GetModelMetadata(request, timeout)
        found = get_model_metadata_pb2.SignatureDefMap()
        answer.metadata["signature_def"].Unpack(found)
        return cls(_specs(found.signature_def, signature), model, signature)

    def arrays(self, inputs: Any) -> dict[str, Array]:
        """Checks and casts one batch.

        Args:
            inputs: Mapping from names to arrays, tensors of any backend or nested lists, each of
                shape (B, ...). If the signature has only one input, it may be the array itself.

        Returns:
            Mapping from names to NumPy arrays of the served types.

        Raises:
            ValueError: If names, shapes or types do not match the signature.
        """
        return checked_batch(inputs, self.inputs, f"The signature '{self.signature}'")

    def grpc(self, inputs: Any) -> Message:
        """Returns the `PredictRequest` of one batch, for `PredictionServiceStub.Predict`.

        Args:
            inputs: As in `arrays`.

        Raises:
            ValueError: As in `arrays`.
            ImportError: If `tensorflow-serving-api` is not installed.
        """
        return predict_message(self.arrays(inputs), self.model, self.signature, self.version)

    def json(self, inputs: Any) -> str:
        """Returns the body of one batch for `POST /v1/models/<model>:predict`.

        The body has the column format: one array for each input. In the server's answer, `outputs`
        maps names to values, or is only the values if there is one output. Bytes are sent as the
        server expects them, `{"b64": ...}`.

        Args:
            inputs: As in `arrays`.

        Raises:
            ValueError: As in `arrays`, and for complex numbers, which JSON cannot represent.
        """
        columns = {name: _column(name, array) for name, array in self.arrays(inputs).items()}
        body = {"signature_name": self.signature, "inputs": columns}
        return json.dumps(body, default=lambda x: {"b64": base64.b64encode(x).decode()})


def _column(name: str, array: Array) -> Any:
    if array.dtype.kind == "c":
        raise ValueError(
            f"The input '{name}' has the dtype {array.dtype}, which JSON cannot represent. Send "
            "it with `grpc` instead."
        )
    return array.tolist()


def predict_message(
    arrays: dict[str, Array], model: str, signature: str, version: int | None = None
) -> Message:
    """Returns the `PredictRequest` of arrays that have the types of the signature.

    Args:
        arrays: Mapping from names to arrays.
        model: Name of the model.
        signature: Name of the signature.
        version: The model version to request. By default, the server chooses.

    Raises:
        ImportError: If `tensorflow-serving-api` is not installed.
    """
    check_serving_api()
    from tensorflow import make_tensor_proto
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    if version is not None:
        request.model_spec.version.value = version
    for name, array in arrays.items():
        request.inputs[name].CopyFrom(make_tensor_proto(array))
    return request


def check_serving_api() -> None:
    """Checks that the message types of TensorFlow Serving are installed.

    Raises:
        ImportError: If `tensorflow-serving-api` is not installed.
    """
    if importlib.util.find_spec("tensorflow_serving") is None:
        raise ImportError(
            "Requests and warm-up records are messages of TensorFlow Serving. They need "
            "tensorflow-serving-api. "
            f"Install the extra `serving` in a checkout: {INSTALL_EXTRA.format('serving')}"
        )


def _specs(definitions: Any, signature: str) -> Specs:
    """Returns name to (shape, dtype) of the inputs of one signature."""
    from tensorflow.dtypes import as_dtype

    if signature not in definitions:
        public = sorted(name for name in definitions if not name.startswith("__"))
        raise ValueError(f"The served model has no signature '{signature}'. It has: {public}")
    specs: Specs = {}
    for name, info in sorted(definitions[signature].inputs.items()):
        sizes = (dimension.size for dimension in info.tensor_shape.dim)  # -1 where open
        shape = tuple(None if size < 0 else int(size) for size in sizes)
        specs[name] = (shape, as_dtype(info.dtype).name)
    return specs
