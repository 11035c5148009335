"""Attention layers, each a one-line replacement of `keras.layers.MultiHeadAttention`."""

from keras_graphattn.layers.anti_smoothing import ContraNorm, ScaledHighFrequencyAttention
from keras_graphattn.layers.attentive_graph_filter import AttentiveGraphFilter
from keras_graphattn.layers.graph_filter_attention import GraphFilterAttention

__all__ = [
    "AttentiveGraphFilter",
    "ContraNorm",
    "GraphFilterAttention",
    "ScaledHighFrequencyAttention",
]
