"""`python -m recipes.motif_detection`: its options, what it reports.

Imports no Keras by itself.
"""

import argparse
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
from recipes.common.command.parsing import Parser, at_least
from recipes.common.command.program import run_program
from recipes.common.recipe import Recipe

if TYPE_CHECKING:
    from recipes.common.data.chance import Chance
    from recipes.common.data.graphs import GraphProblem
    from recipes.common.training.resume import Criterion

TASKS = ("caveman", "circle", "grid", "ladder", "circular_ladder", "induced_cycle")


class MotifDetection(Recipe):
    """Attention layers that are to find a motif in random graphs."""

    name = "motif_detection"
    description = (
        "Trains and compares attention layers that tell graphs with a motif from graphs without; "
        "writes a table, curves and the best model for serving."
    )
    attentions = ATTENTIONS

    def add_options(self, parser: Parser) -> None:
        add = parser.add_argument
        add("--task", choices=TASKS, default="caveman", help="the motif, or long cycles in trees")
        add("--train-examples", type=at_least(2), default=1024, help="graphs, an even number")
        add(
            "--evaluation-examples",
            type=at_least(2),
            default=512,
            help="graphs to validate on, and as many to test on; an even number",
        )
        add_run_options(parser, self.attentions, BY_DEFAULT, "motif_detection/<task>")
        training = {"epochs": 20, "patience": None, "batch_size": 32, "learning_rate": 5e-3}
        training |= {"precision": "float32", "ema": 0.0}
        add_shared(parser.add_argument_group("training"), training, {"patience": "all"})
        model = parser.add_argument_group("model")
        sizes = {"layers": 2, "heads": 8, "key_dim": 4, "feed_forward": 32, "dropout": 0.0}
        add_shared(model, sizes)
        add_graph_options(model, normalise=True)
        add_classifier_options(model, pooling="mean", head_dropout=0.0)
        add_attention_options(parser.add_argument_group("attentions"), self.attentions)

    def refuse(self, options: argparse.Namespace) -> None:
        refuse_classifier_options(options)

    def folder(self, options: argparse.Namespace) -> str:
        return str(options.task)

    def criterion(self, problem: "GraphProblem", options: argparse.Namespace) -> "Criterion":
        from recipes.common.training.graph_runs import criterion

        return criterion(options)

    def chance(self, problem: "GraphProblem") -> "Chance":
        from recipes.common.data.chance import of_accuracy
        from recipes.common.data.graphs import labels_of

        return of_accuracy(**{name: labels_of(one) for name, one in problem.splits.items()})

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
