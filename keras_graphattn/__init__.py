"""Graph-filter and sub-quadratic masked attention for Keras 3, on any backend."""

from keras_graphattn import analysis, hub, layers, masks, ops
from keras_graphattn.export import export_saved_model
from keras_graphattn.hub import convert, inspect, revert
from keras_graphattn.version import __version__

__all__ = [
    "__version__",
    "analysis",
    "convert",
    "export_saved_model",
    "hub",
    "inspect",
    "layers",
    "masks",
    "ops",
    "revert",
]
