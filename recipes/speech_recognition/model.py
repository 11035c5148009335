"""The recogniser, and the training and the measures of one run.

Its inputs are samples, their number, and the transcript so far; its outputs are logits of CTC for
each frame, and of the decoder for each next token.
"""

import argparse
import importlib
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from keras_graphattn.analysis import inspect_smoothing, plot_attention_maps, token_similarity
from recipes.common.attentions import Trial
from recipes.common.data.batches import in_turn
from recipes.common.output.plot import save
from recipes.common.training.layers import named_seed
from recipes.common.training.optimizers import noam_adam
from recipes.common.training.runs import Training
from recipes.speech_recognition.batches import Recordings, batches_of
from recipes.speech_recognition.data import (
    BLANK,
    END,
    HOP,
    PRESET,
    START,
    SUBSAMPLING,
    Problem,
    encoder_frames,
)
from recipes.speech_recognition.decoder import TransformerDecoder
from recipes.speech_recognition.encoders import encode
from recipes.speech_recognition.features import LengthMask, SpecAugment, UtteranceNorm, log_mel
from recipes.speech_recognition.language_model_training import read_language_model
from recipes.speech_recognition.search import (
    BeamSearch,
    CountsWords,
    Transcripts,
    greedy_ctc,
    reported,
)

Tensor = Any
CTC, ATTENTION = "ctc", "attention"  # the outputs
LISTENED = ("samples", "num_samples")  # the inputs of the encoder
CTC_SHARE, SMOOTHING = 0.3, 0.1  # of the loss


def prepare(trial: Trial) -> Training:
    """The compiled recogniser and the batches of one attention with one seed."""
    problem, options = trial.problem, trial.options
    if options.preset:
        return _pretrained().prepare(trial)
    model = trained(build(trial), problem)
    model.compile(optimizer=noam_adam(model, options))
    return Training(
        model,
        batches_of(problem, problem.train, options, trial.seed),
        batches_of(problem, problem.validation, options),
        batches_of(problem, problem.test, options),
        measure=lambda: similarities(model, problem, trial),
        report=lambda: report(model, problem, options),
    )


def build(trial: Trial) -> keras.Model:
    """The recogniser, not compiled.

    Its inputs are `samples` (B, S), `num_samples` (B,) and `tokens` (B, L), transcripts that begin
    with the start; its outputs are `ctc` (B, T, V) and `attention` (B, L, V), both logits.
    """
    problem, options = trial.problem, trial.options
    inputs = {
        "samples": keras.Input((None,), dtype="float32", name="samples"),
        "num_samples": keras.Input((), dtype="int32", name="num_samples"),
        "tokens": keras.Input((None,), dtype="int32", name="tokens"),
    }
    features = log_mel(inputs["samples"], problem.rate, options.mel_bins)
    hop = round(HOP * problem.rate)
    mask = LengthMask(hop, name="frame_mask")([inputs["num_samples"], features])
    features = UtteranceNorm(dtype="float32", name="utterance_norm")(features, mask)
    features = SpecAugment(
        options.time_warp,
        *options.frequency_masks,
        *options.time_masks,
        options.time_mask_share,
        seed=named_seed(trial.seed, "spec_augment"),
        dtype="float32",
        name="spec_augment",
    )(features, mask)
    encoded, mask = encode(trial, features, mask)
    size = problem.vocabulary.size
    decoder = TransformerDecoder(
        *(options.decoder_layers, options.heads, options.d_model, options.decoder_feed_forward),
        *(size, options.dropout, named_seed(trial.seed, "decoder")),
        name="decoder",
    )
    outputs = {
        CTC: layers.Dense(size, dtype="float32", name=CTC)(encoded),
        ATTENTION: decoder(inputs["tokens"], encoded, encoded_mask=mask),
    }
    return keras.Model(inputs, outputs, name=f"speech_recognition_{trial.attention}")


