"""The adapter of `keras.layers.MultiHeadAttention`.

A new layer of this package takes the projections of the old one as they are: the very same
sublayers with their variables, paths, quantisation and LoRA factors. No weight is copied, so
there are never two sets of them. Then the two exchange their bodies: the layer in the model stays
the same object and has the new class, and the other one keeps what it was for `revert`. A layer
that is not built is replaced by the new one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras

from keras_graphattn.coefficient_rate import FINE_TUNING_MULTIPLIER, NAME
from keras_graphattn.hub.adapters.adapter import AttentionAdapter, Shell, Sizes
from keras_graphattn.keras_internals import (
    exchange,
    replace_sublayer,
    scale_of,
    scope_of,
)
from keras_graphattn.layers.attentive_graph_filter import AttentiveGraphFilter
from keras_graphattn.layers.base import AttentionLayer, input_shapes, projections_of
from keras_graphattn.layers.graph_filter_attention import GraphFilterAttention
from keras_graphattn.layers.masked_kernel_attention import MaskedKernelAttention
from keras_graphattn.layers.p_laplacian_attention import PLaplacianAttention

DECODERS = ("TransformerDecoder", "EdRecDecoderBlock")  # parents that mask causally by themselves


class StockAdapter(AttentionAdapter):
    """For `keras.layers.MultiHeadAttention`, and for subclasses with its projections.

    Args:
        classes: Names of the classes, where they are others.
        attentions: The classes that take their place, by the name of the attention.
    """

    classes: Sequence[str] = ("MultiHeadAttention",)
    backbones: Sequence[str] = (
        *("BertBackbone", "RobertaBackbone", "XLMRobertaBackbone", "DistilBertBackbone"),
        *("ElectraBackbone", "AlbertBackbone", "BartBackbone", "ViTBackbone", "DeiTBackbone"),
        *("CLIPBackbone", "SigLIPBackbone", "DINOV2Backbone", "DepthAnythingBackbone"),
        *("MetaCLIP2Backbone", "PARSeqBackbone", "EdRecBackbone", "BLIP2Backbone"),
    )
    layers: Sequence[str] = ("TransformerEncoder",)
    inner_layers: Sequence[str] = (
        *("ViTEncoder", "ViTEncoderBlock", "DeiTEncoder", "DeiTEncoderBlock"),
        *("CLIPVisionEncoder", "CLIPTextEncoder", "CLIPEncoderLayer"),
        *("SigLIPVisionEncoder", "SigLIPTextEncoder", "SigLIPEncoderLayer"),
        *("DINOV2Encoder", "DINOV2Layer", "DINOV2Attention"),
        *("MetaCLIP2VisionEncoder", "MetaCLIP2TextEncoder", "MetaCLIP2EncoderLayer"),
        *("BLIP2VisionEncoder", "BLIP2QFormer", "QFormerLayer", "QFormerAttention"),
        *("BLIP2CustomOPT", "BLIP2FlanT5", "EdRecEncoderBlock"),
    )
    replacements: ClassVar[Mapping[str, type]] = {
        "graph_filter": GraphFilterAttention,
        "p_laplacian": PLaplacianAttention,
        "attentive_graph_filter": AttentiveGraphFilter,
        "masked_kernel": MaskedKernelAttention,
    }

    def __init__(
        self, classes: Sequence[str] | None = None, attentions: Mapping[str, type] | None = None
    ) -> None:
        super().__init__()
        if classes is not None:
            self.classes = tuple(classes)
            self.backbones = self.layers = self.inner_layers = ()
            self.attentions = dict(attentions or {})

    def fits(self, cls: type) -> bool:
        return issubclass(cls, keras.layers.MultiHeadAttention)

    def check_replacement(self, replacement: Any) -> None:
        if not isinstance(replacement, type) or not issubclass(replacement, AttentionLayer):
            raise ValueError(
                "`replacement` must be a class of layers like those of keras_graphattn.layers. "
                f"Received: replacement={replacement!r}"
            )

    def sizes(self, layer: Any) -> Sizes:
        return Sizes(
            num_heads=layer.num_heads,
            key_dim=layer.key_dim,
            value_dim=layer.value_dim,
            scale=scale_of(layer),
            dropout=layer.dropout,
        )

    def projections(self, layer: Any) -> dict[str, Any]:
        return projections_of(layer)

    def is_causal(self, parent: Any, layer: Any) -> bool:
        if any(base.__name__ in DECODERS for base in type(parent).__mro__):
            return True
        return bool(getattr(parent, "use_causal_mask", False))

    def prepared(self, site: Any, request: Any) -> Any:
        """The new layer, built if the one that is there is."""
        source = site.layer
        new = self._unbuilt(site, request)
        if source.built:
            with scope_of(source):
                new.build_around(source)
            has_lora = any(
                getattr(p, "lora_enabled", False) for p in projections_of(source).values()
            )
            if not source.trainable and not has_lora:
                new.trainable = False
        new.converted_from = Shell(self, request)
        return new

    def _unbuilt(self, site: Any, request: Any) -> Any:
        source = site.layer
        new_class: Any = self.replacement(request.attention)
        config = keras.layers.MultiHeadAttention.get_config(source)  # not a subclass's own
        config.update(dtype=source.dtype_policy, trainable=True)
        config[NAME] = FINE_TUNING_MULTIPLIER
        if config.get("attention_axes") in (None, (1,), [1]):
            config["attention_axes"] = None
        if issubclass(new_class, AttentiveGraphFilter):
            config["causal"] = self.is_causal(site.parent, source)
        return new_class(**{**config, **request.own_options()})

    def put(self, site: Any, prepared: Any) -> None:
        layer = site.layer
        if not layer.built:
            prepared.converted_from = Shell(self, prepared.converted_from.request, layer)
            replace_sublayer(site.parent, site.attribute, prepared)
            return
        exchange(layer, prepared)
        layer.converted_from = Shell(self, layer.converted_from.request, prepared)

    def revert(self, site: Any) -> None:
        """Makes the layer the one that it was, with the projections as they are now."""
        layer, source = site.layer, site.layer.converted_from.layer
        if source.built:
            exchange(layer, source)
            return
        if layer.built:
            found = projections_of(layer)
            with scope_of(layer):
                source.build(*input_shapes(found))
            for name, projection in projections_of(source).items():
                for old, now in zip(projection.weights, found[name].weights, strict=True):
                    old.assign(now)
        replace_sublayer(site.parent, site.attribute, source)
