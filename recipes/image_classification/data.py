"""Images of digits, of tensorflow-datasets or of a folder. Does not import Keras."""

import argparse
import dataclasses
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from recipes.common.command.parsing import UsageError
from recipes.common.data.chance import Chance, held_out, of_accuracy, refuse_one_class
from recipes.common.data.images import Images, decoded, in_memory, of_files, of_tfds, tensorflow
from recipes.common.data.sources import tfds_for

ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp")
VALIDATION = ("validation", "val", "valid")
TEST_SHARE = 0.2  # of digits, and of a folder that is not divided

# The classes of ImageNet-100, by their WordNet synsets, which Tian et al. drew: "Contrastive
# Multiview Coding", arXiv 1906.05849 (ECCV 2020).
_SYNSETS = """
    n01558993 n01692333 n01729322 n01735189 n01749939 n01773797 n01820546 n01855672 n01978455
    n01980166 n01983481 n02009229 n02018207 n02085620 n02086240 n02086910 n02087046 n02089867
    n02089973 n02090622 n02091831 n02093428 n02099849 n02100583 n02104029 n02105505 n02106550
    n02107142 n02108089 n02109047 n02113799 n02113978 n02114855 n02116738 n02119022 n02123045
    n02138441 n02172182 n02231487 n02259212 n02326432 n02396427 n02483362 n02488291 n02701002
    n02788148 n02804414 n02859443 n02869837 n02877765 n02974003 n03017168 n03032252 n03062245
    n03085013 n03259280 n03379051 n03424325 n03492542 n03494278 n03530642 n03584829 n03594734
    n03637318 n03642806 n03764736 n03775546 n03777754 n03785016 n03787032 n03794056 n03837869
    n03891251 n03903868 n03930630 n03947888 n04026417 n04067472 n04099969 n04111531 n04127249
    n04136333 n04229816 n04238763 n04336792 n04418357 n04429376 n04435653 n04485082 n04493381
    n04517823 n04589890 n04592741 n07714571 n07715103 n07753275 n07831146 n07836838 n13037406
    n13040303
"""
SYNSETS = tuple(_SYNSETS.split())


class Source(NamedTuple):
    """One data set of `--dataset`."""

    tfds: str = ""  # its name in tensorflow-datasets, if it is read from there
    test: str = "test"  # the split there that models are tested on
    image_size: int = 224
    patch: int = 16
    channels: int = 3


SOURCES = {
    "digits": Source(image_size=8, patch=2, channels=1),
    "folder": Source(),
    "cifar10": Source("cifar10", image_size=32, patch=4),
    "cifar100": Source("cifar100", image_size=32, patch=4),
    "imagenette": Source("imagenette/320px-v2", "validation"),
    "imagenet_resized/64x64": Source("imagenet_resized/64x64", "validation", 64, 8),
    "imagenet2012": Source("imagenet2012", "validation"),
    "imagenet100": Source("imagenet2012", "validation"),
}


@dataclasses.dataclass
class Problem:
    """Labelled images in three parts."""

    name: str
    classes: list[str]
    channels: int
    train: Images
    validation: Images
    test: Images
    fingerprint: str

    @property
    def splits(self) -> dict[str, Images]:
        return {"training": self.train, "validation": self.validation, "test": self.test}

    def chance(self) -> Chance | None:
        """The accuracy of the most frequent class, if the labels are known."""
        labels = {
            name: part.labels for name, part in self.splits.items() if part.labels is not None
        }
        return of_accuracy(**labels) if labels else None

    def digest(self) -> str:
        return self.fingerprint


def load(options: argparse.Namespace) -> Problem:
    """The data that the options select.

    Raises:
        UsageError: When data cannot be found, read or downloaded, has one class, or lacks classes.
    """
    tensorflow()
    name = options.dataset
    read = {"digits": _digits, "folder": _folder}.get(name, _tfds)
    problem = read(options)
    if problem.train.labels is not None:
        refuse_one_class(problem.train.labels, problem.classes, f"--dataset {name}")
    empty = [part for part, images in problem.splits.items() if not len(images)]
    if empty:
        raise UsageError(f"--dataset {name} has no images for {', '.join(empty)}")
    return problem


