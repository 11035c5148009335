"""Exports trained models from any backend for TensorFlow Serving."""

from keras_graphattn.export.saved_model import export_saved_model

__all__ = ["export_saved_model"]
