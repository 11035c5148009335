"""Masks for masked kernel attention: one factor per pair of positions, applied without a matrix.

A layer takes a mask as an object, `mask=Exponential(causal=True)`. A mask that needs no argument
can be given by its name, `mask="causal"`.

A new mask is one file in this folder and one line in `__all__`.
"""

from keras_graphattn.masks.chunked import Causal, Exponential, Segments
from keras_graphattn.masks.entries import Entries
from keras_graphattn.masks.gated_decay import GatedDecay
from keras_graphattn.masks.graphs.diffusion import GraphDiffusion
from keras_graphattn.masks.graphs.distances import DistanceTable
from keras_graphattn.masks.graphs.random_features import GraphRandomFeatures
from keras_graphattn.masks.graphs.walks import RandomWalk
from keras_graphattn.masks.hypercube import Hypercube
from keras_graphattn.masks.low_rank import ExponentialPositions, LowRank, StochasticPositions
from keras_graphattn.masks.mask import MASKS, Mask
from keras_graphattn.masks.mask import get as get
from keras_graphattn.masks.product import Product
from keras_graphattn.masks.toeplitz import BlockToeplitz, Toeplitz
from keras_graphattn.masks.trees.tree import Tree
from keras_graphattn.serialization import by_snake_case

__all__ = [
    "BlockToeplitz",
    "Causal",
    "DistanceTable",
    "Entries",
    "Exponential",
    "ExponentialPositions",
    "GatedDecay",
    "GraphDiffusion",
    "GraphRandomFeatures",
    "Hypercube",
    "LowRank",
    "Mask",
    "Product",
    "RandomWalk",
    "Segments",
    "StochasticPositions",
    "Toeplitz",
    "Tree",
]

MASKS |= by_snake_case(globals()[name] for name in __all__ if name != "Mask")
