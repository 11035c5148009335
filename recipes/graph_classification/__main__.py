"""`python -m recipes.graph_classification`: its options, what it reports.

Imports no Keras by itself.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.common.command.attention_options import add_attention_options
from recipes.common.command.graph_options import (
    ATTENTIONS,
    BY_DEFAULT,
    add_classifier_options,
    add_graph_options,
    refuse_classifier_options,
)
from recipes.common.command.options import add_run_options, add_shared
from recipes.common.command.parsing import Parser, UsageError, at_least
from recipes.common.command.program import run_program
from recipes.common.recipe import Recipe

if TYPE_CHECKING:
    from recipes.common.data.chance import Chance
    from recipes.common.training.resume import Criterion
    from recipes.graph_classification.data import Folds

MADE = "made"


class GraphClassification(Recipe):
    """Attention layers on a data set of graphs, fold by fold."""

    name = "graph_classification"
    description = (
        "Trains and compares attention layers on graphs with a class; writes a table, curves and "
        "the best model for serving."
    )
    attentions = ATTENTIONS
    data_files = "the folder with NAME.txt or NAME_A.txt, or the one above it"

    def add_options(self, parser: Parser) -> None:
        add = parser.add_argument
        add("--dataset", default=MADE, help="made, or the name of TU data in --data-dir")
        add("--data-dir", type=Path, help=self.data_files)
        add("--degrees", action="store_true", help="a node's degree is a feature beside its tag")
        search = "test on a fifth of a fold's training graphs: to choose options by"
        add("--search", action="store_true", help=search)
        add("--graphs", type=at_least(60), help="how many graphs are made [300]")
        add_run_options(parser, self.attentions, BY_DEFAULT, "graph_classification/<dataset>")
        training = {"epochs": 100, "patience": None, "batch_size": 32, "learning_rate": 2e-3}
        training |= {"validation_fraction": 0.1, "precision": "float32", "ema": 0.0}
        add_shared(parser.add_argument_group("training"), training, {"patience": "all"})
        model = parser.add_argument_group("model")
        sizes = {"layers": 2, "heads": 8, "key_dim": 4, "feed_forward": 32, "dropout": 0.0}
        add_shared(model, sizes)
        add_graph_options(model, normalise=True)
        add_classifier_options(model, pooling="sum", head_dropout=0.5)
        add_attention_options(parser.add_argument_group("attentions"), self.attentions)

    def refuse(self, options: argparse.Namespace) -> None:
        refuse_classifier_options(options)
        if options.dataset == MADE and options.data_dir is not None:
            raise UsageError("--data-dir: the graphs of --dataset made are made, not read")
        if options.dataset != MADE and options.graphs is not None:
            raise UsageError("--graphs: only the graphs of --dataset made are made")
        if options.dataset == MADE and options.degrees:
            raise UsageError("--degrees: the graphs of --dataset made have no other feature")

    def defaults(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"graphs": 300} if options.dataset == MADE else {}

    def folder(self, options: argparse.Namespace) -> str:
        return str(options.dataset)

    def criterion(self, problem: "Folds", options: argparse.Namespace) -> "Criterion":
        from recipes.common.training.graph_runs import criterion

        return criterion(options)

    def chance(self, problem: "Folds") -> "Chance":
        from recipes.common.data.chance import of_accuracy
        from recipes.common.data.graphs import labels_of

        labels = labels_of(problem.graphs)
        return of_accuracy(validation=labels, training=labels, test=labels)

    def facts(self, problem: "Folds", options: argparse.Namespace) -> dict[str, Any]:
        return {
            "dataset": problem.name,
            "classes": problem.classes,
            "graphs": len(problem.graphs),
            "folds": {"count": len(problem.folds), "published": problem.published},
        }

    def title(self, problem: "Folds", options: argparse.Namespace) -> str:
        search = ", search" if options.search else ""
        return f"graph classification, {problem.name}{search}"

    def notes(self, results: dict[str, Any], options: argparse.Namespace) -> list[str]:
        folds = results["folds"]
        kind = "published" if folds["published"] else "stratified, drawn by --data-seed"
        best, *others = super().notes(results, options)
        tests = "trains and tests on" if not options.search else "trains and tests within"
        told = f"seed s {tests} fold s modulo {folds['count']}; the folds are {kind}."
        if options.search:
            others.append("--search: a fifth of its training graphs is the test, its own is not.")
        return [best, told, *others]


RECIPE = GraphClassification()

if __name__ == "__main__":
    run_program(RECIPE.main)
