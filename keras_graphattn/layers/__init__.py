"""Attention layers, each a one-line replacement of `keras.layers.MultiHeadAttention`."""

from keras_graphattn.layers.anti_smoothing import ContraNorm, ScaledHighFrequencyAttention
from keras_graphattn.layers.attentive_graph_filter import AttentiveGraphFilter
from keras_graphattn.layers.graph_filter_attention import GraphFilterAttention
from keras_graphattn.layers.graph_kernel_attention import GraphKernelAttention
from keras_graphattn.layers.masked_kernel_attention import MaskedKernelAttention
from keras_graphattn.layers.p_laplacian_attention import PLaplacianAttention

__all__ = [
    "AttentiveGraphFilter",
    "ContraNorm",
    "GraphFilterAttention",
    "GraphKernelAttention",
    "MaskedKernelAttention",
    "PLaplacianAttention",
    "ScaledHighFrequencyAttention",
]
