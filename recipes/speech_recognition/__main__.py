"""`python -m recipes.speech_recognition`: its options, published settings, what it reports.

Does not import Keras itself.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from recipes.common.attentions import MASKED_KERNEL, Settings, Trial, label
from recipes.common.command.effects import GIVEN, Effect, Except
from recipes.common.command.options import add_published, check_heads
from recipes.common.command.parsing import UsageError, at_least, number_in, run_program
from recipes.common.data.sources import refuse_beside_preset
from recipes.common.output.notes import (
    absent_note,
    coefficient_notes,
    other_measures,
    paired_difference,
    settings_note,
)
from recipes.common.recipe import Recipe
from recipes.common.storage import write_csv
from recipes.common.training.records import Criterion, Run
from recipes.speech_recognition.data import DATA_FILES, Problem

PAPER = "arXiv 2312.04234"
REPORTED = ("softmax", "gfsa")
WORD_ERRORS = "word_error_rate"
BEAM = f"{WORD_ERRORS}_beam"
CONVOLUTIONS = {"transformer": 3, "branchformer": 2}
# defaults of options: of the training from scratch, and of a preset; of models from scratch only
TRAINING = {"epochs": 20, "batch_size": 16, "learning_rate": 2e-3, "warm_up": 150}
PRESET_TRAINING = {"epochs": 3, "batch_size": 8, "learning_rate": 1e-4, "warm_up": 100}
HINT = "{:g}; with --preset {:g}"
SIZES = {"layers": 2, "d_model": 64, "heads": 2, "feed_forward": 256, "dropout": 0.1}
SCRATCH = {
    **{"model": "transformer", "decoder_layers": 1, "decoder_feed_forward": 256, "mel_bins": 80},
    **{"time_warp": 5, "frequency_masks": [2, 20], "time_masks": [2, 20], "time_mask_share": 0.2},
    **{"ctc_weight": 0.4, "temperature": 1.15, "language_model_weight": 0.6},
}


# Choi et al., arXiv 2312.04234: the training of its experiments on LibriSpeech
PUBLISHED_TRAINING = {
    "dataset": "librispeech",
    "tokens": "piece",
    "pieces": 5000,
    "mel_bins": 80,
    "batch_size": 16,
    "learning_rate": 8e-4,
    "d_model": 512,
    "decoder_layers": 6,
    "decoder_feed_forward": 2048,
    "dropout": 0.1,
    "time_warp": 5,
    "frequency_masks": [2, 30],
    "time_mask_share": 1.0,
    "speeds": [0.9, 1.0, 1.1],
    "beam": 66,
    "ctc_weight": 0.4,
    "temperature": 1.15,
    "seeds": [74443],
}
PUBLISHED_MODELS = {
    "transformer": {
        **{"epochs": 100, "warm_up": 25000, "weight_decay": 0.0, "time_masks": [2, 40]},
        **{"layers": 12, "heads": 4, "feed_forward": 2048},
        **{"channels": [128, 256, 512], "kernels": [3, 3, 1]},
    },
    "branchformer": {
        **{"epochs": 120, "warm_up": 30000, "weight_decay": 0.01, "time_masks": [10, 25]},
        **{"layers": 18, "heads": 8, "feed_forward": 3072},
        **{"channels": [64, 32], "kernels": [3, 3]},
    },
}
# its word error rates in percent, (softmax, GFSA), on test-clean and test-other, by hours of data
PUBLISHED_ERRORS = {
    ("transformer", 100): ((11.02, 10.30), (25.42, 24.30)),
    ("branchformer", 100): ((9.63, 9.60), (22.43, 22.25)),
    ("transformer", 960): ((2.42, 2.31), (5.50, 5.49)),
    ("branchformer", 960): ((2.13, 2.11), (5.00, 4.94)),
}


class SpeechRecognition(Recipe):
    """Attention in the encoder of a speech recogniser."""

    name = "speech_recognition"
    description = (
        "Trains and compares attention layers in the encoder of a speech recogniser; writes word "
        "error rates, curves, transcripts and the best model."
    )
    attentions = ("softmax", "gfsa", "p_laplacian", "agf", "masked_kernel")
    by_default = ("softmax", "gfsa")
    results = "<dataset>-<model>"
    training = {**dict.fromkeys(TRAINING), "weight_decay": 0.01, "ema": 0.0}
    sizes = dict.fromkeys(SIZES)
    hints = {
        **{name: str(value) for name, value in SIZES.items()},
        **{name: HINT.format(TRAINING[name], PRESET_TRAINING[name]) for name in TRAINING},
    }
    data_files = DATA_FILES
    packages = ("jiwer", "soundfile", "sentencepiece")
    effects = (
        Effect("hours", dataset=("librispeech",)),
        Effect("pieces", tokens=("piece",)),
        Effect("train_examples", dataset=("synthetic", "digits")),
        Effect("data_seed", dataset=Except("librispeech")),
        Effect("batch_size", batch_seconds=(None,)),
        Effect("language_model_weight", language_model=GIVEN),
        Effect("served_seconds", preset=(None,)),
    )

    def add_options(self, add: Callable[..., Any]) -> None:
        self.data.add_options(add)
        preset = "Whisper or Moonshine of KerasHub, in place of --model: a name or a folder"
        add("--preset", help=f"{preset}, such as moonshine_tiny_en")
        where = "attention layers of --preset that become --attention [encoder]"
        add("--where", help=where)
        add("--model", choices=tuple(CONVOLUTIONS), help="encoder [transformer]")
        add_published(add, "the paper's training of --model on LibriSpeech")
        channels = {"type": _numbers, "metavar": "N,N,..."}
        add("--channels", **channels, help="of the convolutions [d,d,d; branchformer: 16,16]")
        kernels = "frames of the convolutions, odd numbers [7,7,7; branchformer: 3,3]"
        add("--kernels", **channels, help=kernels)
        add("--decoder-layers", type=at_least(1), help="blocks of the decoder [1]")
        add("--decoder-feed-forward", type=at_least(1), help="of the decoder [256]")
        add("--mel-bins", type=at_least(8), help="features of a frame [80]")
        add("--time-warp", type=at_least(0), help="frames, in training [5]")
        masks = {"type": _masks, "metavar": "COUNT,WIDEST"}
        add("--frequency-masks", **masks, help="bands hidden in training [2,20]")
        add("--time-masks", **masks, help="stretches hidden in training [2,20]")
        share = number_in(0.0, 1.01, open_low=True)
        most = "of an utterance, that one of --time-masks may hide"
        add("--time-mask-share", type=share, help=f"{most} [0.2]")
        speeds = "at which to train, one drawn for each recording"
        add("--speeds", type=_speeds, metavar="S,S,...", default=[0.9, 1.0, 1.1], help=speeds)
        noise = "ratio to the noise added in training, in decibels, one drawn for each recording"
        add("--noise", type=_ratios, metavar="LEAST,GREATEST", default=[], help=f"{noise} [none]")
        add("--buckets", type=at_least(1), default=4, help="lengths to pad to")
        seconds = number_in(0.0, math.inf, open_low=True)
        add("--batch-seconds", type=seconds, help="of a batch, in place of --batch-size")
        add("--accumulate", type=at_least(1), default=1, help="batches to a step of the weights")
        add("--clip", type=seconds, default=5.0, help="greatest norm of the gradient")
        add("--beam", type=at_least(1), default=8, help="hypotheses of the search")
        add("--ctc-weight", type=number_in(0.0, 1.0), help="in the search [0.4]")
        add("--temperature", type=seconds, help="of the decoder in the search [1.15]")
        add(
            "--language-model",
            help="a .keras file, of recipes.speech_recognition.language_model, for the search",
        )
        served = "length of recordings that the SavedModel takes, where jax writes it"
        add("--served-seconds", type=seconds, default=30.0, help=served)
        weight = number_in(0.0, math.inf)
        add("--language-model-weight", type=weight, help="in the search [0.6]")

    def published(self, options: argparse.Namespace) -> dict[str, Any]:
        if not options.published:
            return {}
        return PUBLISHED_TRAINING | PUBLISHED_MODELS[options.model or "transformer"]

    def refuse(self, options: argparse.Namespace) -> None:
        self.data.refuse(options)
        if options.preset:
            own = ["published", "tokens", "channels", "kernels", "language_model", *SCRATCH, *SIZES]
            refuse_beside_preset(options, own)
        elif options.where is not None:
            raise UsageError(
                "--where is an option of --preset: models from scratch have one encoder"
            )

    def defaults(self, options: argparse.Namespace) -> dict[str, Any]:
        data = self.data.defaults(options)
        if options.preset:
            return {**data, **PRESET_TRAINING, "where": "encoder"}
        front = {"channels": [options.d_model or SIZES["d_model"]] * 3, "kernels": [7, 7, 7]}
        if options.model == "branchformer":
            front = {"channels": [16, 16], "kernels": [3, 3]}
        return {**data, **TRAINING, **SIZES, **SCRATCH, **front}

    def finish(self, options: argparse.Namespace) -> None:
        if options.preset:
            return
        check_heads(options)
        count = CONVOLUTIONS[options.model]
        for name in ("channels", "kernels"):
            given = getattr(options, name)
            if len(given) != count or 0 in given:
                raise UsageError(
                    f"--{name} must have {count} numbers for --model {options.model}, each at "
                    f"least 1. Received: {','.join(map(str, given))}"
                )
        if options.model == "branchformer" and options.feed_forward % 2:
            raise UsageError(
                "--feed-forward must be even for --model branchformer, whose gates are half of it. "
                f"Received: {options.feed_forward}"
            )
        if not all(kernel % 2 for kernel in options.kernels):
            raise UsageError(f"--kernels must be odd. Received: {options.kernels}")

    def attention_defaults(self, options: argparse.Namespace) -> dict[str, Settings]:
        order = 3 if options.model == "branchformer" else 2
        return {"gfsa": {"order": order}, "masked_kernel": MASKED_KERNEL}

    def load(self, options: argparse.Namespace) -> Problem:
        """The recordings; refuses what would fail in training or after it.

        Raises:
            UsageError: Also for a transcript that CTC cannot align, and for a language model of
                other tokens.
        """
        problem: Problem = super().load(options)
        if options.preset:
            return problem
        for split in problem.splits.values():
            self.data.refuse_unalignable(split, max(1.0, *options.speeds))
        self.model.language_model_of(problem, options)
        return problem

    def criterion(self, problem: Problem, options: argparse.Namespace) -> Criterion:
        """The word error rate; the loss decides ties."""
        return Criterion(WORD_ERRORS, lower_is_better=True, ties="loss")

    def facts(self, problem: Problem, options: argparse.Namespace) -> dict[str, Any]:
        counts = {name: len(split) for name, split in problem.splits.items()}
        hours = {name: split.seconds / 3600 for name, split in problem.splits.items()}
        parts = ", ".join(f"{n:,} {name} ({hours[name]:.2f} h)" for name, n in counts.items())
        print(f"{problem.name}: {parts}; {problem.vocabulary.size} tokens", flush=True)
        return {
            "dataset": problem.name,
            "vocabulary": problem.vocabulary.size,
            "recordings": counts,
            "hours": hours,
        }

    def title(self, problem: Problem, options: argparse.Namespace) -> str:
        what = "synthetic tones" if problem.name == "synthetic" else problem.name
        return f"{what}, {_name(options)}"

    def folder(self, options: argparse.Namespace) -> str:
        return f"{options.dataset}-{_name(options)}"

    def best_model(self, trial: Trial, weights: Path) -> Any:
        if not trial.options.preset:
            return super().best_model(trial, weights)
        from recipes.speech_recognition.pretrained import best_model

        return best_model(trial, weights)

    def write_more(
        self, output: Path, runs: Sequence[Run], best: Any, problem: Problem, options: Any
    ) -> None:
        """Writes the transcripts, the vocabulary, and a picture of the attention."""
        write_csv(output / "transcripts.csv", transcripts(runs))
        problem.vocabulary.write(output)
        self.model.draw_attention(output / "attention.png", best, problem)

    def notes(self, results: dict[str, Any], options: argparse.Namespace) -> list[str]:
        best = "at best test epoch: the best epoch on the test data; nothing is chosen by it."
        searches = "greedy CTC; beam: the search that joins decoder and CTC"
        if options.preset:
            searches = f"greedy decoding; beam: the best of {options.beam} hypotheses"
        notes = [
            f"test word error rate: {searches}.",
            *(best, *other_measures(results), *coefficient_notes(results)),
        ]
        for name in [row["attention"] for row in results["table"] if row["attention"] != "softmax"]:
            difference = paired_difference(results["runs"], f"test_{BEAM}", name, "softmax")
            if difference is not None:
                notes.append(f"{label(name)} less softmax, beam, paired: {difference}.")
        if results["dataset"] == "synthetic":
            notes.append("synthetic: words of formant tones, not speech.")
        if options.dataset == "librispeech" and not options.preset:
            clean, other = PUBLISHED_ERRORS[options.model, options.hours]
            notes.append(
                f"{PAPER}, {options.hours} hours, softmax -> GFSA in percent: test-clean "
                f"{clean[0]:.2f} -> {clean[1]:.2f}, test-other {other[0]:.2f} -> {other[1]:.2f}."
            )
        if options.published:
            notes.append(settings_note(PAPER, results["published"]["departures"]))
            notes += absent_note(PAPER, REPORTED, results)
        return notes


def transcripts(runs: Sequence[Run]) -> list[dict[str, str]]:
    """What is said in some test recordings, and what the first run of each attention hears."""
    first = {run.attention: run.reported["transcripts"] for run in reversed(runs)}
    said = next(iter(first.values()))
    return [
        {"said": pair[0], **{name: heard[row][1] for name, heard in reversed(first.items())}}
        for row, pair in enumerate(said)
    ]


def _name(options: argparse.Namespace) -> str:
    """The name of the model, or of the preset, which may be a folder."""
    return Path(options.preset).name if options.preset else str(options.model)


def _numbers(text: str) -> list[int]:
    """An argument type: comma-separated whole numbers."""
    check = at_least(0)
    return [check(part) for part in text.split(",")]


def _speeds(text: str) -> list[float]:
    """An argument type: comma-separated speeds."""
    check = number_in(0.5, 2.0)
    return [check(part) for part in text.split(",")]


def _ratios(text: str) -> list[float]:
    """An argument type: the least and the greatest ratio, in decibels."""
    check = number_in(-20.0, 100.0)
    ratios = [check(part) for part in text.split(",")]
    if len(ratios) != 2 or ratios[0] > ratios[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is not two rising numbers, such as 5,40")
    return ratios


def _masks(text: str) -> list[int]:
    """An argument type: how many masks, and the greatest width of each."""
    numbers = _numbers(text)
    if len(numbers) != 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not two whole numbers, such as 2,30")
    return numbers


RECIPE = SpeechRecognition()

if __name__ == "__main__":
    run_program(RECIPE.main)
