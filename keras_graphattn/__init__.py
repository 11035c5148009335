"""Graph-filter and sub-quadratic masked attention for Keras 3 on TensorFlow, JAX and torch."""

import keras_graphattn.ops  # noqa: F401  # first: it shows formulas that masks hold
from keras_graphattn import (
    analysis,
    biases,
    distribution,
    feature_maps,
    filters,
    graphs,
    hub,
    layers,
    masks,
    operators,
    ops,
    optimizers,
)
from keras_graphattn.distribution import layout_map
from keras_graphattn.export import check_export, export_saved_model
from keras_graphattn.hub import convert, inspect, revert
from keras_graphattn.layers import *  # noqa: F403
from keras_graphattn.version import __version__

__all__ = [
    "__version__",
    "analysis",
    "biases",
    "check_export",
    "convert",
    "distribution",
    "export_saved_model",
    "feature_maps",
    "filters",
    "graphs",
    "hub",
    "inspect",
    "layers",
    "layout_map",
    "masks",
    "operators",
    "ops",
    "optimizers",
    "revert",
]
__all__ += layers.__all__
