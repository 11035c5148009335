"""All adapters: one file each, and one entry in the list below."""

from collections.abc import Sequence
from typing import Any

from keras_graphattn.hub.adapters.adapter import AttentionAdapter, Sizes
from keras_graphattn.hub.adapters.bloom import BloomAdapter
from keras_graphattn.hub.adapters.cached import CachedAdapter
from keras_graphattn.hub.adapters.d_fine import DFineAdapter
from keras_graphattn.hub.adapters.deberta import DisentangledAdapter
from keras_graphattn.hub.adapters.decoder import DecoderAdapter
from keras_graphattn.hub.adapters.dinov3 import DINOV3Adapter
from keras_graphattn.hub.adapters.encoder import EncoderAdapter
from keras_graphattn.hub.adapters.esm import EsmAdapter
from keras_graphattn.hub.adapters.falcon import FalconAdapter
from keras_graphattn.hub.adapters.gemma import GemmaAdapter
from keras_graphattn.hub.adapters.gemma3 import Gemma3Adapter
from keras_graphattn.hub.adapters.gemma3n import Gemma3nAdapter
from keras_graphattn.hub.adapters.gemma4 import Gemma4Adapter
from keras_graphattn.hub.adapters.gemma4_vision import Gemma4VisionAdapter
from keras_graphattn.hub.adapters.gemma_vision import GemmaVisionAdapter
from keras_graphattn.hub.adapters.gpt_neo_x import GPTNeoXAdapter
from keras_graphattn.hub.adapters.gpt_oss import GptOssAdapter
from keras_graphattn.hub.adapters.in_place import InPlaceAdapter
from keras_graphattn.hub.adapters.llama import LlamaAdapter
from keras_graphattn.hub.adapters.mistral import MistralAdapter
from keras_graphattn.hub.adapters.mit import MiTAdapter
from keras_graphattn.hub.adapters.moonshine import MoonshineAdapter
from keras_graphattn.hub.adapters.phi3 import Phi3Adapter
from keras_graphattn.hub.adapters.qwen import QwenAdapter
from keras_graphattn.hub.adapters.qwen3 import Qwen3Adapter
from keras_graphattn.hub.adapters.qwen3_5 import Qwen3_5Adapter
from keras_graphattn.hub.adapters.qwen3_5_vision import Qwen3_5VisionAdapter
from keras_graphattn.hub.adapters.roformer import RoformerAdapter
from keras_graphattn.hub.adapters.rotary import RotaryAdapter
from keras_graphattn.hub.adapters.smollm3 import SmolLM3Adapter
from keras_graphattn.hub.adapters.stock import StockAdapter
from keras_graphattn.hub.adapters.swin import SwinAdapter
from keras_graphattn.hub.adapters.t5 import T5Adapter
from keras_graphattn.hub.adapters.t5_gemma import T5GemmaAdapter
from keras_graphattn.hub.adapters.t5_gemma2 import T5Gemma2Adapter
from keras_graphattn.hub.adapters.video_prism import VideoPrismAdapter
from keras_graphattn.hub.adapters.vit_det import ViTDetAdapter
from keras_graphattn.hub.adapters.xlnet import XLNetAdapter
from keras_graphattn.hub.converted import ConvertedAttention
from keras_graphattn.hub.converted_filter import ConvertedGraphFilter
from keras_graphattn.hub.converted_p_laplacian import ConvertedPLaplacian
from keras_graphattn.hub.logits import Logits

