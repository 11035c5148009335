"""`python -m recipes.speech_recognition.language_model`: the language model of the beam search.

It learns the transcripts that the recogniser trains on, or a text with one sentence a line. The
options of the data must be those of the recogniser, so that both have the same tokens. Does not
import Keras itself.
"""

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from recipes.common.command.options import check_heads
from recipes.common.command.parsing import UsageError, at_least, run_program
from recipes.common.output.notes import other_measures, settings_note
from recipes.common.recipe import Recipe
from recipes.common.training.records import Criterion
from recipes.speech_recognition import data, transcripts
from recipes.speech_recognition.data import DATA_FILES
from recipes.speech_recognition.transcripts import Transcripts

PAPER = "arXiv 2312.04234"
PUBLISHED = {"layers": 12, "heads": 12, "d_model": 768, "feed_forward": 3072}


class LanguageModel(Recipe):
    """The causal Transformer that the recogniser's `--language-model` takes."""

    name = "speech_recognition.language_model"
    description = (
        "Trains the language model of the speech recogniser's beam search; writes its perplexity, "
        "its curves, and model.keras, which the recogniser takes as --language-model."
    )
    attentions = by_default = ("softmax",)
    training = {"epochs": 10, "patience": 3, "batch_size": 16, "learning_rate": 1e-3}
    training |= {"warm_up": 100}
    sizes = {"layers": 2, "d_model": 64, "heads": 4, "feed_forward": 256, "dropout": 0.1}
    saved_model = False  # it is a part of the recogniser's search
    data_files = DATA_FILES

    def add_options(self, add: Callable[..., Any]) -> None:
        data.add_options(add)
        text = "a file with one sentence a line to train on, in place of the transcripts"
        add("--text", help=text)
        add("--published", action="store_true", help="the size of the paper's language model")
        add("--buckets", type=at_least(1), default=4, help="lengths to pad to")

    @property
    def data(self) -> ModuleType:
        return transcripts

    @property
    def model(self) -> ModuleType:
        return importlib.import_module("recipes.speech_recognition.language_model_training")

    def published(self, options: argparse.Namespace) -> dict[str, Any]:
        return PUBLISHED if options.published else {}

    def refuse(self, options: argparse.Namespace) -> None:
        data.refuse(options)

    def defaults(self, options: argparse.Namespace) -> dict[str, Any]:
        return data.defaults(options)

    def finish(self, options: argparse.Namespace) -> None:
        check_heads(options)
        if options.text is not None and not Path(options.text).is_file():
            raise UsageError(f"--text {options.text} is no file. Give a text, a sentence a line")

    def criterion(self, problem: Transcripts, options: argparse.Namespace) -> Criterion:
        return Criterion("cross_entropy", lower_is_better=True)

    def facts(self, problem: Transcripts, options: argparse.Namespace) -> dict[str, Any]:
        sentences = {name: len(part) for name, part in problem.parts.items()}
        return {
            "dataset": problem.name,
            "vocabulary": problem.vocabulary.size,
            "sentences": sentences,
            "tokens": {name: int(part.lengths.sum()) for name, part in problem.parts.items()},
        }

    def title(self, problem: Transcripts, options: argparse.Namespace) -> str:
        return f"transcripts of {problem.name}, language model"

    def notes(self, results: dict[str, Any], options: argparse.Namespace) -> list[str]:
        notes = ["cross-entropy: per token and end of sentence, in nats.", *other_measures(results)]
        if options.published:
            notes.append(settings_note(PAPER, results["published"]["departures"]))
        return notes


RECIPE = LanguageModel()

if __name__ == "__main__":
    run_program(RECIPE.main)
