"""The classifier of graphs, and the training of one run."""

from recipes.common.training.graphs import build, prepare

__all__ = ["build", "prepare"]
