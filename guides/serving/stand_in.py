"""A stand-in for TensorFlow Serving, to try a client where there is no server.

    python guides/serving/stand_in.py FOLDER [--model NAME]

loads the highest version in FOLDER with TensorFlow only, runs its warm-up requests, prints the
addresses of its gRPC and REST interfaces, and answers `Predict` until its standard input closes.
It batches nothing, watches no folder and is no server for production.
"""

import argparse
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.modules["keras"] = None  # whatever asked for Keras would fail

import grpc
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_log_pb2,
    prediction_service_pb2_grpc,
)


class Served:
    """One version of a model, in memory."""

    def __init__(self, folder, model):
        versions = [entry for entry in folder.iterdir() if entry.name.isdecimal()]
        path = max(versions, key=lambda entry: int(entry.name))
        self.model, self.version, self.path = model, int(path.name), path
        self.loaded = tf.saved_model.load(str(path))
        saved_model = saved_model_pb2.SavedModel()
        saved_model.ParseFromString((path / "saved_model.pb").read_bytes())
        self.definitions = saved_model.meta_graphs[0].signature_def

    def run(self, signature, arrays):
        """Name to array of the outputs. Raises as a server does: it casts nothing."""
        function = self.loaded.signatures[signature]
        _, specs = function.structured_input_signature
        if set(arrays) != set(specs):
            raise ValueError(f"expected inputs {sorted(specs)}, received {sorted(arrays)}")
        tensors = {name: tf.constant(array) for name, array in arrays.items()}
        for name, spec in specs.items():
            if not spec.is_compatible_with(tensors[name]):
                raise ValueError(f"expected {spec}, received {tensors[name].dtype} for {name}")
        outputs = function(**tensors)
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    def predict(self, request):
        """A `PredictResponse` for a `PredictRequest`, whatever the model's name in it."""
        signature = request.model_spec.signature_name or "serving_default"
        if signature not in self.loaded.signatures:
            raise LookupError(f"no signature {signature}")
        arrays = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
        response = predict_pb2.PredictResponse()
        response.model_spec.CopyFrom(request.model_spec)
        response.model_spec.version.value = self.version
        for name, array in self.run(signature, arrays).items():
            response.outputs[name].CopyFrom(tf.make_tensor_proto(array))
        return response

    def warm_up(self):
        """Runs the warm-up records and returns their number."""
        file = self.path / "assets.extra" / "tf_serving_warmup_requests"
        records = tf.data.TFRecordDataset(str(file)) if file.exists() else []
        count = 0
        for record in records:
            log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
            self.predict(log.predict_log.request)
            count += 1
        return count


class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
    """The gRPC interface."""

    def __init__(self, served):
        self.served = served

    def Predict(self, request, context):
        try:
            if request.model_spec.name != self.served.model:
                raise LookupError(f"Servable not found for request: {request.model_spec.name}")
            return self.served.predict(request)
        except LookupError as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except Exception as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    def GetModelMetadata(self, request, context):
        if request.model_spec.name != self.served.model:
            context.abort(grpc.StatusCode.NOT_FOUND, "Servable not found for request")
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        signatures = get_model_metadata_pb2.SignatureDefMap()
        for name, definition in self.served.definitions.items():
            signatures.signature_def[name].CopyFrom(definition)
        response.metadata["signature_def"].Pack(signatures)
        return response


class Handler(BaseHTTPRequestHandler):
    """The REST interface: requests in columns."""

    def do_POST(self):
        served = self.server.served
        try:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != f"/v1/models/{served.model}:predict":
                raise LookupError(f"Servable not found for request: {self.path}")
            signature = body.get("signature_name", "serving_default")
            _, specs = served.loaded.signatures[signature].structured_input_signature
            arrays = {
                name: tf.constant(values, specs[name].dtype).numpy()
                for name, values in body["inputs"].items()
            }
            outputs = {
                name: array.tolist() for name, array in served.run(signature, arrays).items()
            }
            answer = {"outputs": outputs if len(outputs) > 1 else next(iter(outputs.values()))}
            status = 200
        except Exception as error:
            answer, status = {"error": str(error)}, 404 if isinstance(error, LookupError) else 400
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *arguments):
        """Says nothing."""


def main():
    """Serves until standard input closes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", help="the model's name; that of the folder by default")
    arguments = parser.parse_args()
    served = Served(arguments.folder, arguments.model or arguments.folder.resolve().name)
    warmed = served.warm_up()
    grpc_server = grpc.server(ThreadPoolExecutor(8))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        Service(served), grpc_server
    )
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    grpc_server.start()
    rest_server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    rest_server.served = served
    threading.Thread(target=rest_server.serve_forever, daemon=True).start()
    addresses = {"grpc": f"127.0.0.1:{port}", "rest": f"http://127.0.0.1:{rest_server.server_port}"}
    print(json.dumps({**addresses, "version": served.version, "warmed_up": warmed}), flush=True)
    sys.stdin.read()
    grpc_server.stop(grace=None)


if __name__ == "__main__":
    main()
