"""Masks of masked kernel attention: factors per pair of positions, applied without the matrix."""

from keras_graphattn.masks.causal import Causal
from keras_graphattn.masks.mask import Mask

__all__ = ["Causal", "Mask"]
