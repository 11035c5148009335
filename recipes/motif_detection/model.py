"""The classifier of graphs, and what a run trains: as for all graphs in three splits."""

from recipes.common.training.graph_runs import build
from recipes.common.training.graph_runs import training_of as prepare

__all__ = ["build", "prepare"]
