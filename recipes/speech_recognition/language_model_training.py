"""The language model as a Keras model: its training, and the reading of its file."""

import argparse
import math
from pathlib import Path
from typing import Any

import keras
import numpy as np

from recipes.common.attentions import Trial
from recipes.common.command.parsing import UsageError
from recipes.common.data.batches import Buckets, bucket_lengths
from recipes.common.training.layers import named_seed
from recipes.common.training.optimizers import WarmUpLinearDecay
from recipes.common.training.runs import Training
from recipes.speech_recognition.data import Vocabulary
from recipes.speech_recognition.decoder import TransformerDecoder
from recipes.speech_recognition.transcripts import Sentences, Transcripts, vocabulary_digest

NAME = "language_model_{}"  # with the digest of its vocabulary


class SentenceBatches(Buckets):
    """Batches of sentences of about the same length; each token and end has weight 1."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        length, chosen = self.batches[index]
        rows = np.resize(chosen, self.batch_size)
        real = (np.arange(self.batch_size) < len(chosen))[:, None]
        counted = real & (np.arange(length) < self.split.lengths[rows, None])
        inputs, targets = self.split.inputs(rows, length), self.split.targets(rows, length)
        return inputs, targets, counted.astype("float32")


def prepare(trial: Trial) -> Training:
    """The compiled language model of one seed, and its batches."""
    options, parts = trial.options, trial.problem.parts
    model, batches = build(trial), batches_of(parts, "train", options, trial.seed)
    steps = options.epochs * batches.num_batches
    rate = WarmUpLinearDecay(options.learning_rate, options.warm_up, steps)
    model.compile(
        optimizer=keras.optimizers.Adam(rate, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
        weighted_metrics=[
            keras.metrics.SparseCategoricalCrossentropy(name="cross_entropy", from_logits=True)
        ],
    )
    test = batches_of(parts, "test", options)

    def report() -> dict[str, Any]:
        values = model.evaluate(test, verbose=0, return_dict=True)
        loss = values["cross_entropy"]
        return {"test_cross_entropy": loss, "test_perplexity": math.exp(loss)}

    return Training(model, batches, batches_of(parts, "validation", options), report=report)


def batches_of(
    parts: dict[str, Sentences], name: str, options: argparse.Namespace, seed: int | None = None
) -> SentenceBatches:
    """The batches of one part; with a seed they are shuffled."""
    longest = max(int(part.lengths.max()) for part in parts.values())
    lengths = bucket_lengths(parts["train"].lengths, longest, options.buckets)
    return SentenceBatches(parts[name], lengths, options.batch_size, seed)


def build(trial: Trial) -> keras.Model:
    """The language model, not compiled: from tokens (B, L) to logits (B, L, V)."""
    problem: Transcripts = trial.problem
    options, vocabulary = trial.options, problem.vocabulary
    decoder = TransformerDecoder(
        *(options.layers, options.heads, options.d_model, options.feed_forward),
        *(vocabulary.size, options.dropout, named_seed(trial.seed, "language_model")),
        name="decoder",
    )
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    name = NAME.format(vocabulary_digest(vocabulary))
    return keras.Model(tokens, decoder(tokens), name=name)


def read_language_model(path: str, vocabulary: Vocabulary) -> TransformerDecoder:
    """The language model of a file, for `BeamSearch`.

    Raises:
        UsageError: If there is no language model in the file, or one of another vocabulary.
    """
    if not Path(path).is_file():
        raise UsageError(f"--language-model {path} is no file. Give a model.keras")
    try:
        model = keras.saving.load_model(path, compile=False)
        decoder = model.get_layer("decoder")
    except (OSError, TypeError, ValueError) as error:
        raise UsageError(f"--language-model {path} cannot be read: {error}") from error
    if model.name != NAME.format(vocabulary_digest(vocabulary)):
        raise UsageError(
            f"--language-model {path} has other tokens than the recogniser. Train it with the same "
            "options of the data: python -m recipes.speech_recognition.language_model"
        )
    return decoder
