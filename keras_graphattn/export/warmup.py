"""Warm-up requests, which a server runs on a new version before it answers with it."""

from pathlib import Path
from typing import Any

import keras

from keras_graphattn.export.batches import checked_batch
from keras_graphattn.export.graph import forward_function
from keras_graphattn.export.requests import check_serving_api, predict_message
from keras_graphattn.export.signature import Signature

Model = Any
Requests = list[tuple[str, dict[str, Any]]]

# A server refuses a version with more records than this.
MOST_RECORDS = 1000
FILE = Path("assets.extra", "tf_serving_warmup_requests")


def warmup_requests(model: Model, signatures: dict[str, Signature], warmup: Any) -> Requests:
    """Checks the warm-up batches of `export_saved_model` and runs the model on each.

    A server refuses a version when one of its warm-up requests fails.

    Args:
        model: The model to export.
        signatures: Its signatures, by name.
        warmup: A batch or a list of batches. A batch is a mapping from inputs to arrays. If the
            model has only one input, a batch may be the array itself.

    Returns:
        Pairs of a signature's name and a mapping from inputs to arrays. There is one pair for
        each batch and each signature that accepts its shapes.

    Raises:
        ValueError: If a batch fits no signature, the model fails on it, or there are too many.
        ImportError: If `tensorflow-serving-api` is not installed.
    """
    check_serving_api()
    batches = list(warmup) if isinstance(warmup, (list, tuple)) else [warmup]
    if not batches:
        raise ValueError("`warmup` is an empty list. Give at least one batch, or leave it out.")
    requests: Requests = []
    for index, batch in enumerate(batches):
        fitting = _fitting(signatures, batch, f"`warmup[{index}]`")
        _run(model, fitting[0], f"`warmup[{index}]`")
        requests += [(name, arrays) for name, _, arrays in fitting]
    if len(requests) > MOST_RECORDS:
        raise ValueError(
            f"`warmup` makes {len(requests)} requests ({len(batches)} batches, "
            f"{len(signatures)} signatures). A server accepts at most {MOST_RECORDS}. Give fewer."
        )
    return requests


def write_warmup(requests: Requests, folder: Path, model_name: str) -> None:
    """Writes the requests as `PredictionLog` records into the SavedModel in `folder`.

    Args:
        requests: The return value of `warmup_requests`.
        folder: The folder of the SavedModel.
        model_name: Name of the model in each request. Servers ignore it.
    """
    from tensorflow import io
    from tensorflow_serving.apis import prediction_log_pb2

    file = folder / FILE
    file.parent.mkdir(exist_ok=True)
    with io.TFRecordWriter(str(file)) as writer:
        for name, arrays in requests:
            log = prediction_log_pb2.PredictionLog()
            log.predict_log.request.CopyFrom(predict_message(arrays, model_name, name))
            writer.write(log.SerializeToString())


def _fitting(signatures: dict[str, Signature], batch: Any, label: str) -> list[Any]:
    """Returns (name, signature, arrays) for each signature that accepts the batch."""
    fitting, refusals = [], []
    for name, signature in signatures.items():
        try:
            arrays = checked_batch(batch, signature.inputs, f"The signature '{name}'")
        except ValueError as error:
            refusals.append(str(error))
        else:
            fitting.append((name, signature, arrays))
    if not fitting:
        raise ValueError(f"{label} fits no signature. " + " ".join(refusals))
    return fitting


def _run(model: Model, fitting: Any, label: str) -> None:
    """Runs the model on one batch: a server refuses a version whose warm-up fails."""
    name, signature, arrays = fitting
    tensors = {key: keras.ops.convert_to_tensor(array) for key, array in arrays.items()}
    forward = forward_function(model, signature)
    if keras.backend.backend() == "jax":  # one program, where eager code compiles each operation
        import jax

        forward = jax.jit(forward)
    try:
        forward(tensors)
    except Exception as error:
        raise ValueError(
            f"{label} has the shapes of the signature '{name}', but the model fails on it. A "
            f"server would refuse this version. {type(error).__name__}: {error}"
        ) from error
