"""Graph-filter and sub-quadratic masked attention for Keras 3, on any backend."""

from keras_graphattn import layers, ops
from keras_graphattn.version import __version__

__all__ = ["__version__", "layers", "ops"]
