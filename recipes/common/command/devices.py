"""Training on several devices: batches shared out over them, and a model's weights as well.

On JAX this is `keras.distribution`, on TensorFlow `tf.distribute.MirroredStrategy`; Keras' `fit`
knows nothing of the kind on torch. Imports no Keras by itself.
"""

import argparse
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from recipes.common.command.parsing import UsageError

HELP = (
    "train on all devices: 'data' shares out the batches (jax, tensorflow); 'model:N' the weights "
    "too, N devices for each copy of the model (jax) [data, if given without a value]"
)


def kind_of_distribution(text: str) -> str:
    """An argument type: `data` or `model:N` with N at least 1."""
    kind, colon, number = text.partition(":")
    if text == "data" or (kind == "model" and colon and number.isdigit() and int(number) > 0):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is neither data nor model:N, such as model:2")


def check_devices(options: argparse.Namespace) -> None:
    """Refuses what the backend, the devices or the batch size do not allow."""
    if not options.distribute:
        return
    import keras

    backend = keras.backend.backend()
    if backend == "torch":
        raise UsageError(
            "--distribute: on torch, Keras' fit trains on one device; use --backend jax or "
            "--backend tensorflow"
        )
    if backend == "tensorflow" and options.distribute != "data":
        raise UsageError(
            f"--distribute {options.distribute}: Keras splits weights only on jax; use "
            "--backend jax, or --distribute data"
        )
    count, each = len(keras.distribution.list_devices()), _devices_of_a_model(options)
    if count % each:
        raise UsageError(
            f"--distribute {options.distribute}: {count} devices cannot be grouped by {each}"
        )
    check_rows(options.batch_size, f"--batch-size {options.batch_size}", options)


def check_rows(rows: int, what: str, options: argparse.Namespace) -> None:
    """Refuses a batch, called `what` in the error, if the devices cannot share its rows."""
    if not options.distribute:
        return
    import keras

    each = _devices_of_a_model(options)
    count = len(keras.distribution.list_devices()) // each
    if rows % count:
        over = f"{count} devices" if each == 1 else f"{count} groups of {each} devices"
        raise UsageError(f"{what} cannot be shared out over {over}")


@contextmanager
def on_devices(options: argparse.Namespace) -> Iterator[None]:
    """What is made and trained in here is made for, and trained on, the devices asked for."""
    if not options.distribute:
        yield
        return
    import keras

    if keras.backend.backend() == "tensorflow":
        with _mirrored().scope():
            yield
        return
    try:
        if options.distribute == "data":
            keras.distribution.set_distribution(keras.distribution.DataParallel())
        yield
    finally:
        keras.distribution.set_distribution(None)


def share_weights(model: Any, options: argparse.Namespace) -> None:
    """Splits the weights of a model that is compiled, and not yet trained, for `model:N`."""
    each = _devices_of_a_model(options)
    if not str(options.distribute).startswith("model"):
        return
    import keras

    from keras_graphattn.distribution import distribute, layout_map

    count = len(keras.distribution.list_devices())
    mesh = keras.distribution.DeviceMesh((count // each, each), ("batch", "model"))
    try:
        layouts = layout_map(model, mesh)
    except ValueError as error:
        raise UsageError(f"--distribute {options.distribute}: {error}") from error
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    )
    distribute(model)


def _devices_of_a_model(options: argparse.Namespace) -> int:
    kind, _, number = str(options.distribute).partition(":")
    return int(number) if kind == "model" else 1


@functools.cache  # two strategies of one process mix up each other's collective sums
def _mirrored() -> Any:
    import keras
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(keras.distribution.list_devices())
