"""`python -m recipes.node_classification`: its options, the published settings, what it reports.

Does not import Keras itself.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.common.attentions import Settings, label
from recipes.common.command.checks import check_published
from recipes.common.command.effects import Effect
from recipes.common.command.options import GRAPH_ATTENTIONS, OF_WALKS, WALKS, add_published
from recipes.common.command.parsing import UsageError, number_in, run_program
from recipes.common.output.notes import absent_note, settings_note
from recipes.common.recipe import Recipe
from recipes.common.training.records import ACCURACY, BOTH, Criterion

if TYPE_CHECKING:
    from recipes.node_classification.data import NodeProblem

KARATE = "karate"
PAPER = "arXiv 2107.07999"
# Choromanski et al., arXiv 2107.07999: its experiments with citations, whose protocol is that of
# Velickovic et al., arXiv 1710.10903
PUBLISHED = {
    "attention": ["gat", "graph_kernel"],
    "epochs": 1000,  # 100,000 in the released code, where patience ends the training
    "patience": 100,
    "choose_by": BOTH,
    "learning_rate": 5e-3,
    "penalty": 5e-4,
    "penalise_biases": True,
    "layers": 2,
    "heads": 8,
    "key_dim": 8,
    "dropout": 0.6,
    "coefficient_dropout": 0.6,
    "embedding": False,
    "skip": False,
    "normalise": False,
    "head": False,
    "walks": 100,
    "walk_length": 4,
}
CONVOLUTION_UNITS = 16  # Kipf and Welling, arXiv 1609.02907, Section 5.2
REPORTED = ("gat", "graph_kernel", "dynamic_graph_kernel")
# test accuracies by data set and attention, with the paper
GAT = "arXiv 1710.10903"
PUBLISHED_ACCURACIES = {
    "cora": {"gat": (0.830, GAT)},
    "citeseer": {
        "gat": (0.725, GAT),
        "graph_kernel": (0.730, PAPER),
        "dynamic_graph_kernel": (0.733, PAPER),
    },
}


class NodeClassification(Recipe):
    """Attention layers on the nodes of one graph."""

    name = "node_classification"
    description = (
        "Trains and compares attention layers that classify the nodes of a graph; writes a table, "
        "curves and the best model for serving."
    )
    attentions = (*GRAPH_ATTENTIONS, "dynamic_graph_kernel")
    by_default = ("softmax", "gcn", "gat", "graph_kernel", "graph_masked_kernel")
    training = {"epochs": 200, "patience": 100, "batch_size": 1, "learning_rate": 5e-3}
    sizes = {"layers": 2, "heads": 8, "key_dim": 8, "dropout": 0.6}
    sizes |= {"embedding": False, "skip": False, "normalise": False, **WALKS}
    data_files = "the folder with ind.NAME.x and the other Planetoid files"
    effects = (Effect("data_seed", attention=OF_WALKS),)

    def add_options(self, add: Callable[..., Any]) -> None:
        add("--dataset", default=KARATE, help="karate, or the name of Planetoid files: cora")
        add("--data-dir", type=Path, help=self.data_files)
        penalty = {"type": number_in(0.0, 1.0), "help": "on the squares of all weight matrices"}
        add("--penalty", default=2e-3, **penalty)
        biases = "of biases, too"
        add("--penalise-biases", action=argparse.BooleanOptionalAction, default=False, help=biases)
        add(
            "--head",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="a dense layer after the last attention; without it, the last attention has one "
            "head as wide as the number of classes",
        )
        add(
            "--choose-by",
            choices=(ACCURACY.name, BOTH),
            default=ACCURACY.name,
            help="what chooses the epoch on validation data: the accuracy; or the last epoch in "
            "which accuracy and cross-entropy are both as good as in all before, and patience "
            "counts from the last one in which either is",
        )
        add_published(add, "the paper's models and training for --dataset cora or citeseer")

    def published(self, options: argparse.Namespace) -> dict[str, Any]:
        if not options.published:
            return {}
        check_published("dataset", options.dataset, PUBLISHED_ACCURACIES)
        return PUBLISHED

    def refuse(self, options: argparse.Namespace) -> None:
        if options.dataset == KARATE and options.data_dir is not None:
            raise UsageError("--data-dir: --dataset karate needs no files")
        if options.batch_size != 1:
            raise UsageError(f"--batch-size must be 1, for one graph; it is {options.batch_size}")

    def folder(self, options: argparse.Namespace) -> str:
        return options.dataset + ("-published" if options.published else "")

    def attention_defaults(self, options: argparse.Namespace) -> dict[str, Settings]:
        defaults = super().attention_defaults(options)
        if options.published:
            defaults["gcn"] = {"units": CONVOLUTION_UNITS}
            # the released form; the walks join a quarter of Cora's pairs of nodes
            released = {"value_dropout": options.dropout, "dense": options.dataset == "cora"}
            defaults["graph_kernel"] = released
        return defaults

    def criterion(self, problem: "NodeProblem", options: argparse.Namespace) -> Criterion:
        return ACCURACY._replace(choose_by=options.choose_by)

    def notes(self, results: dict[str, Any], options: argparse.Namespace) -> list[str]:
        notes = super().notes(results, options)
        if options.published:
            reported = PUBLISHED_ACCURACIES[options.dataset]
            for attention, (accuracy, paper) in reported.items():
                notes.append(f"{paper}: {label(attention)} {accuracy:.3f}.")
            notes.append(settings_note(PAPER, results["published"]["departures"]))
            notes += absent_note(PAPER, REPORTED, results)
            cut = sum(run["epochs"] >= options.epochs for run in results["runs"])
            if cut:
                notes.append(f"{cut} of the runs ended at the limit of {options.epochs} epochs.")
        return notes

    def facts(self, problem: "NodeProblem", options: argparse.Namespace) -> dict[str, Any]:
        return {
            "dataset": problem.name,
            "classes": problem.classes,
            "graph": {"nodes": problem.graph.num_nodes, "edges": len(problem.graph.edges)},
            "nodes": {part: len(nodes) for part, nodes in problem.parts.items()},
        }

    def title(self, problem: "NodeProblem", options: argparse.Namespace) -> str:
        return f"node classification, {problem.name}"


RECIPE = NodeClassification()

if __name__ == "__main__":
    run_program(RECIPE.main)