def _digits(options: argparse.Namespace) -> Problem:
    """1797 images of 8 x 8 pixels, that come with scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UsageError(
            f"--dataset digits is in scikit-learn: pip install scikit-learn ({error})"
        ) from error
    digits = load_digits()
    # the pixels are from 0 to 16
    images = np.round(digits.images[..., None] * (255 / 16)).astype("uint8")
    labels = digits.target.astype("int32")
    parts = [in_memory(images[rows], labels[rows]) for rows in _three_parts(labels, options)]
    digest = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()[:16]
    return Problem("digits", [str(digit) for digit in range(10)], 1, *parts, digest)


def _three_parts(labels: np.ndarray, options: argparse.Namespace) -> list[np.ndarray]:
    """Indices for training, validation and test."""
    share, seed = options.validation_fraction, options.data_seed
    rest, test = held_out(labels, TEST_SHARE, np.random.default_rng(seed))
    train, validation = held_out(labels[rest], share, np.random.default_rng(seed + 1))
    return [rest[train], rest[validation], test]


def _tfds(options: argparse.Namespace) -> Problem:
    source = SOURCES[options.dataset]
    with tfds_for(source.tfds) as tfds:
        folder = options.data_dir and str(options.data_dir)
        builder = tfds.builder(source.tfds, data_dir=folder)
        builder.download_and_prepare()
    names = builder.info.features["label"].names
    classes = None
    if options.dataset == "imagenet100":
        classes = [names.index(synset) for synset in SYNSETS]
    percent = round(100 * (1 - options.validation_fraction))
    splits = (f"train[:{percent}%]", f"train[{percent}%:]", source.test)
    parts = [of_tfds(builder, split, classes) for split in splits]
    identity = f"{builder.info.full_name} {splits} {[len(part) for part in parts]} {classes}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    kept = names if classes is None else [names[one] for one in classes]
    return Problem(options.dataset, list(kept), source.channels, *parts, digest)


def _folder(options: argparse.Namespace) -> Problem:
    """A folder with `train`, `test` and perhaps `validation`, or with the classes themselves."""
    root = options.data_dir
    if not root.is_dir():
        raise UsageError(f"--data-dir {root} is not a folder")
    validation = next((root / name for name in VALIDATION if (root / name).is_dir()), None)
    if not (root / "train").is_dir():
        classes, paths, labels = _listed(root)
        parts = [(paths[rows], labels[rows]) for rows in _three_parts(labels, options)]
    else:
        classes, *train = _listed(root / "train")
        tested = root / "test" if (root / "test").is_dir() else validation
        if tested is None:
            raise UsageError(f"--data-dir {root} has a folder train, but no folder test")
        test = _listed(tested, classes)[1:]
        if validation not in (None, tested):
            parts = [tuple(train), _listed(validation, classes)[1:], test]
        else:
            random = np.random.default_rng(options.data_seed)
            rest, chosen = held_out(train[1], options.validation_fraction, random)
            parts = [*((train[0][rows], train[1][rows]) for rows in (rest, chosen)), test]
    digest = hashlib.sha256("\n".join(classes).encode())
    for paths, labels in parts:
        digest.update(_checked(paths, root) + labels.tobytes())
    images = [of_files(list(paths), labels) for paths, labels in parts]
    return Problem(root.name, classes, 3, *images, digest.hexdigest()[:16])


def _listed(
    folder: Path, classes: Sequence[str] | None = None
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Classes, files and class numbers of a folder with a sub-folder for each class."""
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if not names:
        raise UsageError(f"{folder} has no sub-folders; each class of images needs one")
    classes = list(classes or names)
    unknown = sorted(set(names) - set(classes))
    if unknown:
        raise UsageError(f"{folder} has classes that the training data lacks: {', '.join(unknown)}")
    paths, labels = [], []
    for name in names:
        files = [path for path in (folder / name).rglob("*") if path.suffix.lower() in ENDINGS]
        paths += sorted(files)
        labels += [classes.index(name)] * len(files)
    if not paths:
        raise UsageError(f"{folder} has no images: no file ends in {', '.join(ENDINGS)}")
    return classes, np.array(paths, dtype=object), np.array(labels, "int32")


def _checked(paths: np.ndarray, root: Path) -> bytes:
    """Checks that each file is an image; returns a digest of all files in their order."""
    tf = tensorflow()

    def digest(path: Path) -> tuple[bytes, str]:
        content = path.read_bytes()
        try:
            decoded(tf.constant(content))
        except tf.errors.OpError:
            return b"", str(path.relative_to(root))
        return hashlib.sha256(content).digest(), ""

    with ThreadPoolExecutor() as pool:
        digests = list(pool.map(digest, paths))
    unreadable = [name for _, name in digests if name]
    if unreadable:
        more = f" and {len(unreadable) - 5} more" if len(unreadable) > 5 else ""
        raise UsageError(
            f"--data-dir {root}: not readable as images: {', '.join(unreadable[:5])}{more}"
        )
    return b"".join(one for one, _ in digests)
