"""Batches of images: each counts once, in an order and with changes that only the seed decides."""

import keras
import numpy as np
import pytest

from recipes.common.data.image_batches import Augmentation, ImageBatches
from recipes.common.data.images import in_memory, of_files

RANDOM = np.random.default_rng(0)
COUNT, CLASSES, SIZE = 21, 7, 8
LABELS = np.arange(COUNT) % CLASSES
IMAGES = RANDOM.integers(0, 256, (COUNT, SIZE, SIZE, 3)).astype("uint8")
ALL = Augmentation(0.5, True, 0.3, 0.8, 1.0, 0.25, 3)
SOME = ALL._replace(rand_augment=0.0, cut_mix=0.0)


def batches(augmentation=None, seed=5, size=4, images=IMAGES, labels=LABELS, side=SIZE):
    return ImageBatches(in_memory(images, labels), CLASSES, side, size, seed, augmentation)


def rows(made, epoch=0):
    """All images of an epoch, their classes and weights."""
    made.start_epoch(epoch)
    parts = [(inputs["images"], *more) for inputs, *more in map(made.__getitem__, range(6))]
    return tuple(map(np.concatenate, zip(*parts, strict=True)))


def test_without_a_seed_they_are_the_images_in_their_order():
    images, classes, weights = rows(batches(seed=None))
    assert images.dtype == np.float32
    np.testing.assert_array_equal(images[:COUNT], IMAGES)
    np.testing.assert_array_equal(classes[:COUNT], np.eye(CLASSES)[LABELS])
    assert len(images) == 24
    np.testing.assert_array_equal(weights[:20], 1.0)
    np.testing.assert_array_equal(weights[20:], [4.0, 0, 0, 0])  # they add up to the batch's size


def test_each_epoch_has_every_image_once_in_an_order_of_its_own():
    made = batches()
    epochs = [rows(made, epoch) for epoch in (0, 1, 0)]
    for images, classes, weights in epochs:
        real = images[weights > 0].astype("uint8")
        order = [int(np.flatnonzero((one == IMAGES).all((1, 2, 3)))[0]) for one in real]
        assert sorted(order) == list(range(COUNT))
        np.testing.assert_array_equal(classes[weights > 0].argmax(-1), LABELS[order])
    assert (epochs[0][0] != epochs[1][0]).any()
    np.testing.assert_array_equal(epochs[0][0], epochs[2][0])
    assert (rows(batches(seed=6))[0] != epochs[0][0]).any()


