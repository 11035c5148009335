"""The table of all families of attention layers, and of the models that have them.

`convert` only knows the attention in these rows. A further family is one class of methods, a
subclass of `AttentionFamily`, and one row; `register_family` adds your own rows.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

import keras_graphattn.hub.decoders as decoders
import keras_graphattn.hub.encoders as encoders
import keras_graphattn.hub.gemma as gemma
import keras_graphattn.hub.stock as stock
import keras_graphattn.hub.vision as vision
from keras_graphattn.checks import did_you_mean, plain_name
from keras_graphattn.hub.converted import (
    AttentionFamily,
    ConvertedAttention,
    ConvertedGraphFilter,
    ConvertedPLaplacian,
    HeadSizes,
    Spelling,
    class_with,
    shown_as,
)
from keras_graphattn.keras_internals import subclasses_of
from keras_graphattn.layers.attentive_graph_filter import AttentiveGraphFilter
from keras_graphattn.layers.contra_norm import ContraNormAttention
from keras_graphattn.layers.conversion_mark import ConversionMark
from keras_graphattn.layers.graph_filter_attention import GraphFilterAttention
from keras_graphattn.layers.masked_kernel_attention import MaskedKernelAttention
from keras_graphattn.layers.p_laplacian_attention import PLaplacianAttention
from keras_graphattn.layers.scaled_high_frequency_attention import ScaledHighFrequencyAttention
from keras_graphattn.operators.softmax import Logits

__all__ = [
    "AttentionFamily",
    "ConvertedAttention",
    "ConvertedGraphFilter",
    "ConvertedPLaplacian",
    "HeadSizes",
    "Logits",
    "Row",
    "Spelling",
    "register_attention",
    "register_family",
    "view",
]

Config = dict[str, Any]
STOCK: dict[str, type] = {
    "graph_filter": GraphFilterAttention,
    "p_laplacian": PLaplacianAttention,
    "attentive_graph_filter": AttentiveGraphFilter,
    "masked_kernel": MaskedKernelAttention,
    "scaled_high_frequency": ScaledHighFrequencyAttention,
    "contra_norm": ContraNormAttention,
}
CACHED: dict[str, type] = {
    "graph_filter": stock.CachedGraphFilterAttention,
    "p_laplacian": stock.CachedPLaplacianAttention,
    "attentive_graph_filter": stock.CachedAttentiveGraphFilter,
    "masked_kernel": stock.CachedMaskedKernelAttention,
}
IN_PLACE: dict[str, type] = {
    "graph_filter": ConvertedGraphFilter,
    "p_laplacian": ConvertedPLaplacian,
}


@dataclass(frozen=True, eq=False)
class Row:
    """The attention classes of one family, and the classes that contain them.

    Names are separated by spaces.

    Attributes:
        family: The methods of a converted layer.
        classes: Names of the classes of attention.
        backbones: Names in `keras_hub.models` of the backbones that hold such layers.
        inner_layers: Names of layers inside of those backbones, which have no public names.
        layers: Names in `keras_hub.layers` of the layers that hold such layers.
        attentions: What can replace these layers, by name.
        has_cache: Whether the layers have caches that are stacked, if the family does not say so.
        cache_argument: The name of the argument of `call` that is the cache.
        class_beside: What tells the class of a layer without attention beside such layers, from
            that layer and the number of slots of their caches; `None` where it passes on no cache.
        module: How the names of the modules of the classes start.
        modules: Names of modules of inner layers that `import keras_hub` does not import.
        parent_configs: For each parent whose own `get_config` fails, by the name of its class, the
            function that tells its configuration.
    """

    family: type[AttentionFamily]
    classes: str
    backbones: str = ""
    inner_layers: str = ""
    layers: str = ""
    attentions: dict[str, type] = field(default_factory=IN_PLACE.copy)
    has_cache: bool = False
    cache_argument: str = "cache"
    class_beside: Callable[[keras.Layer, int], type | None] | None = None
    module: str = "keras_hub."
    modules: str = ""
    parent_configs: Mapping[str, Callable[[keras.Layer], Config]] = field(default_factory=dict)

    def replacement(self, attention: str) -> type:
        """The class for an attention; a `ValueError` where it has none."""
        if attention not in self.attentions:
            raise ValueError(
                f"attention={attention!r} cannot take the place of {self.named()}: no class is "
                "registered for it that has the projections and the call of this layer. Expected "
                f"one of {sorted(self.attentions)}. Register a class for it with "
                "keras_graphattn.hub.register_attention."
            )
        return self.attentions[attention]

    def named(self) -> str:
        """The names of the classes, for an error message."""
        return " or ".join(self.classes.split())


def constructor_config(layer: keras.Layer) -> Config:
    """The arguments of a layer's constructor, which are attributes of the same names.

    The `get_config` of some of KerasHub's layers fails, leaves arguments out or adds others
    (KerasHub 0.32). So models made of such layers could not be saved or cloned, or came back
    different.
    """
    config: Config = keras.Layer.get_config(layer)
    for name, parameter in inspect.signature(type(layer).__init__).parameters.items():
        if name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            config[name] = keras.saving.serialize_keras_object(getattr(layer, name))
    return config


def t5_gemma2_config(layer: keras.Layer) -> Config:
    """The arguments of a `T5Gemma2EncoderLayer`, including the factor of its rotation."""
    module = sys.modules["keras_hub.src.models.t5gemma2.t5gemma2_encoder"]
    config = module.T5Gemma2EncoderLayer.get_config(layer)
    return {**config, "rope_scaling_factor": layer.rope_scaling_factor}


def mit_config(block: keras.Layer) -> Config:
    """The arguments of a `HierarchicalTransformerEncoder`, whose `get_config` returns others."""
    return {
        **keras.Layer.get_config(block),
        "project_dim": block.project_dim,
        "num_heads": block.num_heads,
        "sr_ratio": block.attn.sr_ratio,
        "drop_prob": float(block.drop_prop),
        "layer_norm_epsilon": block.norm1.epsilon,
    }


def by_constructor(*names: str) -> dict[str, Callable[[keras.Layer], Config]]:
    """Parents with these names, whose configurations are the arguments of their constructors."""
    return dict.fromkeys(names, constructor_config)


FAMILIES: list[Row] = [
    Row(
        stock.StockAttention,
        "MultiHeadAttention",
        "BertBackbone RobertaBackbone XLMRobertaBackbone DistilBertBackbone ElectraBackbone "
        "AlbertBackbone BartBackbone ViTBackbone DeiTBackbone CLIPBackbone SigLIPBackbone "
        "DINOV2Backbone DepthAnythingBackbone MetaCLIP2Backbone PARSeqBackbone EdRecBackbone "
        "BLIP2Backbone",
        "ViTEncoder ViTEncoderBlock DeiTEncoder DeiTEncoderBlock CLIPVisionEncoder "
        "CLIPTextEncoder CLIPEncoderLayer SigLIPVisionEncoder SigLIPTextEncoder "
        "SigLIPEncoderLayer DINOV2Encoder DINOV2Layer DINOV2Attention MetaCLIP2VisionEncoder "
        "MetaCLIP2TextEncoder MetaCLIP2EncoderLayer BLIP2VisionEncoder BLIP2QFormer QFormerLayer "
        "QFormerAttention BLIP2CustomOPT BLIP2FlanT5 EdRecEncoderBlock",
        layers="TransformerEncoder",
        attentions=STOCK,
    ),
    Row(
        stock.StockAttention,
        "CachedMultiHeadAttention WhisperCachedMultiHeadAttention",
        "GPT2Backbone OPTBackbone WhisperBackbone",
        "WhisperEncoder WhisperDecoder EdRecDecoderBlock",
        layers="TransformerDecoder",
        attentions=CACHED,
        has_cache=True,
    ),
    Row(
        decoders.RotaryDecoder,
        "LlamaAttention",
        "LlamaBackbone Llama3Backbone",
        "LlamaTransformerDecoder",
        parent_configs=by_constructor("LlamaTransformerDecoder"),
    ),
    Row(
        decoders.RotaryDecoder,
        "CachedMistralAttention CachedMixtralAttention",
        "MistralBackbone MixtralBackbone",
        "MistralTransformerDecoder MixtralTransformerDecoder",
        parent_configs=by_constructor("MixtralTransformerDecoder"),
    ),
    Row(decoders.RotaryDecoder, "Phi3Attention", "Phi3Backbone", "Phi3Decoder"),
    Row(
        decoders.QwenDecoder,
        "QwenAttention QwenMoeAttention",
        "QwenBackbone QwenMoeBackbone",
        "QwenTransformerDecoder QwenMoeTransformerDecoder",
        parent_configs=by_constructor("QwenTransformerDecoder", "QwenMoeTransformerDecoder"),
    ),
    Row(
        decoders.Qwen3Decoder,
        "Qwen3Attention Qwen3MoeAttention",
        "Qwen3Backbone Qwen3MoeBackbone",
        "Qwen3TransformerDecoder Qwen3MoeTransformerDecoder",
        parent_configs=by_constructor("Qwen3TransformerDecoder"),
    ),
    Row(
        decoders.Qwen35Decoder,
        "Qwen3_5Attention",
        "Qwen3_5Backbone Qwen3_5MoeBackbone",
        "Qwen3_5TransformerDecoder Qwen3_5MoeTransformerDecoder",
        class_beside=decoders.recurrence_beside,
    ),
    Row(
        decoders.SmolLM3Decoder,
        "SmolLM3Attention",
        "SmolLM3Backbone",
        "SmolLM3DecoderLayer",
        cache_argument="self_attention_cache",
    ),
    Row(
        decoders.GPTNeoXDecoder,
        "GPTNeoXAttention",
        "GPTNeoXBackbone",
        "GPTNeoXDecoder",
        parent_configs=by_constructor("GPTNeoXDecoder"),
    ),
    Row(decoders.GptOssDecoder, "GptOssAttention", "GptOssBackbone", "GptOssTransformerDecoder"),
    Row(decoders.BloomDecoder, "BloomAttention", "BloomBackbone", "BloomDecoder"),
    Row(decoders.FalconDecoder, "FalconAttention", "FalconBackbone", "FalconTransformerDecoder"),
    Row(decoders.T5Attention, "T5MultiHeadAttention", "T5Backbone", "T5TransformerLayer"),
    Row(
        decoders.MoonshineAttention,
        "MoonshineMultiHeadAttention",
        "MoonshineBackbone",
        "MoonshineEncoderBlock MoonshineDecoderBlock",
    ),
    Row(
        gemma.GemmaAttention,
        "CachedGemmaAttention",
        "GemmaBackbone PaliGemmaBackbone",
        "GemmaDecoderBlock PaliGemmaDecoderBlock",
    ),
    Row(gemma.Gemma3Attention, "CachedGemma3Attention", "Gemma3Backbone", "Gemma3DecoderBlock"),
    Row(
        gemma.Gemma3nAttention,
        "Gemma3nTextAttention",
        "Gemma3nBackbone",
        "Gemma3nMultimodalEmbeddingProcessor Gemma3nTextModel Gemma3nTextDecoderBlock",
    ),
    Row(gemma.Gemma4Attention, "Gemma4TextAttention", "Gemma4Backbone", "Gemma4TextDecoderBlock"),
    Row(
        gemma.T5GemmaAttention,
        "T5GemmaAttention",
        "T5GemmaBackbone",
        "T5GemmaEncoderLayer T5GemmaDecoderLayer",
    ),
    Row(
        gemma.T5Gemma2Attention,
        "T5Gemma2Attention T5Gemma2MergedAttention",
        "T5Gemma2Backbone",
        "T5Gemma2EncoderLayer T5Gemma2DecoderLayer",
        parent_configs={"T5Gemma2EncoderLayer": t5_gemma2_config},
    ),
    Row(
        gemma.GemmaVisionAttention,
        "PaliGemmaVitAttention Gemma3VisionAttention",
        inner_layers="PaliGemmaVit PaliGemmaVitEncoder PaliGemmaVitEncoderBlock "
        "Gemma3VisionEncoder Gemma3VisionEncoderBlock Gemma3VisionEncoderLayer",
    ),
    Row(
        gemma.Gemma4VisionAttention,
        "Gemma4VisionAttention",
        inner_layers="Gemma4VisionEncoder Gemma4VisionEncoderBlock Gemma4VisionDecoderBlock",
    ),
    Row(
        encoders.DebertaAttention,
        "DisentangledSelfAttention",
        "DebertaV3Backbone",
        "DisentangledAttentionEncoder",
    ),
    Row(
        encoders.XLNetAttention,
        "TwoStreamRelativeAttention",
        "XLNetBackbone",
        "XLNetEncoder",
        parent_configs=by_constructor("XLNetEncoder"),
    ),
    Row(encoders.RoformerAttention, "RoformerAttention", "RoformerV2Backbone", "RoformerV2Encoder"),
    Row(encoders.EsmAttention, "EsmSelfAttention", "ESMBackbone", "ESMEncoder"),
    Row(
        vision.SwinAttention,
        "WindowAttention",
        "SwinTransformerBackbone",
        "SwinTransformerStage SwinTransformerBlock",
        module="keras_hub.src.models.swin_transformer.",
    ),
    Row(
        vision.ViTDetAttention,
        "MultiHeadAttentionWithRelativePE",
        "ViTDetBackbone SAMBackbone",
        "WindowedTransformerEncoder",
    ),
    Row(
        vision.Qwen35VisionAttention,
        "Qwen3_5VisionAttention",
        inner_layers="Qwen3_5VisionEncoder Qwen3_5VisionBlock",
        modules="keras_hub.src.models.qwen3_5.qwen3_5_vision_encoder",
    ),
    Row(vision.DinoAttention, "DINOV3Attention", "DINOV3Backbone", "DINOV3Encoder DINOV3Layer"),
    Row(
        vision.MiTAttention,
        "SegFormerMultiheadAttention",
        "MiTBackbone SegFormerBackbone",
        "HierarchicalTransformerEncoder",
        parent_configs={"HierarchicalTransformerEncoder": mit_config},
    ),
    Row(
        vision.DFineAttention,
        "DFineMultiheadAttention",
        "DFineBackbone",
        "DFineHybridEncoder DFineEncoder DFineEncoderLayer DFineDecoder DFineDecoderLayer",
    ),
    Row(
        vision.VideoPrismAttention,
        "VideoPrismAttention",
        "VideoPrismBackbone",
        "VideoPrismEncoder VideoPrismEncoderBlock",
        parent_configs=by_constructor("VideoPrismEncoderBlock"),
    ),
]


def register_family(
    family: type[AttentionFamily],
    classes: str,
    attentions: Mapping[str, type] | None = None,
    **places: Any,
) -> None:
    """Registers classes of attention layers for `convert`.

    What holds such layers is made known by `keras_graphattn.hub.reach`.

    Args:
        family: A subclass of `keras_graphattn.hub.families.AttentionFamily`.
        classes: The names of the classes, separated by spaces. Where two families have a name, the
            later one is asked.
        attentions: The classes that attend in a converted layer, by the name that `convert` takes;
            by default those for `"graph_filter"` and `"p_laplacian"`.
        **places: `has_cache`, `cache_argument`, `module` and `parent_configs`, where the layers
            decode with a cache, or share their name with others: see
            `keras_graphattn.hub.families.Row`.

    Raises:
        ValueError: For anything else.

    Example: a layer class `TinyAttention` that attends in its method `mix(query, key, value)`.

    >>> from keras_graphattn.hub.families import AttentionFamily, Spelling
    >>> class TinyFamily(AttentionFamily):
    ...     spelling = Spelling("query", "key", "value", "back", num_heads="heads", key_dim="size")
    ...     def mix(self, query, key, value):
    ...         return self.attend(query, key, value)
    >>> register_family(TinyFamily, "TinyAttention")
    """
    if not isinstance(family, type) or not issubclass(family, AttentionFamily):
        raise ValueError(
            "`family` must be a subclass of keras_graphattn.hub.families.AttentionFamily. "
            f"Received: family={family!r}"
        )
    if not isinstance(classes, str) or not classes.split():
        raise ValueError(f"`classes` must be names of classes. Received: classes={classes!r}")
    attentions = dict(IN_PLACE if attentions is None else attentions)
    for attention in attentions.values():
        family.check_replacement(attention, classes)
    FAMILIES.append(Row(family, classes, attentions=attentions, **{"module": "", **places}))


def rows_named(name: str) -> list[Row]:
    """The rows for classes of this name, the latest first."""
    return [row for row in reversed(FAMILIES) if name in row.classes.split()]


def row_of(layer: keras.Layer) -> Row | None:
    """The row of an attention layer, converted or not; `None` where it has none."""
    if hasattr(layer, "converted_from"):
        return layer.converted_from.row  # type: ignore[no-any-return]
    plain = type(layer)
    rows = (row for row in rows_named(plain.__name__) if row.family.has_class(plain, row.module))
    return next(rows, None)


def view(layer: keras.Layer) -> Any:
    """An attention layer with the methods of its family, converted or not.

    Raises:
        ValueError: For a layer of no family.

    Example:

    >>> layer = keras.layers.MultiHeadAttention(num_heads=2, key_dim=4)
    >>> view(layer).head_sizes()
    HeadSizes(num_heads=2, num_key_value_heads=2, key_dim=4, value_dim=4, scale=0.5)
    """
    if isinstance(layer, AttentionFamily):
        return layer
    row = row_of(layer)
    if row is None:
        raise ValueError(f"{type(layer).__name__} is no attention that `convert` knows.")
    classes: tuple[type, type] = (getattr(type(layer), "plain_class", type(layer)), row.family)
    return shown_as(layer, class_with(*classes))


def names_of(kind: str) -> list[str]:
    """The names in the rows under `"classes"`, `"backbones"`, `"layers"`, `"inner_layers"` ..."""
    return [name for row in FAMILIES for name in getattr(row, kind).split()]


def served_names() -> list[str]:
    """The names of the classes of attention layers in the rows."""
    return sorted(set(names_of("classes")))


def parent_config(plain: type, layer: keras.Layer) -> Config:
    """The configuration of a layer that contains attention: its own, or that of its row.

    `plain` is the class of the layer while it is not converted.
    """
    for row in reversed(FAMILIES):
        if plain.__name__ in row.parent_configs:
            return row.parent_configs[plain.__name__](layer)
    return plain.get_config(layer)  # type: ignore[attr-defined,no-any-return]


# Names in papers and in other libraries, written as `plain_name` writes them.
ALIASES = {
    **dict.fromkeys(("gfsa", "graphfilterattention"), "graph_filter"),
    **dict.fromkeys(("plat", "plaplacianattention"), "p_laplacian"),
    **dict.fromkeys(("agf", "attentivegraphfilterattention"), "attentive_graph_filter"),
    "maskedkernelattention": "masked_kernel",
    **dict.fromkeys(("contranorm", "contranormattention"), "contra_norm"),
    **dict.fromkeys(("attnscale", "scaledhighfrequencyattention"), "scaled_high_frequency"),
}
HINTS = {
    **dict.fromkeys(
        ("performer", "favor", "favor+"), 'Use attention="masked_kernel" with feature_map="favor".'
    ),
    **dict.fromkeys(
        ("gkat", "graphkernel", "graphkernelattention"),
        "GKAT needs the graph of the tokens: build the model with "
        'keras_graphattn.layers.GraphKernelAttention, or use attention="masked_kernel".',
    ),
    **dict.fromkeys(
        ("softmax", "multiheadattention"),
        "For the model's own attention call keras_graphattn.revert(model).",
    ),
}


def register_attention(attention: str, replaced: str, replacement: type) -> None:
    """Registers an attention for `convert`.

    Args:
        attention: The name that `convert` takes.
        replaced: Name of the class of layers that are replaced: one of a family that is known, such
            as `"MultiHeadAttention"` or `"LlamaAttention"`, or any subclass of
            `keras.layers.MultiHeadAttention`.
        replacement: The class that takes its place. For `keras.layers.MultiHeadAttention` and its
            subclasses, whose projections are kept: a subclass of this package's `AttentionLayer`
            that is called like the class it replaces. For other layers: a subclass of
            `keras_graphattn.hub.families.ConvertedAttention`.

    Raises:
        ValueError: For invalid names, for a class of no family, and for a replacement that does
            not fit.

    Example:

    >>> from keras_graphattn.hub.families import ConvertedGraphFilter
    >>> from keras_graphattn.layers import GraphFilterAttention
    >>> register_attention("graph_filter", "MultiHeadAttention", GraphFilterAttention)
    >>> register_attention("graph_filter", "LlamaAttention", ConvertedGraphFilter)
    """
    for name, value in (("attention", attention), ("replaced", replaced)):
        if not isinstance(value, str):
            raise ValueError(f"`{name}` must be a name. Received: {name}={value!r}")
    rows = rows_named(replaced)
    if rows:
        rows[0].family.check_replacement(replacement, rows[0].named())
        rows[0].attentions[attention] = replacement
        return
    classes = [cls for cls in subclasses_of(keras.Layer) if cls.__name__ == replaced]
    if classes and not any(issubclass(cls, keras.layers.MultiHeadAttention) for cls in classes):
        raise ValueError(
            "`replaced` must be the name of a class of a family that is known "
            f"({', '.join(served_names())}), or of a subclass of keras.layers.MultiHeadAttention. "
            f"Received: replaced={replaced!r}, which is {classes[0].__module__}.{replaced}. Write "
            "a family for it, and call keras_graphattn.hub.register_family first."
        )
    register_family(stock.StockAttention, replaced, {attention: replacement})


def attention_name(attention: object) -> str:
    """The name that an attention is registered under, from that name or from another one for it."""
    names = sorted({name for row in FAMILIES for name in row.attentions})
    if attention in names:
        return str(attention)
    simple = plain_name(attention) if isinstance(attention, str) else ""
    others = {**ALIASES, **{plain_name(name): name for name in names}}
    if simple in others:
        return others[simple]
    hint = f" {HINTS[simple]}" if simple in HINTS else did_you_mean(attention, others)
    raise ValueError(
        f"`attention` must be one of {names}. Received: attention={attention!r}.{hint}"
    )


def is_reached(layer: keras.Layer) -> bool:
    """Whether this layer can be converted to any attention."""
    return not is_ours(layer) and row_of(layer) is not None


def is_ours(layer: keras.Layer) -> bool:
    """Whether this is attention of this package, made by `convert` or not."""
    return isinstance(layer, ConversionMark)


def is_attention(layer: keras.Layer) -> bool:
    """Whether this is an attention layer, in which no other attention is searched for."""
    is_stock = isinstance(layer, keras.layers.MultiHeadAttention)
    return is_stock or is_ours(layer) or is_reached(layer)
