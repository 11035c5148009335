"""Graph attention in KerasHub, KerasNLP and KerasCV models: convert, inspect, revert."""

from keras_graphattn.hub.adapters import register_adapter
from keras_graphattn.hub.arrival import when_imported
from keras_graphattn.hub.attentions import register_attention
from keras_graphattn.hub.reach import reach, reach_keras_cv, reach_keras_hub
from keras_graphattn.hub.verbs import convert, inspect, revert

# Presets and `.keras` files name the registered subclasses: they must exist once KerasHub does.
when_imported("keras_hub", reach_keras_hub)
when_imported("keras_cv", reach_keras_cv)

__all__ = ["convert", "inspect", "reach", "register_adapter", "register_attention", "revert"]
