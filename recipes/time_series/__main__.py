"""`python -m recipes.time_series`: its options, the published settings, what it reports.

Does not import Keras itself.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recipes.common.attentions import ABLATIONS, MULTIPLIER, RATE, PublishedFilter, Settings
from recipes.common.command.checks import check_published
from recipes.common.command.options import REMEDIES, add_published
from recipes.common.command.parsing import run_program
from recipes.common.output.notes import absent_note, settings_note
from recipes.common.recipe import Recipe
from recipes.time_series.data import Problem

PAPER = "arXiv 2505.08516"
REPORTED = ("softmax", "linear", "agf")
LANDMARKS = {"linformer": 256, "nystromformer": 64}

# Wi et al., arXiv 2505.08516 (IJCAI 2025), the settings of its time-series experiments
PUBLISHED_AGF = {
    "EthanolConcentration": PublishedFilter(6, 0.1, 1.5, -1.5),
    "FaceDetection": PublishedFilter(9, 0.1, 2.0, 0.5),
    "Handwriting": PublishedFilter(3, 0.01, 1.0, 0.2, True),
    "Heartbeat": PublishedFilter(6, 0.01, -0.5, -0.5, True),
    "JapaneseVowels": PublishedFilter(4, 0.01, 0.0, 0.0, True),
    "PEMS-SF": PublishedFilter(5, 0.1, 1.5, 2.0),
    "SelfRegulationSCP1": PublishedFilter(9, 0.1, 1.5, 2.0),
    "SelfRegulationSCP2": PublishedFilter(7, 0.1, 2.0, 1.5),
    "SpokenArabicDigits": PublishedFilter(4, 0.1, 1.0, 0.0),
    "UWaveGestureLibrary": PublishedFilter(10, 0.1, 2.0, 1.5),
}
ELSEWHERE = PublishedFilter(4, 0.01, 0.0, 0.0)

# the training of the same experiments: 8 heads of 64, all epochs without early stopping, all
# training data; the paper reports the best test epoch
PUBLISHED_TRAINING = {
    "attention": ["softmax", "linear", "gfsa", "agf"],
    "epochs": 100,
    "patience": 100,
    "batch_size": 16,
    "learning_rate": 1e-3,
    "validation_fraction": 0.0,
    "layers": 2,
    "d_model": 512,
    "heads": 8,
    "key_dim": 64,
}
# what the paper's released code sets, where the paper is silent or says something else
RELEASED_TRAINING = {
    **PUBLISHED_TRAINING,
    "feed_forward": 2048,
    "dropout": 0.1,
    "scaled_values": True,
    "readout": "flatten",
}
RELEASED_OF_SETS: dict[str, dict[str, Any]] = {
    "PEMS-SF": {"epochs": 400, "patience": 400},
    "SpokenArabicDigits": {"rectified": False},
}
RELEASED_AGF = {
    **PUBLISHED_AGF,
    "SelfRegulationSCP1": PublishedFilter(9, 0.1, 1.5, 1.0),
    "SpokenArabicDigits": PublishedFilter(4, 0.5, 1.0, 0.0),
}


class TimeSeries(Recipe):
    """Attention layers on a data set of the UEA archive."""

    name = "time_series"
    description = (
        "Trains and compares attention layers on time series of the UEA archive; writes a table, "
        "curves and the best model for serving."
    )
    attentions = ("softmax", "linear", "performer", *LANDMARKS, "gfsa", "agf")
    attentions += (*ABLATIONS, *REMEDIES)
    by_default = ("softmax", "gfsa", "agf")
    training = {"epochs": 15, "patience": 8, "batch_size": 16, "learning_rate": 1e-3}
    training |= {"validation_fraction": 0.2}
    sizes = {"layers": 2, "d_model": 512, "heads": 8, "key_dim": 64, "feed_forward": 256}
    sizes |= {"dropout": 0.3}
    hints = {RATE: f"{MULTIPLIER:g}; 1 with --published and --released"}
    data_files = "the folder with NAME_TRAIN.ts and NAME_TEST.ts"
    packages = ("aeon",)
    trains_on_all = True

    def add_options(self, add: Callable[..., Any]) -> None:
        add("--dataset", default="JapaneseVowels", help="a data set of the UEA archive")
        add_published(add, "the paper's training of --dataset: all attentions, 100 epochs")
        released = "the same with what the paper's released code sets beside it"
        add("--released", action="store_true", help=released)
        add("--data-dir", type=Path, help=self.data_files)
        readout = "what the classifier reads: the mean of the tokens, or all of them"
        add("--readout", choices=("mean", "flatten"), default="mean", help=readout)
        yes_or_no = argparse.BooleanOptionalAction
        scaled = "embedded values times the square root of the width, before positions are added"
        add("--scaled-values", action=yes_or_no, default=False, help=scaled)
        rectified = "RAdam; else Adam"
        add("--rectified", action=yes_or_no, default=True, help=rectified)

    def published(self, options: argparse.Namespace) -> dict[str, Any]:
        if not options.published and not options.released:
            return {}
        name = options.dataset
        check_published("dataset", name, PUBLISHED_AGF)
        released = {**RELEASED_TRAINING, **RELEASED_OF_SETS.get(name, {})}
        return released if options.released else PUBLISHED_TRAINING

    def attention_defaults(self, options: argparse.Namespace) -> dict[str, Settings]:
        """AGF's settings of a set; only with the whole training of the paper is theta_0 learned."""
        settings = RELEASED_AGF if options.released else PUBLISHED_AGF
        filter = settings.get(options.dataset, ELSEWHERE)
        as_published = options.published or options.released
        if not as_published:
            filter = filter._replace(learned_constant=False)
        performer = {"feature_map": "favor"}  # random features of the softmax
        landmarks = {name: {"landmarks": count} for name, count in LANDMARKS.items()}
        return {**filter.defaults(one_rate=as_published), "performer": performer, **landmarks}

    def facts(self, problem: Problem, options: argparse.Namespace) -> dict[str, Any]:
        return {
            "dataset": problem.name,
            "classes": problem.classes,
            "series": {"train": len(problem.train), "test": len(problem.test)},
            "length": problem.length,
            "channels": problem.channels,
        }

    def title(self, problem: Problem, options: argparse.Namespace) -> str:
        return problem.name

    def notes(self, results: dict[str, Any], options: argparse.Namespace) -> list[str]:
        best, *notes = super().notes(results, options)
        if options.dataset not in PUBLISHED_AGF:
            return [best, *notes]
        notes = [f"{best} {PAPER} reports this figure for {options.dataset}.", *notes]
        if options.published or options.released:
            whose = f"{PAPER}'s released code" if options.released else PAPER
            notes.append(settings_note(whose, results["published"]["departures"]))
        return notes + absent_note(PAPER, REPORTED, results)


RECIPE = TimeSeries()

if __name__ == "__main__":
    run_program(RECIPE.main)
