"""`python -m recipes.motif_detection`: its options, what it reports.

Does not import Keras itself.
"""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from recipes.common.command.parsing import at_least, run_program
from recipes.common.recipe import ClassifierOfGraphs

if TYPE_CHECKING:
    from recipes.common.data.graphs import GraphProblem

TASKS = ("caveman", "circle", "grid", "ladder", "circular_ladder", "induced_cycle")


class MotifDetection(ClassifierOfGraphs):
    """Attention layers that detect a motif in random graphs."""

    name = "motif_detection"
    description = (
        "Trains and compares attention layers that tell graphs with a motif from graphs without; "
        "writes a table, curves and the best model for serving."
    )
    results = "<task>"
    training = {"epochs": 20, "patience": None, "batch_size": 32, "learning_rate": 5e-3, "ema": 0.0}
    sizes = {**ClassifierOfGraphs.sizes, "pooling": "mean", "head_dropout": 0.0}
    hints = {"patience": "all"}

    def add_options(self, add: Callable[..., Any]) -> None:
        add("--task", choices=TASKS, default="caveman", help="the motif, or long cycles in trees")
        add("--train-examples", type=at_least(2), default=1024, help="graphs, an even number")
        add(
            "--evaluation-examples",
            type=at_least(2),
            default=512,
            help="graphs to validate on, and as many to test on; an even number",
        )

    def facts(self, problem: "GraphProblem", options: argparse.Namespace) -> dict[str, Any]:
        return {
            "task": problem.task,
            "classes": problem.classes,
            "graphs": {name: len(graphs) for name, graphs in problem.splits.items()},
            "nodes": problem.sizes()[-1],
        }

    def title(self, problem: "GraphProblem", options: argparse.Namespace) -> str:
        return f"motif detection, {problem.task}"


RECIPE = MotifDetection()

if __name__ == "__main__":
    run_program(RECIPE.main)
