"""Batches of images for `fit`, whose changes depend only on the seed, the epoch and the index.

The changes are layers of Keras, called in `tf.data`. Their random numbers are stateless: two runs
with one seed see the same images, on any number of cores, even if one of them was interrupted.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import layers

from recipes.common.data.images import Images, tensorflow

Tensor = Any
CENTRE = 0.875  # share of the shorter side that is kept where the middle of an image is cut out
RATIO = (3 / 4, 4 / 3)  # of the sides of a part that is cut out at random


class Augmentation(NamedTuple):
    """The changes of training images; none by default."""

    crop: float = 1.0  # least share of the area that is cut out, then resized; 1: nothing is
    flip: bool = False  # left and right, every second one
    rand_augment: float = 0.0  # `factor` of `keras.layers.RandAugment`
    mix_up: float = 0.0  # `alpha` of `keras.layers.MixUp`
    cut_mix: float = 0.0  # `factor` of `keras.layers.CutMix`
    random_erasing: float = 0.0  # share of the images that lose a rectangle
    repeats: int = 1  # how often an image of an epoch appears in it, changed anew each time


class Seeds(keras.random.SeedGenerator):
    """Seeds for layers, as a function of one tensor and of the number of earlier seeds.

    A generator of Keras holds a state, which parallel calls would change in any order.
    """

    def __init__(self, seed: Tensor) -> None:
        self.seed, self.count = seed, 0  # no state, so nothing of the parent class is made

    def next(self, ordered: bool = True) -> Tensor:
        self.count += 1
        return tensorflow().random.experimental.stateless_fold_in(self.seed, self.count)


class ImageBatches(keras.utils.PyDataset):
    """Batches of images (B, size, size, C) from 0 to 255, one-hot classes and weights.

    All batches have `batch_size` rows: the last one is filled up with other examples of weight 0.
    Order and changes are functions of the seed; without one there are no changes.
    """

    def __init__(
        self,
        images: Images,
        classes: int,
        size: int,
        batch_size: int,
        seed: int | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        super().__init__()
        self.images, self.classes, self.size = images, classes, size
        self.batch_size, self.seed = batch_size, seed
        self.augmentation = augmentation or Augmentation()
        changes = self.augmentation if seed is not None else Augmentation()
        self._change, self._mix = _one_by_one(changes), _by_batch(changes)
        tf = tensorflow()  # traced once, not for each epoch
        self._example, self._batch = tf.function(self._example), tf.function(self._batch)
        self.start_epoch(0)

    @property
    def labels(self) -> np.ndarray:
        """One entry for each image: its class, or 0 if the classes are unknown."""
        labels = self.images.labels
        return np.zeros(len(self.images)) if labels is None else labels

    @property
    def num_batches(self) -> int:
        return -(-len(self.images) // self.batch_size)

    def start_epoch(self, epoch: int) -> None:
        """Starts again, with the order and the changes of `epoch`, which counts from 0."""
        self.epoch = epoch
        self._dataset: Any = None
        self._rows: Any = None  # what comes after `_row`, which is that of `_index`
        self._row: Any = None
        self._index = -1

    def __getitem__(self, index: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        if index != self._index:  # Keras asks for the first batch twice
            if self._dataset is None:
                self._dataset = self.dataset()
            if self._rows is None or index != self._index + 1:
                self._rows = self._dataset.skip(index).prefetch(2).as_numpy_iterator()
            self._row, self._index = next(self._rows), index
        images, labels, weights = self._row
        return {"images": images}, labels, weights

    def dataset(self) -> Any:
        """The epoch's batches as a `tf.data.Dataset`."""
        tf, count, repeats = tensorflow(), len(self.images), self.augmentation.repeats
        order, drawn = None, tf.constant([0, 0])
        if self.seed is not None:
            order, *more = np.random.SeedSequence([self.seed, self.epoch]).generate_state(3) >> 1
            order, drawn = int(order), tf.constant(np.array(more, "int32"))
        rows = self.images.examples(order)
        if self.seed is not None and repeats > 1:
            rows = rows.take(-(-count // repeats)).flat_map(
                lambda *row: tf.data.Dataset.from_tensors(row).repeat(repeats)
            )
        rows = rows.take(count).repeat().take(self.num_batches * self.batch_size).enumerate()

        made = rows.map(
            lambda place, row: self._example(drawn, place, *row),
            num_parallel_calls=os.cpu_count(),
            deterministic=True,
        )
        made = made.batch(self.batch_size, drop_remainder=True).enumerate()
        fixed = tf.data.Options()
        fixed.autotune.enabled = False  # its thread sleeps for seconds, and an iterator's end waits
        return made.map(lambda place, row: self._batch(drawn, place, *row)).with_options(fixed)

    def _example(
        self, drawn: Tensor, place: Tensor, stored: Tensor, label: Tensor
    ) -> tuple[Tensor, ...]:
        """The image at a place of the epoch's order, its class and its weight."""
        tf = tensorflow()
        seed = tf.random.experimental.stateless_fold_in(drawn, place)
        least = self.augmentation.crop if self.seed is not None else 1.0
        image = _cut(self.images.decode(stored), self.size, least, seed)
        image = self._change(image, Seeds(seed))
        weight = tf.cast(place < len(self.images), "float32")
        return image, tf.one_hot(label, self.classes), weight

    def _batch(
        self, drawn: Tensor, place: Tensor, images: Tensor, labels: Tensor, weights: Tensor
    ) -> tuple[Tensor, ...]:
        """The batch at a place of the epoch; its weights add up to the number of its rows."""
        tf = tensorflow()
        seed = tf.random.experimental.stateless_fold_in(drawn, -1 - place)
        images, labels = self._mix(images, labels, Seeds(seed))
        return images, labels, weights * (self.batch_size / tf.reduce_sum(weights))


def _cut(image: Tensor, size: int, least: float, seed: Tensor) -> Tensor:
    """A part of an image (h, w, C) as a float32 image (size, size, C).

    With `least` below 1, it is a random part of at least this share of the area. Otherwise it is
    the whole image if it has this size, or else its middle.
    """
    tf, channels = tensorflow(), image.shape[-1]
    shape = tf.shape(image)

    def resized(part: Tensor) -> Tensor:
        whole = tf.image.resize(part, (size, size), method="bicubic", antialias=True)
        return tf.clip_by_value(whole, 0.0, 255.0)

    def middle() -> Tensor:
        side = tf.cast(CENTRE * tf.cast(tf.reduce_min(shape[:2]), "float32"), "int32")
        top, left = (shape[0] - side) // 2, (shape[1] - side) // 2
        return resized(image[top : top + side, left : left + side])

    if least < 1.0:
        begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            tf.zeros((1, 0, 4)),
            seed,
            aspect_ratio_range=RATIO,
            area_range=(least, 1.0),
            use_image_if_no_bounding_boxes=True,
        )
        cut = resized(tf.slice(image, begin, extent))
    else:
        fits = tf.reduce_all(tf.equal(shape[:2], size))
        cut = tf.cond(fits, lambda: tf.cast(image, "float32"), middle)
    return tf.ensure_shape(cut, (size, size, channels))


