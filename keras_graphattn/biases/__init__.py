"""Biases: numbers that softmax attention adds to its scores, for each pair of positions and head.

A layer takes a bias as an object, `bias=RelativePositions()`. A bias that needs no argument can be
given by its name, `bias="alibi"`. A matrix that exists already comes with the call, as
`attention_bias`.

A new bias is one class in this folder and one line in `__all__`.
"""

from keras_graphattn.biases.bias import BIASES, Bias, LogMask, Sum
from keras_graphattn.biases.bias import get as get
from keras_graphattn.biases.graphs import EdgePath, HopDecay, ShortestPath, WalkProbabilities
from keras_graphattn.biases.positions import Alibi, RelativePositions
from keras_graphattn.serialization import by_snake_case

__all__ = [
    "Alibi",
    "Bias",
    "EdgePath",
    "HopDecay",
    "LogMask",
    "RelativePositions",
    "ShortestPath",
    "Sum",
    "WalkProbabilities",
]

BIASES |= by_snake_case(globals()[name] for name in __all__ if name != "Bias")
