"""The attentions and the options that the recipes on graphs share. Imports no Keras."""

import argparse
import os
from pathlib import Path

from recipes.common.command.parsing import UsageError, at_least, number_in

ATTENTIONS = ("softmax", "gfsa", "gcn", "gat", "graph_kernel", "graph_masked_kernel")
BY_DEFAULT = tuple(name for name in ATTENTIONS if name != "gfsa")


def add_graph_options(
    parser: argparse._ActionsContainer,
    *,
    layer_options: bool = True,
    embedding: bool = True,
    skip: bool = True,
    normalise: bool = False,
) -> None:
    """Adds what the models of graphs have, and how their walks are drawn and kept.

    Args:
        parser: The parser or group.
        layer_options: Whether there are options of what is around each attention: `--embedding`,
            `--skip` and `--normalise`.
        embedding: Default of `--embedding`.
        skip: Default of `--skip`.
        normalise: Default of `--normalise`.
    """
    add = parser.add_argument
    if layer_options:
        add(
            "--embedding",
            action=argparse.BooleanOptionalAction,
            default=embedding,
            help="a dense layer brings the features to the width of the model first",
        )
        add(
            "--skip",
            action=argparse.BooleanOptionalAction,
            default=skip,
            help="add a dense layer of the nodes to what each attention finds",
        )
        add(
            "--normalise",
            action=argparse.BooleanOptionalAction,
            default=normalise,
            help="normalise what each layer finds over a batch",
        )
    add("--walks", type=at_least(1), default=20, help="walks from each node")
    add("--walk-length", type=at_least(1), default=4, help="nodes of a walk, its start among them")
    add("--data-seed", type=at_least(0), default=0, help="seed of walks, and of data that is made")
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "keras_graphattn"
    add("--cache-dir", type=Path, default=cache, help="where walks and distances are kept")


def add_classifier_options(
    parser: argparse._ActionsContainer, *, pooling: str, head_dropout: float
) -> None:
    """Adds what classifiers of whole graphs have beside `add_graph_options`, with its defaults."""
    add = parser.add_argument
    add("--pooling", choices=("mean", "sum", "max"), default=pooling, help="of a graph's nodes")
    add(
        "--head-dropout",
        type=number_in(0.0, 1.0),
        default=head_dropout,
        help="share of a graph's numbers dropped in training, before the last layer",
    )
    add(
        "--choose-by",
        choices=("accuracy", "cross_entropy", "last_epoch"),
        default="accuracy",
        help="what chooses the epoch: one of two metrics on validation data, of which the other "
        "one decides between equals; last_epoch takes the last one",
    )
    add(
        "--graph-size",
        action="store_true",
        help="log(1 + n) of a graph of n nodes stands beside its pooled nodes",
    )
    add("--buckets", type=at_least(1), default=4, help="numbers of nodes to pad to")
    add("--decay", action="store_true", help="the learning rate falls linearly to 0")


def refuse_classifier_options(options: argparse.Namespace) -> None:
    """Raises `UsageError` for `--patience` where the last epoch is chosen."""
    if options.choose_by == "last_epoch" and options.patience is not None:
        raise UsageError("--patience: with --choose-by last_epoch all epochs are trained")
