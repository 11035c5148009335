"""Masks for masked kernel attention: one factor per pair of positions, applied without a matrix.

A layer takes a mask as an object, `mask=Exponential(causal=True)`. A mask that needs no argument
can be given by its name, `mask="causal"`.

A new mask is one file in this folder and one line in `MASKS`.
"""

from typing import Any

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
from keras_graphattn.serialization import resolve

MASKS: dict[str, type[Mask]] = {
    "block_toeplitz": BlockToeplitz,
    "causal": Causal,
    "entries": Entries,
    "exponential": Exponential,
    "graph_diffusion": GraphDiffusion,
    "graph_random_features": GraphRandomFeatures,
    "hypercube": Hypercube,
    "low_rank": LowRank,
    "product": Product,
    "random_walk": RandomWalk,
    "segments": Segments,
    "stochastic_positions": StochasticPositions,
    "toeplitz": Toeplitz,
    "tree": Tree,
}


def get(mask: Any) -> Mask:
    """The mask for a layer's argument `mask`.

    Args:
        mask: A `Mask`, its configuration, or a name from `MASKS` of one that needs no argument.

    Raises:
        ValueError: For other values.

    Example:

    >>> type(get("causal")).__name__
    'Causal'
    """
    if hasattr(mask, "shape"):
        raise ValueError(
            f"`mask` must be a mask of keras_graphattn.masks. Received: a {type(mask).__name__} of "
            f"shape {tuple(mask.shape)}. For a matrix of factors, make the layer with "
            'mask="entries" and call it with mask_inputs={"entries": matrix}. For booleans that '
            "hide pairs, call the layer with attention_mask=matrix."
        )
    return resolve("mask", mask, Mask, MASKS)


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
