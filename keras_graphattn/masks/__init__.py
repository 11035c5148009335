"""Masks of masked kernel attention: factors per pair of positions, applied without the matrix."""

from keras_graphattn.masks.chunked import Causal, Segments
from keras_graphattn.masks.exponential import Exponential
from keras_graphattn.masks.mask import Mask

__all__ = ["Causal", "Exponential", "Mask", "Segments"]