@pytest.mark.parametrize(
    "augmentation", [SOME, pytest.param(ALL, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_changes_are_a_function_of_seed_and_epoch_wherever_reading_begins(augmentation):
    one, other = batches(augmentation), batches(augmentation)
    expected = rows(one, 1)
    for array, wanted in zip(rows(other, 1), expected, strict=True):
        np.testing.assert_array_equal(array, wanted)
    other.start_epoch(1)
    late, again = other[3], other[0]  # as TensorFlow looks at the first batches
    np.testing.assert_array_equal(late[0]["images"], expected[0][12:16])
    np.testing.assert_array_equal(again[0]["images"], expected[0][:4])
    images = rows(one, 0)[0]
    assert np.isfinite(images).all()
    assert images.min() >= 0
    assert images.max() < 255.001
    assert (images != expected[0]).mean() > 0.5


def test_an_image_is_repeated_next_to_itself_in_an_epoch_of_the_same_length():
    images, _, weights = rows(batches(Augmentation(repeats=3)))
    real = images[weights > 0].reshape(7, 3, -1)
    assert (real == real[:, :1]).all()
    assert len({one.tobytes() for one in real[:, 0]}) == 7
    changed = rows(batches(Augmentation(crop=0.3, repeats=3)))[0][:COUNT].reshape(7, 3, -1)
    assert (changed[:, 0] != changed[:, 1]).any(-1).all()


def test_mixup_mixes_images_and_classes_alike():
    flat = np.broadcast_to(30 * LABELS[:, None, None, None], IMAGES.shape).astype("uint8")
    images, classes, _ = rows(batches(Augmentation(mix_up=0.8), images=flat))
    np.testing.assert_allclose(classes.sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(images.mean((1, 2, 3)), classes @ (30.0 * np.arange(7)), atol=1e-3)
    assert ((classes > 0.01).sum(-1) == 2).any()


def test_cutmix_mixes_classes_by_area():
    side = 32
    flat = np.broadcast_to(30 * LABELS[:, None, None, None], (COUNT, side, side, 3))
    change = Augmentation(cut_mix=1.0)
    images, classes, _ = rows(batches(change, images=flat.astype("uint8"), side=side))
    mixed = 0
    for image, row in zip(images, classes, strict=True):
        values, counts = np.unique(image[..., 0], return_counts=True)
        assert set(values / 30) <= set(range(CLASSES))
        shares = row[(values / 30).astype(int)]
        # a rectangle ends between pixels
        np.testing.assert_allclose(shares, counts / side**2, atol=0.09)
        mixed += len(values) == 2
    assert mixed > 3


def test_each_change_changes_what_it_says():
    ramp = np.broadcast_to(np.arange(SIZE)[:, None, None] * 20 + 40, IMAGES.shape).astype("uint8")
    images, _, weights = rows(batches(Augmentation(flip=True), images=ramp))
    np.testing.assert_array_equal(images[weights > 0], ramp)
    images = rows(batches(Augmentation(flip=True), images=ramp.swapaxes(1, 2)))[0]
    flipped = images[:, 0, 0, 0] > images[:, 0, -1, 0]
    assert 0 < flipped.sum() < len(flipped)
    grey = np.full_like(ramp, 7)
    often, seldom = (
        (rows(batches(Augmentation(random_erasing=share), images=grey))[0] != 7).any((1, 2, 3))
        for share in (0.999, 0.25)
    )
    assert often.mean() > 0.5
    assert 0 < seldom.mean() < 1


def test_images_of_other_sizes_show_their_middle():
    wide = np.zeros((COUNT, 16, 32, 3), "uint8")
    wide[:, :, 9:23] = 200
    images = rows(batches(seed=None, images=wide))[0]
    assert images.shape[1:] == (SIZE, SIZE, 3)
    assert images.min() > 190  # 7/8 of the shorter side


def test_files_are_read_as_they_are(tmp_path):
    paths = []
    for number, image in enumerate(IMAGES[:5]):
        paths.append(tmp_path / f"{number}.png")
        keras.utils.save_img(paths[-1], image, scale=False)
    inputs, *_ = ImageBatches(of_files(paths, LABELS[:5]), CLASSES, SIZE, 5)[0]
    np.testing.assert_array_equal(inputs["images"], IMAGES[:5])


def test_data_are_read_once_for_each_epoch_and_once_where_epochs_are_equal(monkeypatch):
    made = []
    plain = ImageBatches.dataset
    monkeypatch.setattr(ImageBatches, "dataset", lambda self: made.append(self) or plain(self))
    training, validation = batches(), batches(seed=None)
    inputs = {"images": keras.Input((SIZE, SIZE, 3), name="images")}
    pooled = keras.layers.GlobalAveragePooling2D()(inputs["images"])
    model = keras.Model(inputs, keras.layers.Dense(CLASSES)(pooled))
    model.compile("sgd", "mse")
    new_epoch = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: training.start_epoch(epoch)
    )
    arguments = {"validation_data": validation, "callbacks": [new_epoch], "shuffle": False}
    model.fit(training, epochs=3, verbose=0, **arguments)
    assert made.count(validation) == 1
    # Keras takes the first batch before the first epoch begins, to build the model
    assert made.count(training) <= 4


def test_the_end_of_an_epoch_does_not_wait_for_a_thread_of_tf_data():
    # that of its autotuning sleeps for up to seconds, and what is left of an iterator waits for it
    assert batches().dataset().options().autotune.enabled is False
