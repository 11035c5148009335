"""The adapter of KerasHub's `CachedMultiHeadAttention`: stock attention that decodes."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from keras_graphattn.hub.adapters.stock import StockAdapter
from keras_graphattn.hub.cached import (
    CachedAttentiveGraphFilter,
    CachedGraphFilterAttention,
    CachedPLaplacianAttention,
)
from keras_graphattn.hub.cached_kernel import CachedMaskedKernelAttention


class CachedAdapter(StockAdapter):
    """For `CachedMultiHeadAttention`, and for Whisper's own subclass of it."""

    classes: Sequence[str] = ("CachedMultiHeadAttention", "WhisperCachedMultiHeadAttention")
    backbones: Sequence[str] = ("GPT2Backbone", "OPTBackbone", "WhisperBackbone")
    layers: Sequence[str] = ("TransformerDecoder",)
    inner_layers: Sequence[str] = ("WhisperEncoder", "WhisperDecoder", "EdRecDecoderBlock")
    has_cache = True
    replacements: ClassVar[Mapping[str, type]] = {
        "graph_filter": CachedGraphFilterAttention,
        "p_laplacian": CachedPLaplacianAttention,
        "attentive_graph_filter": CachedAttentiveGraphFilter,
        "masked_kernel": CachedMaskedKernelAttention,
    }
