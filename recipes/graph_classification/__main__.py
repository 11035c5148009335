"""`python -m recipes.graph_classification`: its options, what it reports.

Does not import Keras itself.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.common.attentions import Settings, label
from recipes.common.command.effects import Effect, Except
from recipes.common.command.options import GRAPH_ATTENTIONS, WITHOUT_STRUCTURE, add_published
from recipes.common.command.parsing import UsageError, at_least, run_program
from recipes.common.output.notes import absent_note, settings_note
from recipes.common.recipe import ClassifierOfGraphs

if TYPE_CHECKING:
    from recipes.graph_classification.data import Folds

MADE = "made"
PAPER, PROTOCOL = "arXiv 2107.07999", "arXiv 1912.09893"
PAPERS = f"{PAPER} and {PROTOCOL}"
FOLDS, TRAININGS = 10, 3  # of each fold
# The protocol of Errica et al., arXiv 1912.09893, and GKAT of Choromanski et al., arXiv 2107.07999.
# Where the first has ranges: their middle. Heads and walks: those of the second's other data.
PUBLISHED = {
    "seeds": list(range(FOLDS * TRAININGS)),  # seed s is fold s modulo 10
    "validation_fraction": 0.1,
    "choose_by": "accuracy",
    "epochs": 1000,
    "patience": 500,
    "batch_size": 32,
    "learning_rate": 1e-3,
    "ema": 0.0,
    "decay": False,
    "layers": 2,
    "heads": 8,
    "last_heads": 1,
    "key_dim": 8,
    "feed_forward": 128,
    "dropout": 0.0,
    "head_dropout": 0.0,
    "embedding": False,
    "skip": False,
    "normalise": False,
    "pooling": "sum",
    "graph_size": False,
    "linear_head": False,
    "relu_head": True,
    "walks": 50,
    "walk_length": 4,
    "degrees": False,
    "standardise": False,
    "released_form": False,
    "search": False,
}
# of GKAT there, in per cent
PUBLISHED_ACCURACIES = {
    "NCI1": 75.2,
    "PROTEINS": 75.8,
    "ENZYMES": 69.7,
    "IMDBBINARY": 71.4,
    "IMDBMULTI": 47.5,
}
# of a node in the protocol: tags; for ENZYMES attributes, too; for social networks the degree
FEATURES = {"NCI1": 37, "PROTEINS": 3, "ENZYMES": 21, "IMDBBINARY": 1, "IMDBMULTI": 1}
SOCIAL = ("IMDB", "REDDIT", "COLLAB")  # how the names of social networks begin


def published_name(dataset: str) -> str:
    """The name without the dash that it has in the archive: IMDB-BINARY, IMDBBINARY."""
    return dataset.replace("-", "")


def without_structure(dataset: str) -> str:
    """The protocol's baseline that sees no edge: another one for chemical data, but ENZYMES."""
    return WITHOUT_STRUCTURE[not dataset.startswith((*SOCIAL, "ENZYMES"))]


