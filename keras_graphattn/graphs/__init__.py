"""Graphs as data: one type for a graph, readers, batches for the layers, precomputation.

A graph here is undirected, with positive edge weights, as the masks of `keras_graphattn.masks` read
it. All of it is NumPy and scipy; only `GraphBatches` uses Keras.
"""

from keras_graphattn.graphs.batches import GraphBatches
from keras_graphattn.graphs.graph import Graph
from keras_graphattn.graphs.planetoid import PlanetoidData, read_planetoid
from keras_graphattn.graphs.precomputation import precompute
from keras_graphattn.graphs.tu import TUData, read_tu

__all__ = [
    "Graph",
    "GraphBatches",
    "PlanetoidData",
    "TUData",
    "precompute",
    "read_planetoid",
    "read_tu",
]
