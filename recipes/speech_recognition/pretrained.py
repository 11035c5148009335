"""Whisper and Moonshine of KerasHub presets, with another attention in the encoder, fine-tuned.

A preset brings its own features, tokens and decoder. Its decoder says a transcript token by token,
through KerasHub's `generate`; there is no CTC.
"""

import argparse
import functools
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import keras_hub
import numpy as np
from keras import layers, ops

from keras_graphattn.types import Float, Int, Tensor
from recipes.common.attentions import Trial
from recipes.common.command.parsing import UsageError
from recipes.common.data.batches import in_turn
from recipes.common.data.sources import loading_preset, refuse_converted
from recipes.common.storage import atomically
from recipes.common.training.layers import converted, similarity_by_depth
from recipes.common.training.optimizers import noam_adam
from recipes.common.training.runs import Training, load_chosen
from recipes.speech_recognition.batches import Recordings, batches_of
from recipes.speech_recognition.data import Marks, Problem, Split
from recipes.speech_recognition.features import PACKAGE
from recipes.speech_recognition.search import CountsWords, Transcripts, reported

Inputs = dict[str, Any]
FORM = " as Whisper or Moonshine"  # of a preset
ROOM = 1.5  # tokens that may be said, for each of the longest transcript


class Preset:
    """The tokens and the features of a preset, in place of a `Vocabulary`.

    Transcripts are words in small letters, without punctuation.

    Args:
        name: The name of a preset, or its folder.

    Raises:
        UsageError: If it cannot be loaded, is neither Whisper nor Moonshine, or has features that
            depend on the padding.
    """

    unit = "preset"

    def __init__(self, name: str) -> None:
        with loading_preset(name, FORM):
            self.converter = keras_hub.layers.AudioConverter.from_preset(name)
            if isinstance(self.converter, keras_hub.layers.WhisperAudioConverter):
                tokenizer = keras_hub.models.WhisperTokenizer.from_preset(name)
                languages = tokenizer.language_tokens or {}
                prompt = [tokenizer.bos_token_id, tokenizer.no_timestamps_token_id]
                if languages:
                    prompt[1:1] = languages["<|en|>"], tokenizer.transcribe_token_id
                self.marks = Marks(prompt, tokenizer.eos_token_id, tokenizer.pad_token_id)
                self.special = {*tokenizer.special_token_ids, *languages.values()}
                self.before = " "  # as before a word inside of a text
            elif isinstance(self.converter, keras_hub.layers.MoonshineAudioConverter):
                # only a preprocessor finds the class of its tokenizer
                packer = keras_hub.models.MoonshineAudioToTextPreprocessor
                tokenizer = packer.from_preset(name, audio_converter=self.converter).tokenizer
                start, end = tokenizer.start_token_id, tokenizer.end_token_id
                self.marks = Marks([start], end, tokenizer.pad_token_id)
                self.special, self.before = {start, end, tokenizer.pad_token_id}, ""
            else:
                kind = type(self.converter).__name__.removesuffix("AudioConverter")
                raise UsageError(f"--preset {name} is {kind}: expected Whisper or Moonshine")
        if getattr(self.converter, "do_normalize", False):
            raise UsageError(
                f"--preset {name} has an audio converter with do_normalize, which would normalise "
                "recordings with their padding: expected one without"
            )
        self.tokenizer = tokenizer
        self.size, self.rate = tokenizer.vocabulary_size(), self.converter.sampling_rate
        self.longest = getattr(self.converter, "num_samples", math.inf)  # that it hears

    def encode(self, text: str) -> np.ndarray:
        """The preset's ids of a transcript, (L,) int32."""
        return np.asarray(self.tokenizer(self.before + _plain(text)), "int32")

    def decode(self, ids: Iterable[int]) -> str:
        """The transcript of ids before the first end; special ids are left out."""
        said: list[int] = []
        for one in map(int, ids):
            if one == self.marks.end:
                break
            said += [one] * (one not in self.special)
        return _plain(str(self.tokenizer.detokenize(said))) if said else ""

    def write(self, folder: Path) -> None:
        """Writes the folder `tokenizer`, which is a preset of KerasHub."""
        with atomically(folder / "tokenizer") as writing:
            self.tokenizer.save_to_preset(str(writing))

    def shape_of(self, name: str, tensor: keras.KerasTensor) -> tuple[int | None, ...]:
        """The shape of an encoder's input for one recording; Whisper's have one length."""
        if name == "encoder_features":
            return self.converter.num_samples // self.converter.stride, *tensor.shape[2:]
        return tensor.shape[1:]

    def features(self, samples: Float[np.ndarray, "B S"], counts: Int[np.ndarray, " B"]) -> Inputs:
        """What the encoder takes of samples, of which the first `counts` of a row are real."""
        if isinstance(self.converter, keras_hub.layers.WhisperAudioConverter):
            features = ops.convert_to_numpy(self.converter(samples))
            return {"encoder_features": np.asarray(features, "float32")}
        real = np.arange(samples.shape[1])[None] < counts[:, None]
        return {"encoder_input_values": samples[..., None], "encoder_padding_mask": real}


