"""`python -m recipes.graph_regression`: its options, the published settings, what it reports.

Does not import Keras itself.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.common.attentions import MULTIPLIER, RATE, Settings
from recipes.common.command.checks import check_published
from recipes.common.command.effects import Effect
from recipes.common.command.options import GRAPH_ATTENTIONS, OF_WALKS, ON_PAIRS, WALKS
from recipes.common.command.parsing import UsageError, at_least, number_in, run_program
from recipes.common.output.notes import absent_note, settings_note
from recipes.common.recipe import Recipe
from recipes.common.training.records import Criterion

if TYPE_CHECKING:
    from recipes.common.data.graphs import GraphProblem

PAPER, GFSA_PAPER = "arXiv 2106.05234", "arXiv 2312.04234"
DATASETS = ("made", "zinc", "zinc_full", "pcqm4m")
BIASES = ("graphormer", "grit", "decay", "none")
ORDER = 2  # of GFSA on ZINC and PCQM4M
HELD_OUT = 0.01  # of the training molecules of PCQM4M

# Graphormer-slim on the subset of ZINC, Graphormer-base on PCQM4M, with and without GFSA; on ZINC,
# 400,000 steps of 40 in each epoch. The released code clips gradients.
PUBLISHED = {
    "zinc": {
        "attention": ["softmax", "gfsa"],
        "epochs": 10_000,
        "patience": 10_000,
        "batch_size": 256,
        "learning_rate": 2e-4,
        "warm_up": 40_000,
        "weight_decay": 0.01,
        "clip": 5.0,
        "layers": 12,
        "heads": 8,
        "key_dim": 10,
        "feed_forward": 80,
        "dropout": 0.1,
        "hops": 20,
    },
    "pcqm4m": {
        "attention": ["softmax", "gfsa"],
        "epochs": 300,
        "patience": 300,
        "batch_size": 1024,
        "learning_rate": 2e-4,
        "warm_up": 60_000,
        "weight_decay": 0.0,
        "clip": 5.0,
        "validation_fraction": 0.0,
        "layers": 12,
        "heads": 32,
        "key_dim": 24,
        "feed_forward": 768,
        "dropout": 0.1,
        "hops": 5,
    },
}
# (softmax, GFSA): absolute errors in electronvolts on the training data and on the validation data
PUBLISHED_ERRORS = ((0.0535, 0.0312), (0.1286, 0.1193))


class GraphRegression(Recipe):
    """Attention layers that predict a number for each molecule."""

    name = "graph_regression"
    description = (
        "Trains and compares Graphormer with and without a graph filter, and other attentions on "
        "graphs, on properties of molecules; writes a table, curves and the best model for serving."
    )
    attentions = GRAPH_ATTENTIONS
    by_default = ("softmax", "gfsa", "gcn", "gat", "graph_kernel")
    training = {"epochs": 20, "patience": 20, "batch_size": 32, "learning_rate": 1e-3}
    training |= {"warm_up": 100, "weight_decay": 0.01, "validation_fraction": None}
    sizes = {"layers": 4, "heads": 8, "key_dim": 10, "feed_forward": 80, "dropout": 0.1, **WALKS}
    hints = {RATE: f"{MULTIPLIER:g}; 1 with --published", "order": str(ORDER)}
    hints |= {"validation_fraction": f"{HELD_OUT}; only pcqm4m has this option"}
    trains_on_all = True
    data_files = "the folder with train.pickle and so on, or with PCQM4M's split_dict.pt"
    effects = (
        Effect("train_examples", dataset=("made", "pcqm4m")),
        Effect("evaluation_examples", dataset=("made",)),
        Effect("validation_fraction", dataset=("pcqm4m",)),
        Effect("data_seed", dataset=("made", "pcqm4m"), attention=OF_WALKS),
        Effect("bias", "max_distance", "hops", "bias_steps", attention=ON_PAIRS),
        Effect("max_distance", "hops", bias=("graphormer",)),
        Effect("bias_steps", bias=("grit",)),
    )

    def add_options(self, add: Callable[..., Any]) -> None:
        add("--dataset", choices=DATASETS, default="made", help="zinc: the subset of 12,000 [made]")
        add("--data-dir", type=Path, help=self.data_files)
        most = "molecules that are made [1024], or that are drawn of pcqm4m [all]"
        add("--train-examples", type=at_least(1), help=most)
        evaluation = "molecules that are made to validate on, and as many to test on [256]"
        add("--evaluation-examples", type=at_least(1), help=evaluation)
        published = "Graphormer-slim as published, with and without GFSA; needs --dataset zinc, or "
        published += "pcqm4m: Graphormer-base"
        add("--published", action="store_true", help=published)
        most = "distances of nodes above it count as it"
        add("--max-distance", type=at_least(1), default=20, help=most)
        bias = (
            "added to the scores of softmax and gfsa: distances and bonds on paths (graphormer), "
        )
        bias += "probabilities of walks (grit), a decay with the distance, or nothing"
        add("--bias", choices=BIASES, default="graphormer", help=bias)
        steps = "steps of walks of --bias grit, 0 included"
        add("--bias-steps", type=at_least(1), default=8, help=steps)
        clip = "greatest norm of the gradient [none]"
        add("--clip", type=number_in(0.0, math.inf, open_low=True), help=clip)
        hops = "bonds of a shortest path that count, the first ones"
        add("--hops", type=at_least(1), default=5, help=hops)

    def published(self, options: argparse.Namespace) -> dict[str, Any]:
        if not options.published:
            return {}
        check_published("dataset", options.dataset, PUBLISHED)
        return PUBLISHED[options.dataset]

    def refuse(self, options: argparse.Namespace) -> None:
        if options.dataset == "made" and options.data_dir is not None:
            raise UsageError("--data-dir: the molecules of --dataset made are made, not read")

    def defaults(self, options: argparse.Namespace) -> dict[str, Any]:
        defaults = {
            "made": {"train_examples": 1024, "evaluation_examples": 256},
            "pcqm4m": {"validation_fraction": HELD_OUT},
        }
        return defaults.get(options.dataset, {})

    def attention_defaults(self, options: argparse.Namespace) -> dict[str, Settings]:
        return {"gfsa": {"order": ORDER, RATE: 1.0 if options.published else MULTIPLIER}}

    def complete(self, problem: "GraphProblem", options: argparse.Namespace) -> argparse.Namespace:
        return argparse.Namespace(**vars(options), nodes=problem.sizes()[-1])

    def criterion(self, problem: "GraphProblem", options: argparse.Namespace) -> Criterion:
        return Criterion("mean_absolute_error", lower_is_better=True, ties="squared_error")

    def facts(self, problem: "GraphProblem", options: argparse.Namespace) -> dict[str, Any]:
        return {
            "dataset": problem.task,
            "graphs": {name: len(graphs) for name, graphs in problem.splits.items() if graphs},
            "nodes": problem.sizes()[-1],
            "median": problem.chance().levels,
        }

    def title(self, problem: "GraphProblem", options: argparse.Namespace) -> str:
        return f"graph regression, {problem.task}"

    def notes(self, results: dict[str, Any], options: argparse.Namespace) -> list[str]:
        notes = super().notes(results, options)
        if options.published:
            papers = f"{PAPER} and, for GFSA, {GFSA_PAPER}"
            notes.append(settings_note(papers, results["published"]["departures"]))
            notes += absent_note(papers, ("softmax", "gfsa"), results)
            if options.dataset == "pcqm4m":
                errors = zip(("training", "validation"), PUBLISHED_ERRORS, strict=True)
                published = "; ".join(f"{part} {a:.4f}, {b:.4f}" for part, (a, b) in errors)
                notes.append(f"published, softmax and GFSA, version 1 of the data: {published}")
        return notes


RECIPE = GraphRegression()

if __name__ == "__main__":
    run_program(RECIPE.main)
