"""`python -m recipes.causal_lm`: its options, the published settings, what it reports.

Does not import Keras itself.
"""

import argparse
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recipes.causal_lm.data import DATASETS, LEVELS, WORD_DATASETS, Problem
from recipes.common.attentions import MASKED_KERNEL, OF_LAYERS, RATE, Settings, label
from recipes.common.command.options import add_where, check_heads
from recipes.common.command.parsing import UsageError, at_least, flags, run_program
from recipes.common.output.notes import absent_note, coefficient_notes, settings_note
from recipes.common.recipe import Recipe
from recipes.common.training.records import Criterion

PAPERS = {"gfsa": "arXiv 2312.04234", "p_laplacian": "arXiv 2311.03235"}

# default of the option: for a small model from scratch, and for a preset
SIZES = {"layers": 4, "d_model": 128, "heads": 4, "feed_forward": 512, "dropout": 0.1}
SCRATCH = {**SIZES, "context": 128, "batch_size": 16, "learning_rate": 1e-3, "warm_up": 100}
PRESET = {"context": 1024, "batch_size": 4, "learning_rate": 5e-5, "warm_up": 0}
HINT = "{:g}; with --preset {:g}"
# the rate of coefficients, relative to other weights: the defaults of layers and masks
MULTIPLIERS = {"gfsa": 10.0, "masked_kernel": 30.0}

# Choi et al., arXiv 2312.04234: GPT-2 with GFSA, (epochs, K) by data set
PUBLISHED_GFSA = {"ptb": (15, 7), "wikitext-2": (10, 9), "wikitext-103": (4, 3)}
# Nguyen et al., arXiv 2311.03235: the small model on WikiText-103
PUBLISHED_P_LAPLACIAN = {
    "attention": ["softmax", "p_laplacian"],
    "exponents": [1.5] * 4 + [2.5] * 4,
    "tokens": "word",
    "layers": 16,
    "d_model": 128,
    "heads": 8,
    "context": 256,
    "stride": 1,
    "learning_rate": 2.5e-4,
    "warm_up": 2000,
}


def published(paper: str, dataset: str) -> dict[str, Any]:
    """The settings that `--published` selects.

    Raises:
        UsageError: If the paper has no such data set.
    """
    datasets = PUBLISHED_GFSA if paper == "gfsa" else ("wikitext-103",)
    if dataset not in datasets:
        raise UsageError(
            f"--published {paper} has settings for --dataset {', '.join(datasets)}; --dataset is "
            f"{dataset}"
        )
    if paper == "p_laplacian":
        return PUBLISHED_P_LAPLACIAN
    epochs, order = PUBLISHED_GFSA[dataset]
    return {
        "preset": "gpt2_base_en",
        "attention": ["softmax", "gfsa"],
        "order": order,
        "batch_size": 4,
        "learning_rate": 5e-5,
        "warm_up": 0,
        "context": 1024,
        "stride": 1024,
        "epochs": epochs,
        "patience": epochs,
        RATE: 1.0,
    }


