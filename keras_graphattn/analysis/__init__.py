"""Tools to measure what attention does to tokens, and to draw masks."""

from keras_graphattn.analysis.pictures import plot_mask
from keras_graphattn.analysis.smoothing.inspection import inspect_smoothing
from keras_graphattn.analysis.smoothing.logger import SmoothingLogger
from keras_graphattn.analysis.smoothing.measures import (
    first_order_error,
    frequency_parts,
    homophily,
    p_laplacian_energy,
    token_similarity,
)
from keras_graphattn.analysis.smoothing.report import (
    HeadMeasures,
    LayerReport,
    SmoothingReport,
    TokenMeasures,
    plot_attention_maps,
    plot_powers,
    plot_responses,
    plot_similarity,
)

__all__ = [
    "HeadMeasures",
    "LayerReport",
    "SmoothingLogger",
    "SmoothingReport",
    "TokenMeasures",
    "first_order_error",
    "frequency_parts",
    "homophily",
    "inspect_smoothing",
    "p_laplacian_energy",
    "plot_attention_maps",
    "plot_mask",
    "plot_powers",
    "plot_responses",
    "plot_similarity",
    "token_similarity",
]
