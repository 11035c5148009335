"""What attention does to tokens, measured."""

from keras_graphattn.analysis.similarity import token_similarity

__all__ = ["token_similarity"]