class CausalLanguageModels(Recipe):
    """GPT-2 with another attention, from scratch or from a preset."""

    name = "causal_lm"
    description = (
        "Trains and compares causal language models of different attention; writes perplexities, "
        "curves, samples and the best model."
    )
    attentions = ("softmax", "gfsa", "p_laplacian", "masked_kernel", *OF_LAYERS)
    by_default = ("softmax", "gfsa")
    training = {"epochs": 10, "patience": 3, **dict.fromkeys(PRESET)}
    del training["context"]
    sizes = dict.fromkeys(SIZES)
    hints = {
        **{name: str(value) for name, value in SIZES.items()},
        **{name: HINT.format(SCRATCH[name], PRESET[name]) for name in PRESET},
        RATE: "gfsa: 10, masked_kernel: 30; with --preset 100",
        "order": "3",
    }
    data_files = "a text file, or the folder of the text's files"
    packages = ("keras-hub",)

    def add_options(self, add: Callable[..., Any]) -> None:
        add("--dataset", choices=DATASETS, default="text", help="which text")
        add("--data-dir", type=Path, help=self.data_files)
        preset = "a KerasHub causal language model: a name such as gpt2_base_en, or a folder"
        add("--preset", help=preset)
        published = "a paper's settings; options given here take their place, and are named"
        add("--published", choices=tuple(PAPERS), help=published)
        add_where(add)
        tokens = "[byte; word for PTB and WikiText; preset with --preset]"
        add("--tokens", choices=LEVELS, help=tokens)
        add("--prompt", help="beginning of the sample [the test text's first tokens]")
        add("--sample-tokens", type=at_least(0), default=200, help="tokens of the sample")
        add("--context", type=at_least(2), help=f"tokens of a window [{self.hints['context']}]")
        stride = "tokens between windows of evaluation [half a context]"
        add("--stride", type=at_least(1), help=stride)

    def published(self, options: argparse.Namespace) -> dict[str, Any]:
        return published(options.published, options.dataset) if options.published else {}

    def refuse(self, options: argparse.Namespace) -> None:
        sizes = [name for name in SIZES if getattr(options, name) is not None]
        attentions = [name for name in options.attention if name in OF_LAYERS]
        if options.preset and attentions:
            raise UsageError(
                f"--attention {','.join(attentions)}: no --preset has it, only models from scratch"
            )
        if options.where != "all" and attentions:
            raise UsageError(
                f"--where {options.where}: a model with --attention {','.join(attentions)} has it "
                "in all layers"
            )
        if options.preset and sizes:
            raise UsageError(f"{flags(sizes)}: the sizes of --preset {options.preset} are its own")
        if (options.tokens == "preset") > bool(options.preset):
            raise UsageError("--tokens preset takes the tokenizer of --preset, which is not given")
        if options.preset and options.tokens not in (None, "preset"):
            raise UsageError(
                f"--tokens {options.tokens}: --preset {options.preset} has a tokenizer of its own"
            )

    def defaults(self, options: argparse.Namespace) -> dict[str, Any]:
        words = options.dataset in WORD_DATASETS
        tokens = "preset" if options.preset else "word" if words else "byte"
        return {"tokens": tokens, **(PRESET if options.preset else SCRATCH)}

    def finish(self, options: argparse.Namespace) -> None:
        if options.stride is None:
            options.stride = max(options.context // 2, 1)
        if options.stride > options.context:
            raise UsageError(
                f"--stride {options.stride} would leave out tokens: at most --context "
                f"{options.context}"
            )
        if options.preset:
            return
        check_heads(options)
        if "differential" in options.attention and options.heads % 2:
            raise UsageError(
                "--attention differential has half the heads, each of twice the width: it takes "
                f"an even number of --heads. Received: --heads {options.heads}"
            )

    def attention_defaults(self, options: argparse.Namespace) -> dict[str, Settings]:
        defaults: dict[str, Settings] = {
            "gfsa": {"order": 3},
            "masked_kernel": {**MASKED_KERNEL},
            "differential_2": {"version": 2},
            "gated_delta_rule": {"use_gate": False},  # for the parameters of plain attention
        }
        if not options.preset:  # else that of `convert`
            for name, multiplier in MULTIPLIERS.items():
                defaults[name][RATE] = multiplier
        return defaults

    def load(self, options: argparse.Namespace) -> Problem:
        if importlib.util.find_spec("keras_hub") is None:
            from keras_graphattn.version import INSTALL_EXTRA

            raise UsageError(f"the models are KerasHub's: {INSTALL_EXTRA.format('hub')}")
        problem: Problem = super().load(options)
        self.model.prompt_tokens(problem, options)
        if options.where != "all":  # layers that a model does not have fail before any training
            for attention in options.attention:
                self.model.build(self.trial(problem, attention, options))
        return problem

    def facts(self, problem: Problem, options: argparse.Namespace) -> dict[str, Any]:
        return {
            "dataset": options.dataset,
            "vocabulary": problem.vocabulary.size,
            "tokens": {part: len(tokens) - 1 for part, tokens in problem.tokens.items()},
            "words": {part: problem.words(part) for part in problem.tokens},
            **({"published": {"paper": options.published}} if options.published else {}),
        }

    def criterion(self, problem: Problem, options: argparse.Namespace) -> Criterion:
        return Criterion("perplexity", lower_is_better=True)

    def title(self, problem: Problem, options: argparse.Namespace) -> str:
        return f"{options.dataset}, {options.preset or 'from scratch'}"

    def notes(self, results: dict[str, Any], options: argparse.Namespace) -> list[str]:
        unit = {"byte": "byte", "word": "word", "preset": "token of the preset"}[options.tokens]
        notes = [
            f"test perplexity: per {unit}, over all {results['tokens']['test']:,} of the test "
            f"text, in windows of {options.context} at a stride of {options.stride}; taken once.",
            f"per word: over the {results['words']['test']:,} words and ends of lines of the same "
            "text.",
        ]
        if options.published:
            paper = PAPERS[options.published]
            notes.append(settings_note(paper, results["published"]["departures"]))
            notes += absent_note(paper, ("softmax", options.published), results)
        notes += coefficient_notes(results)
        best = results["best_model"]
        for run in results["runs"]:
            if (run["attention"], run["seed"]) == (best["attention"], best["seed"]):
                name = label(run["attention"])
                notes.append(f"a sample of {name}, seed {run['seed']}:\n{run['sample']}")
        return notes


RECIPE = CausalLanguageModels()

if __name__ == "__main__":
    run_program(RECIPE.main)
