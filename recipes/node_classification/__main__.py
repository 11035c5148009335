"""`python -m recipes.node_classification`: its options, the published settings, what it reports.

Does not import Keras itself.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.common.command.options import GRAPH_ATTENTIONS, WALKS
from recipes.common.command.parsing import UsageError, number_in, run_program
from recipes.common.recipe import Recipe

if TYPE_CHECKING:
    from recipes.node_classification.data import NodeProblem

KARATE = "karate"


class NodeClassification(Recipe):
    """Attention layers on the nodes of one graph."""

    name = "node_classification"
    description = (
        "Trains and compares attention layers that classify the nodes of a graph; writes a table, "
        "curves and the best model for serving."
    )
    attentions = GRAPH_ATTENTIONS
    by_default = ("softmax", "gcn", "gat", "graph_kernel", "graph_masked_kernel")
    training = {"epochs": 200, "patience": 100, "batch_size": 1, "learning_rate": 5e-3}
    sizes = {"layers": 2, "heads": 8, "key_dim": 8, "dropout": 0.6}
    sizes |= {"embedding": False, "skip": False, "normalise": False, **WALKS}
    data_files = "the folder with ind.NAME.x and the other Planetoid files"

    def add_options(self, add: Callable[..., Any]) -> None:
        add("--dataset", default=KARATE, help="karate, or the name of Planetoid files: cora")
        add("--data-dir", type=Path, help=self.data_files)
        penalty = {"type": number_in(0.0, 1.0), "help": "on the squares of all weight matrices"}
        add("--penalty", default=2e-3, **penalty)

    def refuse(self, options: argparse.Namespace) -> None:
        if options.dataset == KARATE and options.data_dir is not None:
            raise UsageError("--data-dir: --dataset karate needs no files")
        if options.batch_size != 1:
            raise UsageError(f"--batch-size must be 1, for one graph; it is {options.batch_size}")

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
