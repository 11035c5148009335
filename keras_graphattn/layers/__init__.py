"""Attention layers, each a one-line replacement for `keras.layers.MultiHeadAttention`.

`ContraNorm` normalises tokens, and the pooling layers turn a graph's nodes into one vector. One
file for each public layer, and one for the pooling layers. `base.py` has the call of all attention.
"""

from keras_graphattn.layers.attentive_graph_filter import AttentiveGraphFilter
from keras_graphattn.layers.contra_norm import ContraNorm, ContraNormAttention
from keras_graphattn.layers.differential_attention import DifferentialAttention
from keras_graphattn.layers.edge_attention import EdgeAttention
from keras_graphattn.layers.gated_delta_rule import GatedDeltaRule
from keras_graphattn.layers.graph_filter_attention import GraphFilterAttention
from keras_graphattn.layers.graph_kernel_attention import GraphKernelAttention
from keras_graphattn.layers.graph_pooling import GraphMaxPooling, GraphMeanPooling, GraphSumPooling
from keras_graphattn.layers.masked_kernel_attention import MaskedKernelAttention
from keras_graphattn.layers.p_laplacian_attention import PLaplacianAttention
from keras_graphattn.layers.scaled_high_frequency_attention import ScaledHighFrequencyAttention

__all__ = [
    "AttentiveGraphFilter",
    "ContraNorm",
    "ContraNormAttention",
    "DifferentialAttention",
    "EdgeAttention",
    "GatedDeltaRule",
    "GraphFilterAttention",
    "GraphKernelAttention",
    "GraphMaxPooling",
    "GraphMeanPooling",
    "GraphSumPooling",
    "MaskedKernelAttention",
    "PLaplacianAttention",
    "ScaledHighFrequencyAttention",
]
