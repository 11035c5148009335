"""`python -m recipes.causal_lm`: language models of different attention on one text."""

import argparse
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.causal_lm import arguments
from recipes.common import comparison
from recipes.common.command import UsageError
from recipes.common.notes import absent_note, settings_note

if TYPE_CHECKING:
    import keras

    from recipes.causal_lm.train import Problem
    from recipes.common.resume import Criterion
    from recipes.common.runs import Run, Training

PAPERS = {"gfsa": "arXiv 2312.04234", "p_laplacian": "arXiv 2311.03235"}


def main(given: list[str] | None = None) -> int:
    """Runs the recipe; returns its exit code: 0, or 2 with one line on standard error."""
    return comparison.run(CausalLanguageModels(), given)


class CausalLanguageModels(comparison.Recipe):
    """GPT-2 with another attention, from scratch or from a preset."""

    attentions = arguments.ATTENTIONS
    packages = ("keras-hub",)

    def parse(self, given: list[str] | None) -> argparse.Namespace:
        return arguments.parse(given)

    def filters(self, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
        return arguments.settings(options)

    def load(self, options: argparse.Namespace) -> "Problem":
        if importlib.util.find_spec("keras_hub") is None:
            raise UsageError("the models are KerasHub's: pip install 'keras-graphattn[hub]'")
        from recipes.causal_lm.train import load_problem, prompt_tokens

        problem = load_problem(options)
        prompt_tokens(problem, options)
        return problem

    def facts(self, problem: "Problem", options: argparse.Namespace) -> dict[str, Any]:
        facts = {
            "recipe": "causal_lm",
            "dataset": options.dataset,
            "vocabulary": problem.vocabulary.size,
            "tokens": {part: len(tokens) - 1 for part, tokens in problem.tokens.items()},
            "words": {part: problem.words(part) for part in problem.tokens},
        }
        if options.published:
            facts["published"] = {
                "paper": options.published,
                "departures": arguments.departures(options),
            }
        return facts

    def criterion(self, problem: "Problem") -> "Criterion":
        from recipes.common.resume import Criterion

        return Criterion("perplexity", lower_is_better=True)

    def prepare(
        self, problem: "Problem", attention: str, seed: int, options: argparse.Namespace
    ) -> "Training":
        from recipes.causal_lm.train import prepare

        return prepare(problem, attention, seed, options)

    def title(self, problem: "Problem", options: argparse.Namespace) -> str:
        return f"{options.dataset}, {options.preset or 'from scratch'}"

    def best_model(
        self, runs: "list[Run]", problem: "Problem", options: argparse.Namespace
    ) -> "keras.Model":
        from recipes.causal_lm.train import best_model

        return best_model(runs, problem, options)

    def write_model(self, output: Path, model: "keras.Model", options: argparse.Namespace) -> None:
        from recipes.causal_lm.model import served
        from recipes.common import report

        saved_model = comparison.writes_saved_model(options)
        report.write_model(output, model, saved_model=saved_model, served=served(model, options))

    def notes(self, results: dict[str, Any], options: argparse.Namespace) -> list[str]:
        from recipes.common.coefficients import coefficient_notes

        unit = {"byte": "byte", "word": "word", "preset": "token of the preset"}[options.tokens]
        notes = [
            f"test perplexity: per {unit}, over all {results['tokens']['test']:,} of the test "
            f"text, in windows of {options.context} at a stride of {options.stride}; taken once.",
            f"per word: over the {results['words']['test']:,} words and ends of lines of the same "
            "text.",
        ]
        if options.published:
            paper = PAPERS[options.published]
            attentions = [row["attention"] for row in results["table"]]
            notes.append(settings_note(paper, results["published"]["departures"]))
            notes += absent_note(paper, ("softmax", options.published), attentions)
        notes += coefficient_notes(results)
        best = results["best_model"]
        for run in results["runs"]:
            if (run["attention"], run["seed"]) == (best["attention"], best["seed"]):
                notes.append(
                    f"a sample of {run['attention']}, seed {run['seed']}:\n{run['sample']}"
                )
        return notes