Change = Callable[..., Any]  # of tensors, with the seeds last


def _one_by_one(augmentation: Augmentation) -> Change:
    """The function that changes one image (h, w, C)."""
    made: list[layers.Layer] = []
    if augmentation.rand_augment:
        made.append(layers.RandAugment(factor=augmentation.rand_augment, dtype="float32"))
    if augmentation.random_erasing:
        share = (augmentation.random_erasing,) * 2
        made.append(layers.RandomErasing(factor=share, dtype="float32"))

    def change(image: Tensor, seeds: Seeds) -> Tensor:
        tf, shape = tensorflow(), image.shape
        if augmentation.flip:
            image = tf.image.stateless_random_flip_left_right(image, seeds.next())
        for layer in made:
            image = _drawing_from(seeds, layer)(image)
        return tf.ensure_shape(image, shape)

    return change


def _by_batch(augmentation: Augmentation) -> Change:
    """The function that mixes the images of a batch and their classes.

    With both kinds, each batch gets one of them, at random and equally often.
    """
    made: list[layers.Layer] = []
    if augmentation.mix_up:
        made.append(layers.MixUp(augmentation.mix_up, dtype="float32"))
    if augmentation.cut_mix:
        made.append(layers.CutMix(augmentation.cut_mix, dtype="float32"))

    def mix(images: Tensor, labels: Tensor, seeds: Seeds) -> tuple[Tensor, Tensor]:
        def mixed(layer: layers.Layer) -> tuple[Tensor, Tensor]:
            batch = _drawing_from(seeds, layer)({"images": images, "labels": labels})
            return batch["images"], batch["labels"]

        if len(made) == 2:
            tf = tensorflow()
            first = tf.random.stateless_uniform((), seeds.next()) < 0.5
            return tf.cond(first, lambda: mixed(made[0]), lambda: mixed(made[1]))
        return mixed(made[0]) if made else (images, labels)

    return mix


def _drawing_from(seeds: Seeds, layer: Any) -> Any:
    """The layer, which draws from `seeds`: Keras' layers take no seed in their call."""
    layer._get_seed_generator = lambda backend=None: seeds
    return layer
