"""Graph attention in KerasHub, KerasNLP and KerasCV models: convert, inspect, revert."""

from keras_graphattn.hub.families import register_attention, register_family
from keras_graphattn.hub.reach import reach, reach_libraries
from keras_graphattn.hub.verbs import convert, inspect, revert

reach_libraries()

__all__ = ["convert", "inspect", "reach", "register_attention", "register_family", "revert"]