def trained(model: keras.Model, problem: Problem) -> "Recogniser":
    """The same layers as a model whose `fit` has the joint loss."""
    recogniser = Recogniser(model.input, model.output, name=model.name)
    recogniser.prepare(model, problem)
    return recogniser


class Recogniser(CountsWords):
    """A recogniser whose loss joins CTC and the decoder, and whose `evaluate` counts wrong words.

    The loss is 0.3 CTC + 0.7 cross-entropy with label smoothing, in float32, both summed over the
    real recordings and divided by the number of their tokens.

    Source: Watanabe et al., "Hybrid CTC/Attention Architecture for End-to-End Speech Recognition",
    IEEE JSTSP 11(8), 2017, Eq. 11.
    """

    def prepare(self, model: keras.Model, problem: Problem) -> None:
        """Takes what `evaluate` needs, which is not part of the model."""
        self.listen = listener(model).predict_on_batch  # Keras would track a model
        self.vocabulary, self.rate = problem.vocabulary, problem.rate

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Tensor:
        real = ops.ones_like(y[:, 0]) if sample_weight is None else sample_weight
        real = ops.cast(real > 0, "float32")
        said = y > END
        counts = ops.sum(ops.cast(said, "int32"), axis=1)
        frames = encoder_frames(ops.cast(x["num_samples"], "int32"), self.rate)
        blanks = ops.where(said, y, BLANK)
        ctc = ops.ctc_loss(blanks, ops.cast(y_pred[CTC], "float32"), counts, frames, BLANK)
        scores = ops.log_softmax(ops.cast(y_pred[ATTENTION], "float32"), axis=-1)
        own = ops.take_along_axis(scores, ops.expand_dims(y, -1), axis=-1)[..., 0]
        entropies = -(1.0 - SMOOTHING) * own - SMOOTHING * ops.mean(scores, axis=-1)
        entropy = ops.sum(ops.where(y != BLANK, entropies, 0.0), axis=1)
        tokens = ops.sum(real * ops.cast(counts + 1, "float32"))
        loss = ops.sum(real * (CTC_SHARE * ctc + (1.0 - CTC_SHARE) * entropy)) / tokens
        for more in self.losses:
            loss = loss + ops.cast(more, "float32")
        return loss

    def heard(self, batches: Any) -> Transcripts:
        """The transcripts of the real rows of all batches, and what greedy decoding hears."""
        references, hypotheses = [], []
        for inputs, labels, weights in in_turn(batches):
            scores, mask = self.listen({name: inputs[name] for name in LISTENED})
            ids = greedy_ctc(scores, mask, BLANK)
            for row in np.flatnonzero(weights):
                references.append(self.vocabulary.decode(labels[row]))
                hypotheses.append(self.vocabulary.decode(ids[row]))
        return references, hypotheses


def listener(model: keras.Model) -> keras.Model:
    """From samples to log-probabilities of CTC (B, T, V) and the frames that are real (B, T)."""
    inputs = {name: model.input[name] for name in LISTENED}
    scores = ops.log_softmax(model.output[CTC], axis=-1)
    return keras.Model(inputs, [scores, encoder_mask(model)])


def encoder_mask(model: keras.Model) -> Tensor:
    """Which frames of the encoder are real, (B, T): every fourth frame of features."""
    return model.get_layer("frame_mask").output[:, ::SUBSAMPLING]


