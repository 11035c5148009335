"""The classifier of graphs, and the training of one run: each seed has its fold."""

from recipes.common.attentions import Trial
from recipes.common.training import graphs
from recipes.common.training.graphs import build
from recipes.common.training.runs import Training
from recipes.graph_classification.data import fold

__all__ = ["build", "prepare"]


def prepare(trial: Trial) -> Training:
    """The compiled model and the batches of one attention with one seed, on the seed's fold."""
    options = trial.options
    part = fold(trial.problem, trial.seed, options)
    return graphs.prepare(trial._replace(problem=part))
