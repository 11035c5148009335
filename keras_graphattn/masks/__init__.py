"""Masks for masked kernel attention: one factor per pair of positions, applied without a matrix."""

from keras_graphattn.masks.block_toeplitz import BlockToeplitz
from keras_graphattn.masks.chunked import Causal, Segments
from keras_graphattn.masks.entries import Entries
from keras_graphattn.masks.exponential import Exponential
from keras_graphattn.masks.graph_diffusion import GraphDiffusion
from keras_graphattn.masks.graph_random_features import GraphRandomFeatures
from keras_graphattn.masks.hypercube import Hypercube
from keras_graphattn.masks.low_rank import LowRank, StochasticPositions
from keras_graphattn.masks.mask import Mask
from keras_graphattn.masks.product import Product
from keras_graphattn.masks.random_walk import RandomWalk
from keras_graphattn.masks.toeplitz import Toeplitz
from keras_graphattn.masks.tree import Tree

__all__ = [
    "BlockToeplitz",
    "Causal",
    "Entries",
    "Exponential",
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