def served(model: keras.Model, options: argparse.Namespace) -> keras.Model:
    """The model that is exported: from samples to the ids of greedy CTC, -1 where there is none.

    Its recordings have any length, and `--served-seconds` where jax writes the SavedModel. That of
    a preset has the inputs of its encoder, and returns the tokens of its decoder.
    """
    if options.preset:
        return _pretrained().served(model)
    seconds = options.served_seconds if keras.backend.backend() == "jax" else None
    size = None if seconds is None else round(seconds * options.sampling_rate)
    inputs = {
        "samples": keras.Input((size,), dtype="float32", name="samples"),
        "num_samples": keras.Input((), dtype="int32", name="num_samples"),
    }
    scores, mask = listener(model)(inputs)
    likeliest = ops.argmax(scores, axis=-1)
    before = ops.pad(likeliest, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    kept = ops.logical_and(mask, ops.logical_and(likeliest != before, likeliest != BLANK))
    return keras.Model(inputs, ops.where(kept, likeliest, -1), name="recogniser")


def report(model: Recogniser, problem: Problem, options: argparse.Namespace) -> dict[str, Any]:
    """Error rates of the search on the tests, and what it hears in some recordings of the first."""
    language_model = language_model_of(problem, options)
    search = BeamSearch(
        model.get_layer("decoder"),
        start=START,
        end=END,
        blank=BLANK,
        language_model=language_model,
        beam=options.beam,
        ctc_weight=options.ctc_weight,
        language_model_weight=options.language_model_weight,
        temperature=options.temperature,
    )
    inputs = {name: model.input[name] for name in LISTENED}
    encoded, frame_mask = model.get_layer("encoded").output, encoder_mask(model)
    scores = ops.log_softmax(model.output[CTC], axis=-1)
    encoder = keras.Model(inputs, [encoded, frame_mask, scores])

    def searched(batches: Recordings) -> Transcripts:
        references, hypotheses = [], []
        for tensors, labels, weights in in_turn(batches):
            found = search(*encoder.predict_on_batch({name: tensors[name] for name in inputs}))
            for row in np.flatnonzero(weights):
                references.append(problem.vocabulary.decode(labels[row]))
                hypotheses.append(problem.vocabulary.decode(found[row].tokens))
        return references, hypotheses

    tests = {name: batches_of(problem, split, options) for name, split in problem.tests.items()}
    greedy = {name: model.heard(tests[name]) for name in list(tests)[1:]}
    return reported(greedy, {name: searched(batches) for name, batches in tests.items()})


def language_model_of(problem: Problem, options: argparse.Namespace) -> TransformerDecoder | None:
    """The decoder in the file of `--language-model`; `None` without it.

    Raises:
        UsageError: If it cannot be loaded, or has other tokens.
    """
    path = options.language_model
    return None if path is None else read_language_model(path, problem.vocabulary)


def draw_attention(path: Path, model: keras.Model, problem: Problem) -> None:
    """Draws the matrices of the last layer's first head in the first test recording, if any."""
    if problem.vocabulary.unit == PRESET:
        encoder = _pretrained().encoder_of(model.backbone)
        inputs = _pretrained().first_recording(problem)
    else:
        tensors, _, _ = Recordings(problem.test, [int(problem.test.lengths.max())], 1)[0]
        encoder, inputs = listener(model), {name: tensors[name] for name in LISTENED}
    report = inspect_smoothing(encoder, inputs, max_sequences=1)
    with suppress(ValueError):  # no layer has a matrix
        save(plot_attention_maps(report, -1), path)


def similarities(model: keras.Model, problem: Problem, trial: Trial) -> list[float]:
    """Mean token similarity over the test recordings, before the blocks and after each."""
    options = trial.options
    before = model.get_layer("block_1_attention_norm").input
    blocks = [model.get_layer(f"block_{number + 1}").output for number in range(options.layers)]
    mask = encoder_mask(model)
    inputs = {name: model.input[name] for name in LISTENED}
    measure = keras.Model(inputs, [token_similarity(one, mask) for one in (before, *blocks)])
    batches = batches_of(problem, problem.test, options)
    values = []
    for tensors, _, weights in in_turn(batches):
        found = measure.predict_on_batch({name: tensors[name] for name in inputs})
        values.append(np.array(found)[:, weights > 0])
    return [float(one) for one in np.concatenate(values, axis=1).mean(axis=1)]


def _pretrained() -> ModuleType:
    """What trains a preset; it needs KerasHub."""
    return importlib.import_module("recipes.speech_recognition.pretrained")