ADAPTERS: list[AttentionAdapter] = [
    StockAdapter(),
    CachedAdapter(),
    LlamaAdapter(),
    MistralAdapter(),
    QwenAdapter(),
    Qwen3Adapter(),
    Qwen3_5Adapter(),
    Phi3Adapter(),
    SmolLM3Adapter(),
    GemmaAdapter(),
    Gemma3Adapter(),
    Gemma3nAdapter(),
    Gemma4Adapter(),
    GPTNeoXAdapter(),
    GptOssAdapter(),
    BloomAdapter(),
    FalconAdapter(),
    RoformerAdapter(),
    EsmAdapter(),
    DisentangledAdapter(),
    VideoPrismAdapter(),
    XLNetAdapter(),
    T5Adapter(),
    T5GemmaAdapter(),
    T5Gemma2Adapter(),
    MoonshineAdapter(),
    SwinAdapter(),
    DINOV3Adapter(),
    ViTDetAdapter(),
    MiTAdapter(),
    DFineAdapter(),
    GemmaVisionAdapter(),
    Gemma4VisionAdapter(),
    Qwen3_5VisionAdapter(),
]


def register_adapter(adapter: AttentionAdapter) -> None:
    """Makes a class of attention layers known to `convert`.

    What holds such layers is made known by `keras_graphattn.hub.reach`.

    Args:
        adapter: An instance of a subclass of `AttentionAdapter`, in most cases of
            `InPlaceAdapter`. Where two adapters serve a layer, the later one is asked.

    Raises:
        ValueError: For anything else.

    Example: a layer class `TinyAttention` that attends in its method `mix(query, key, value)`.

    >>> from keras_graphattn.hub.adapters import InPlaceAdapter
    >>> class TinyHook:
    ...     def mix(self, query, key, value):
    ...         return self.attend(query, key, value)
    >>> class TinyAdapter(InPlaceAdapter):
    ...     classes = ("TinyAttention",)
    ...     hook = TinyHook
    ...     def sizes(self, layer):
    ...         return Sizes(layer.heads, layer.size, layer.scale)
    ...     def projections(self, layer):
    ...         return {"query": layer.query, "key": layer.key, "value": layer.value}
    ...     def is_causal(self, parent, layer):
    ...         return False
    >>> register_adapter(TinyAdapter())
    """
    if not isinstance(adapter, AttentionAdapter):
        raise ValueError(
            "`adapter` must be an instance of a subclass of "
            f"keras_graphattn.hub.adapters.AttentionAdapter. Received: adapter={adapter!r}"
        )
    ADAPTERS.append(adapter)


def adapter_of(layer: Any) -> AttentionAdapter | None:
    """The adapter of an attention layer, converted or not; `None` where none serves it."""
    shell = getattr(layer, "converted_from", None)
    if shell is not None:
        found: AttentionAdapter = shell.adapter
        return found
    return next((adapter for adapter in reversed(ADAPTERS) if adapter.serves(layer)), None)


def adapters_named(name: str) -> Sequence[AttentionAdapter]:
    """The adapters for classes of this name, the latest first."""
    return [adapter for adapter in reversed(ADAPTERS) if name in adapter.classes]


def served_names() -> list[str]:
    """The names of the classes of attention layers that some adapter serves."""
    return sorted({name for adapter in ADAPTERS for name in adapter.classes})


def holder_config(plain: Any, layer: Any) -> dict[str, Any]:
    """The configuration of a layer that holds attention: its own, or what an adapter tells.

    Args:
        plain: The class of the layer while it is not converted.
        layer: The layer.
    """
    for adapter in reversed(ADAPTERS):
        if plain.__name__ in adapter.holder_configs:
            return adapter.holder_configs[plain.__name__](layer)
    config: dict[str, Any] = plain.get_config(layer)
    return config


__all__ = [
    "ADAPTERS",
    "AttentionAdapter",
    "CachedAdapter",
    "ConvertedAttention",
    "ConvertedGraphFilter",
    "ConvertedPLaplacian",
    "DecoderAdapter",
    "EncoderAdapter",
    "InPlaceAdapter",
    "LlamaAdapter",
    "Logits",
    "MistralAdapter",
    "Phi3Adapter",
    "Qwen3Adapter",
    "QwenAdapter",
    "RotaryAdapter",
    "Sizes",
    "SmolLM3Adapter",
    "StockAdapter",
    "adapter_of",
    "adapters_named",
    "holder_config",
    "register_adapter",
    "served_names",
]
