"""Models on several devices: layouts of weights, and sequences split over a mesh."""

from keras_graphattn.distribution.layout import check_layout_map, layout_map
from keras_graphattn.distribution.placement import distribute
from keras_graphattn.distribution.sequence import SequenceParallel

__all__ = ["SequenceParallel", "check_layout_map", "distribute", "layout_map"]
