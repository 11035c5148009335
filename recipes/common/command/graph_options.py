"""The attentions and the options that the recipes on graphs share. Imports no Keras."""

import argparse
import os
from pathlib import Path

from recipes.common.command.parsing import at_least

ATTENTIONS = ("softmax", "gfsa", "gcn", "gat", "graph_kernel", "graph_masked_kernel")
BY_DEFAULT = tuple(name for name in ATTENTIONS if name != "gfsa")


def add_graph_options(parser: argparse._ActionsContainer, *, skip: bool = True) -> None:
    """Adds what the models of graphs have, and how their walks are drawn and kept.

    Args:
        parser: The parser or group.
        skip: Whether the model can leave out what is added to each attention.
    """
    add = parser.add_argument
    if skip:
        add(
            "--skip",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="add a dense layer of the nodes to what each attention finds",
        )
    add("--walks", type=at_least(1), default=20, help="walks from each node")
    add("--walk-length", type=at_least(1), default=4, help="nodes of a walk, its start among them")
    add("--data-seed", type=at_least(0), default=0, help="seed of walks, and of data that is made")
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "keras_graphattn"
    add("--cache-dir", type=Path, default=cache, help="where walks and distances are kept")