class GraphClassification(ClassifierOfGraphs):
    """Attention layers on a data set of graphs, fold by fold."""

    name = "graph_classification"
    description = (
        "Trains and compares attention layers on graphs with a class; writes a table, curves and "
        "the best model for serving."
    )
    attentions = (*GRAPH_ATTENTIONS, *WITHOUT_STRUCTURE)
    training = {"epochs": 100, "patience": None, "batch_size": 32, "learning_rate": 2e-3}
    training |= {"validation_fraction": 0.1, "ema": 0.0}
    sizes = {**ClassifierOfGraphs.sizes, "pooling": "sum", "head_dropout": 0.5}
    sizes |= {"relu_head": False}
    hints = {"patience": "all"}
    data_files = "the folder with NAME.txt or NAME_A.txt, or the one above it"
    open_in_paper = ("seeds",)  # the notes count the trainings
    effects = (
        Effect("graphs", dataset=(MADE,)),
        Effect("degrees", dataset=Except(MADE)),  # which have no other feature
        Effect("released_form", attention=("graph_kernel",)),
    )

    def add_options(self, add: Callable[..., Any]) -> None:
        add("--dataset", default=MADE, help="made, or the name of TU data in --data-dir")
        add("--data-dir", type=Path, help=self.data_files)
        add("--degrees", action="store_true", help="a node's degree is a feature beside its tag")
        what = "subtract the mean of each feature in the training graphs; divide by its spread"
        add("--standardise", action="store_true", help=what)
        form = "GKAT in the form of its authors' code for citations, without a projection behind it"
        add("--released-form", action="store_true", help=form)
        search = "test on a fifth of a fold's training graphs: to choose options by"
        add("--search", action="store_true", help=search)
        add("--graphs", type=at_least(60), help="how many graphs are made [300]")
        what = "the protocol and the models of the GKAT paper: three trainings of each of ten folds"
        add_published(add, what)

    def published(self, options: argparse.Namespace) -> dict[str, Any]:
        if not options.published:
            return {}
        if options.dataset == MADE:
            raise UsageError("--published is for TU data: give --dataset NAME and --data-dir")
        baselines = ["gcn", "gat", "gin", without_structure(options.dataset)]
        return {**PUBLISHED, "attention": [*baselines, "graph_kernel"]}

    def refuse(self, options: argparse.Namespace) -> None:
        if options.dataset == MADE and options.data_dir is not None:
            raise UsageError("--data-dir: the graphs of --dataset made are made, not read")

    def defaults(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"graphs": 300} if options.dataset == MADE else {}

    def attention_defaults(self, options: argparse.Namespace) -> dict[str, Settings]:
        defaults = super().attention_defaults(options)
        defaults["deep_multisets"] = {"units": options.feed_forward}  # as after the pooling
        if options.published:
            defaults["gin"] = {"normalise": True}  # as in arXiv 1810.00826
        if options.released_form:
            defaults["graph_kernel"] = {"value_dropout": options.dropout}
        return defaults

    def folder(self, options: argparse.Namespace) -> str:
        return options.dataset + ("-published" if options.published else "")

    def complete(self, problem: "Folds", options: argparse.Namespace) -> argparse.Namespace:
        return argparse.Namespace(**vars(options), features=problem.features)

    def deviations(self, options: argparse.Namespace) -> list[str]:
        changed = super().deviations(options)
        expected = FEATURES.get(published_name(options.dataset))
        features = getattr(options, "features", expected)  # known when the data are read
        if expected is not None and features != expected:
            changed.append(f"features of a node {features} (published: {expected})")
        return changed

    def facts(self, problem: "Folds", options: argparse.Namespace) -> dict[str, Any]:
        return {
            "dataset": problem.name,
            "classes": problem.classes,
            "graphs": len(problem.graphs),
            "features": problem.features,
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
        if options.published:
            others += self.published_notes(results, options)
        return [best, line, *others]

    def published_notes(self, results: dict[str, Any], options: argparse.Namespace) -> list[str]:
        """What differs from the papers, and the accuracy there."""
        accuracy = PUBLISHED_ACCURACIES.get(published_name(options.dataset))
        number = f"{PAPER} has no number for {options.dataset}."
        if accuracy is not None:
            number = f"{PAPER}: GKAT {accuracy / 100:.3f}, with options searched in each fold."
        whole = FOLDS * TRAININGS, FOLDS
        parts = [
            f"{label(row['attention'])} {row['seeds']} of {row['folds']}"
            for row in results["table"]
            if (row["seeds"], row["folds"]) != whole
        ]
        trained = f"trainings, {whole[0]} of {whole[1]} folds in the protocol: {', '.join(parts)}."
        return [
            number,
            settings_note(PAPERS, results["published"]["departures"]),
            *([trained] if parts else []),
            *absent_note(PROTOCOL, ("gin", *WITHOUT_STRUCTURE, "graph_kernel"), results),
        ]


RECIPE = GraphClassification()

if __name__ == "__main__":
    run_program(RECIPE.main)
