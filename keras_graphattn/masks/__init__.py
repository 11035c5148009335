"""Masks of masked kernel attention: factors per pair of positions, applied without the matrix."""

from keras_graphattn.masks.chunked import Causal, Segments
from keras_graphattn.masks.entries import Entries
from keras_graphattn.masks.exponential import Exponential
from keras_graphattn.masks.low_rank import LowRank, StochasticPositions
from keras_graphattn.masks.mask import Mask
from keras_graphattn.masks.product import Product

__all__ = [
    "Causal",
    "Entries",
    "Exponential",
    "LowRank",
    "Mask",
    "Product",
    "Segments",
    "StochasticPositions",
]
