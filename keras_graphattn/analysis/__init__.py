"""Tools to measure what attention does to tokens, and to draw masks."""

from keras_graphattn.analysis.mask_pictures import plot_mask
from keras_graphattn.analysis.non_finite import StopAtNonFiniteLoss
from keras_graphattn.analysis.similarity import token_similarity

__all__ = ["StopAtNonFiniteLoss", "plot_mask", "token_similarity"]
