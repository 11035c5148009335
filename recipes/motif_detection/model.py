"""The classifier of graphs, and what a run trains: as for all graphs in three splits."""

from recipes.common.training.graphs import build, prepare

__all__ = ["build", "prepare"]