def _plain(text: str) -> str:
    """The words of a text in small letters, with apostrophes, between single spaces."""
    return " ".join(re.sub(r"[^\w']+", " ", text.lower()).split())


@keras.saving.register_keras_serializable(package=PACKAGE)
class WhisperAudioToText(keras_hub.models.Seq2SeqLM):
    """Whisper as a task of KerasHub, which has only its backbone: logits, and `generate`.

    Args:
        backbone: A `keras_hub.models.WhisperBackbone`.
        preprocessor: `None`: the inputs are those of the backbone.
    """

    backbone_cls = keras_hub.models.WhisperBackbone

    def __init__(self, backbone: Any, preprocessor: None = None, **kwargs: Any) -> None:
        self.backbone, self.preprocessor = backbone, preprocessor
        hidden = backbone(backbone.input)["decoder_sequence_output"]
        logits = backbone.token_embedding(hidden, reverse=True)
        super().__init__(inputs=backbone.input, outputs=logits, **kwargs)

    def call_decoder_with_cache(
        self,
        encoded: Float[Tensor, "B T d"],
        tokens: Int[Tensor, "B t"],
        own: Float[Tensor, "B layers 2 S N H"],
        index: int | Int[Tensor, ""],
        cross: Float[Tensor, "B layers 2 T N H"],
        cross_index: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits and hidden states of tokens from position `index` on, and both caches.

        With `cross_index` 0, the cache of the encoder is made; without it, it is taken as it is.
        """
        x, caches = self.backbone.decoder_embeddings(tokens, start_index=index), []
        for number, layer in enumerate(self.backbone.decoder_transformer_layers):
            x, *both = layer(
                *(x, encoded),
                self_attention_cache=own[:, number],
                self_attention_cache_update_index=index,
                cross_attention_cache=cross[:, number],
                cross_attention_cache_update_index=cross_index,
            )
            caches.append(both)
        own, cross = (ops.stack(cache, axis=1) for cache in zip(*caches, strict=True))
        hidden = self.backbone.decoder_layer_norm(x)
        return self.backbone.token_embedding(hidden, reverse=True), hidden, own, cross

    def generate_step(self, inputs: Inputs, stop_token_ids: Sequence[int] | None = None) -> Inputs:
        """The prompts and the tokens after them (B, S), as `generate` calls it."""
        backbone, tokens = self.backbone, inputs["decoder_token_ids"]
        mask = ops.cast(inputs["decoder_padding_mask"], "bool")
        encoded = encoder_of(backbone)({"encoder_features": inputs["encoder_features"]})
        heads = (backbone.num_heads, backbone.hidden_dim // backbone.num_heads)
        own, cross = (
            ops.zeros((ops.shape(tokens)[0], backbone.num_layers, 2, length, *heads), encoded.dtype)
            for length in (ops.shape(tokens)[1], ops.shape(encoded)[1])
        )
        _, hidden, own, cross = self.call_decoder_with_cache(encoded, tokens, own, 0, cross, 0)

        def following(prompt: Tensor, cache: Any, index: Tensor) -> Any:
            encoded, own, cross = cache
            last = ops.slice(prompt, [0, index - 1], [ops.shape(prompt)[0], 1])
            step = self.call_decoder_with_cache(encoded, last, own, index - 1, cross)
            return step[0][:, 0], step[1][:, 0], (encoded, step[2], cross)

        tokens = self.sampler(
            next=following,
            prompt=tokens,
            cache=(encoded, own, cross),
            index=ops.min(ops.sum(ops.cast(mask, "int32"), axis=-1)),
            mask=mask,
            stop_token_ids=stop_token_ids,
            hidden_states=hidden,
            model=self,
        )
        return {"decoder_token_ids": tokens, "decoder_padding_mask": ops.ones_like(tokens)}


def encoder_of(backbone: Any) -> keras.Model:
    """The encoder of a backbone, with its inputs."""
    inputs = {name: x for name, x in backbone.input.items() if name.startswith("encoder")}
    return keras.Model(inputs, backbone.output["encoder_sequence_output"])


class PresetRecordings(Recordings):
    """Batches of what a preset takes; a token counts up to the end of its transcript."""

    def __getitem__(self, index: int) -> Any:
        heard, labels, weights = super().__getitem__(index)
        ends = np.argmax(labels == self.vocabulary.marks.end, axis=1)
        said = np.arange(labels.shape[1])[None] <= ends[:, None]
        inputs = {
            **self.vocabulary.features(heard["samples"], heard["num_samples"]),
            "decoder_token_ids": heard["tokens"],
            "decoder_padding_mask": said,
        }
        return inputs, labels, said * weights[:, None]


def prepare(trial: Trial) -> Training:
    """The compiled recogniser and the batches of one attention with one seed."""
    problem, options = trial.problem, trial.options
    task = build(trial)
    model = trained(task, options)

    def batches(split: Split, seed: int | None = None) -> PresetRecordings:
        return batches_of(problem, split, options, seed, PresetRecordings)

    return Training(
        model,
        batches(problem.train, trial.seed),
        batches(problem.validation),
        batches(problem.test),
        measure=lambda: similarity_by_depth(encoder_of(task.backbone), first_recording(problem)),
        report=lambda: report(task, problem, options),
    )


def build(trial: Trial) -> Any:
    """The task of the preset, with the attention of the trial in its encoder, not compiled.

    Raises:
        UsageError: If it cannot be loaded, or cannot be converted so.
    """
    options = trial.options
    with loading_preset(options.preset, FORM):
        backbone = keras_hub.models.Backbone.from_preset(options.preset, dtype=options.precision)
    refuse_converted(options.preset, backbone)
    converted(backbone, trial)
    is_whisper = isinstance(backbone, keras_hub.models.WhisperBackbone)
    kind = WhisperAudioToText if is_whisper else keras_hub.models.MoonshineAudioToText
    task = kind(backbone, preprocessor=None)
    task.vocabulary = trial.problem.vocabulary
    task.room = _room(backbone, trial.problem)
    return task


def _room(backbone: Any, problem: Problem) -> int:
    """Tokens of a decoder's row: more than the longest transcript has, if the decoder takes them.

    Raises:
        UsageError: If it does not take the longest transcript.
    """
    prompt = problem.vocabulary.marks.prompt
    longest = len(prompt) + max(int(split.labels.max()) for split in problem.splits.values())
    most = getattr(backbone, "max_decoder_sequence_length", math.inf)
    if longest > most:
        raise UsageError(
            f"a transcript has {longest} tokens with its prompt: the decoder of the preset takes "
            f"{most}. Leave it out, or cut the recording"
        )
    return int(min(math.ceil(ROOM * longest) + 1, most))


def trained(task: Any, options: argparse.Namespace) -> "PresetRecogniser":
    """The same layers as a model that is compiled to train."""
    task.compile(sampler="greedy")
    model = PresetRecogniser(task.input, task.output, name=task.name)
    model.transcribe = functools.partial(transcripts, task)  # Keras would track a task
    model.compile(
        optimizer=noam_adam(model, options),
        loss=keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
    )
    return model


class PresetRecogniser(CountsWords):
    """The layers of a task of KerasHub; its loss is the mean over the tokens that count."""

    def heard(self, batches: Any) -> Transcripts:
        return self.transcribe(batches)


def best_model(trial: Trial, weights: Path) -> Any:
    """The task of a run at its chosen epoch, not compiled."""
    task = build(trial)
    load_chosen(trained(task, trial.options), weights)
    return task


def transcripts(task: Any, batches: Any) -> Transcripts:
    """The transcripts of the real rows of all batches, and what the task's sampler says."""
    vocabulary, prompt = task.vocabulary, task.vocabulary.marks.prompt
    references, hypotheses = [], []
    for inputs, labels, weights in in_turn(batches):
        spoken = task.generate(
            {**inputs, **prompted(vocabulary.marks, len(labels), task.room)},
            stop_token_ids=(vocabulary.marks.end,),
        )
        spoken = ops.convert_to_numpy(spoken["decoder_token_ids"])[:, len(prompt) :]
        for row in np.flatnonzero(weights.any(axis=1)):
            references.append(vocabulary.decode(labels[row]))
            hypotheses.append(vocabulary.decode(spoken[row]))
    return references, hypotheses


def prompted(marks: Marks, rows: int, room: int) -> Inputs:
    """Rows of a decoder with the prompt only.

    Not Whisper's padding behind it, which is its end: KerasHub would take the row for finished.
    """
    tokens = np.full((rows, room), marks.prompt[0], "int32")
    tokens[:, : len(marks.prompt)] = marks.prompt
    mask = np.broadcast_to(np.arange(room) < len(marks.prompt), tokens.shape)
    return {"decoder_token_ids": tokens, "decoder_padding_mask": mask}


def report(task: Any, problem: Problem, options: argparse.Namespace) -> dict[str, Any]:
    """Error rates of a beam search on the tests, and what it hears in some recordings."""
    tests = {
        name: batches_of(problem, split, options, kind=PresetRecordings)
        for name, split in problem.tests.items()
    }
    greedy = {name: transcripts(task, tests[name]) for name in list(tests)[1:]}
    task.compile(sampler=keras_hub.samplers.BeamSampler(num_beams=options.beam))
    return reported(greedy, {name: transcripts(task, batches) for name, batches in tests.items()})


def first_recording(problem: Problem) -> Inputs:
    """What the encoder takes of the first test recording."""
    samples = problem.test.samples(0)[None]
    return problem.vocabulary.features(samples, np.array([samples.shape[1]]))


def served(task: Any) -> keras.Model:
    """The model that is exported: from an encoder's inputs to greedy tokens, -1 after the end."""
    inputs = {
        name: keras.Input(task.vocabulary.shape_of(name, x), dtype=x.dtype, name=name)
        for name, x in encoder_of(task.backbone).input.items()
    }
    return keras.Model(
        inputs, Spoken(task, task.vocabulary.marks, task.room)(inputs), name="recogniser"
    )


@keras.saving.register_keras_serializable(package=PACKAGE)
class Spoken(layers.Layer):
    """The greedy tokens of a task, (B, L) int32, with -1 from the end on.

    Args:
        task: A task of KerasHub that generates.
        marks: Its prompt, its end and its padding.
        room: Tokens of a row of its decoder, with the prompt.
    """

    def __init__(self, task: Any, marks: Sequence[Any], room: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        task.compile(sampler="greedy")
        self.task, self.marks, self.room = task, Marks(*marks), room

    def call(self, inputs: Inputs) -> Int[Tensor, "B _"]:
        rows = ops.shape(next(iter(inputs.values())))[0]
        decoder = {
            name: ops.repeat(ops.convert_to_tensor(one), rows, axis=0)
            for name, one in prompted(self.marks, 1, self.room).items()
        }
        step = self.task.generate_step({**inputs, **decoder}, stop_token_ids=(self.marks.end,))
        spoken = ops.cast(step["decoder_token_ids"], "int32")[:, len(self.marks.prompt) :]
        ended = ops.cumsum(ops.cast(spoken == self.marks.end, "int32"), axis=1) > 0
        return ops.where(ended, -1, spoken)

    def compute_output_spec(self, inputs: Inputs) -> keras.KerasTensor:
        return keras.KerasTensor((None, self.room - len(self.marks.prompt)), "int32")

    def get_config(self) -> dict[str, Any]:
        own = {"task": self.task, "marks": list(self.marks), "room": self.room}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Spoken":
        task = keras.saving.deserialize_keras_object(config["task"])
        return cls(**{**config, "task": task})
