"""`python -m recipes.graph_classification`: its options, what it reports.

Does not import Keras itself.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.common.command.parsing import UsageError, at_least, run_program
from recipes.common.recipe import ClassifierOfGraphs

if TYPE_CHECKING:
    from recipes.graph_classification.data import Folds

MADE = "made"


class GraphClassification(ClassifierOfGraphs):
    """Attention layers on a data set of graphs, fold by fold."""

    name = "graph_classification"
    description = (
        "Trains and compares attention layers on graphs with a class; writes a table, curves and "
        "the best model for serving."
    )
    training = {"epochs": 100, "patience": None, "batch_size": 32, "learning_rate": 2e-3}
    training |= {"validation_fraction": 0.1, "ema": 0.0}
    sizes = {**ClassifierOfGraphs.sizes, "pooling": "sum", "head_dropout": 0.5}
    hints = {"patience": "all"}
    data_files = "the folder with NAME.txt or NAME_A.txt, or the one above it"

    def add_options(self, add: Callable[..., Any]) -> None:
        add("--dataset", default=MADE, help="made, or the name of TU data in --data-dir")
        add("--data-dir", type=Path, help=self.data_files)
        add("--degrees", action="store_true", help="a node's degree is a feature beside its tag")
        search = "test on a fifth of a fold's training graphs: to choose options by"
        add("--search", action="store_true", help=search)
        add("--graphs", type=at_least(60), help="how many graphs are made [300]")

    def refuse(self, options: argparse.Namespace) -> None:
        super().refuse(options)
        if options.dataset == MADE and options.data_dir is not None:
            raise UsageError("--data-dir: the graphs of --dataset made are made, not read")
        if options.dataset != MADE and options.graphs is not None:
            raise UsageError("--graphs: only the graphs of --dataset made are made")
        if options.dataset == MADE and options.degrees:
            raise UsageError("--degrees: the graphs of --dataset made have no other feature")

    def defaults(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"graphs": 300} if options.dataset == MADE else {}

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
        line = f"seed s {tests} fold s modulo {folds['count']}; the folds are {kind}."
        if options.search:
            others.append("--search: a fifth of its training graphs is the test, its own is not.")
        return [best, line, *others]


RECIPE = GraphClassification()

if __name__ == "__main__":
    run_program(RECIPE.main)
