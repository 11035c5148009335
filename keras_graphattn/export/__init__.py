"""Exports trained models: a SavedModel from any backend, and checks for Keras' other formats."""

from keras_graphattn.export.formats import check_export
from keras_graphattn.export.saved_model import export_saved_model

__all__ = ["check_export", "export_saved_model"]
