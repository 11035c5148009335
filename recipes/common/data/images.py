"""Labelled images in memory, in files or in data sets, read by `tf.data` on every backend.

The order of the examples is a function of a seed. TensorFlow is imported when it is first needed,
and then uses no accelerator that belongs to another backend.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recipes.common.command.parsing import UsageError

BUFFER = 10_000  # examples that are shuffled among each other, where not all are in memory
Tensor = Any


@dataclasses.dataclass
class Images:
    """The labelled images of one part of the data.

    `examples(seed)` is a `tf.data.Dataset` of pairs: what is stored of an image, and its class.
    With a seed, their order is a function of it. `decode` turns what is stored into an image
    (h, w, C).
    """

    count: int
    examples: Callable[[int | None], Any]
    decode: Callable[[Tensor], Tensor]
    labels: np.ndarray | None = None  # (count,); None where all images must be read to know them

    def __len__(self) -> int:
        return self.count


@functools.cache
def tensorflow() -> Any:
    """Imports TensorFlow, only for the CPU if Keras runs on another backend."""
    try:
        import tensorflow
    except ImportError as error:
        raise UsageError(
            f"images are read by tf.data, on every backend: pip install tensorflow ({error})"
        ) from error
    import keras

    if keras.backend.backend() != "tensorflow":
        tensorflow.config.set_visible_devices([], "GPU")
    return tensorflow


def in_memory(images: np.ndarray, labels: np.ndarray) -> Images:
    """Images (N, h, w, C) in memory, from 0 to 255, with classes (N,)."""
    return _stored(images, labels, lambda image: image)


def of_files(paths: Sequence[Path], labels: np.ndarray, channels: int = 3) -> Images:
    """Images in files, with classes (N,): JPEG, PNG, GIF (its first picture) or BMP."""
    names = np.array([str(path) for path in paths])

    def decode(path: Tensor) -> Tensor:
        return decoded(tensorflow().io.read_file(path), channels)

    return _stored(names, labels, decode)


def decoded(content: Tensor, channels: int = 3) -> Tensor:
    """The image (h, w, channels) that the content of a file shows."""
    tf = tensorflow()
    image = tf.io.decode_image(content, channels, expand_animations=False)
    return tf.ensure_shape(image, (None, None, channels))


def of_tfds(builder: Any, split: str, classes: Sequence[int] | None = None) -> Images:
    """Images of a split of tensorflow-datasets, read when they are needed, not kept in memory.

    With a seed, the order of the files is drawn, then the examples change places within a buffer
    of 10,000. Where only some classes are kept, they are numbered again from 0.
    """
    import tensorflow_datasets as tfds

    tf = tensorflow()
    count = builder.info.features["label"].num_classes
    numbers = np.full(count, -1)
    kept = np.arange(count) if classes is None else np.asarray(classes)
    numbers[kept] = np.arange(len(kept))

    def read(seed: int | None, **more: Any) -> Any:
        config = tfds.ReadConfig(shuffle_seed=seed, try_autocache=False)
        data = builder.as_dataset(
            split=split, shuffle_files=seed is not None, read_config=config, **more
        )
        options = tf.data.Options()
        options.deterministic = True
        data = data.map(lambda one: (one["image"], tf.gather(numbers, one["label"])))
        return data.filter(lambda image, label: label >= 0).with_options(options)

    def examples(seed: int | None) -> Any:
        data = read(seed)
        if seed is None:
            return data
        return data.shuffle(BUFFER, seed=seed, reshuffle_each_iteration=False)

    splits = builder.info.splits
    if classes is None and split.partition("[")[0] in splits:
        return Images(splits[split].num_examples, examples, lambda image: image)
    encoded = read(None, decoders={"image": tfds.decode.SkipDecoding()})
    labels = np.array([int(label) for _, label in encoded], "int32")
    return Images(len(labels), examples, lambda image: image, labels)


def _stored(values: np.ndarray, labels: np.ndarray, decode: Callable[[Tensor], Tensor]) -> Images:
    @functools.cache
    def tensors() -> tuple[Tensor, Tensor]:
        tf = tensorflow()
        return tf.constant(values), tf.constant(labels)

    def examples(seed: int | None) -> Any:
        order = np.arange(len(labels))
        if seed is not None:
            order = np.random.default_rng(seed).permutation(order)
        tf, (held, numbers) = tensorflow(), tensors()
        data = tf.data.Dataset.from_tensor_slices(order)
        return data.map(lambda place: (held[place], numbers[place]))

    return Images(len(labels), examples, decode, labels)
