"""Training on several devices, which share the rows of each batch.

On JAX this is `keras.distribution`, on TensorFlow `tf.distribute.MirroredStrategy`; Keras' `fit`
has no such feature on torch. Does not import Keras itself.
"""

import argparse
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from recipes.common.command.parsing import UsageError


def check_devices(options: argparse.Namespace) -> None:
    """Refuses devices that the backend or the batch size does not allow."""
    if not options.distribute:
        return
    import keras

    if keras.backend.backend() == "torch":
        raise UsageError(
            "--distribute: on torch, Keras' fit trains on one device; use --backend jax or "
            "--backend tensorflow"
        )
    check_rows(options.batch_size, f"--batch-size {options.batch_size}", options)


def check_rows(rows: int, batch: str, options: argparse.Namespace) -> None:
    """Refuses a batch, called `batch` in the error, if the devices cannot share its rows."""
    if not options.distribute:
        return
    import keras

    count = len(keras.distribution.list_devices())
    if rows % count:
        raise UsageError(f"{batch} cannot be shared out over {count} devices")


@contextmanager
def on_devices(options: argparse.Namespace) -> Iterator[None]:
    """A context in which models are made for, and trained on, all devices."""
    if not options.distribute:
        yield
        return
    import keras

    if keras.backend.backend() == "tensorflow":
        with _mirrored().scope():
            yield
        return
    try:
        parallel = keras.distribution.DataParallel(auto_shard_dataset=False)
        keras.distribution.set_distribution(parallel)
        yield
    finally:
        keras.distribution.set_distribution(None)


@functools.cache  # two strategies of one process mix up each other's collective sums
def _mirrored() -> Any:
    import keras
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(keras.distribution.list_devices())
