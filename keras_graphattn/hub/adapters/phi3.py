"""The adapter of Phi-3's attention."""

from collections.abc import Sequence

from keras_graphattn.hub.adapters.rotary import RotaryAdapter


class Phi3Adapter(RotaryAdapter):
    """For `Phi3Attention`, with the plain rotary embedding or with `"su"`.

    `"su"` has two lists of factors: one for sequences up to the length of pretraining, and one for
    longer ones. The original chooses by the position of the last token of a call. So when it
    decodes beyond the length of pretraining, it rotates some tokens otherwise than in a full pass.
    A converted layer does the same.
    """

    classes: Sequence[str] = ("Phi3Attention",)
    backbones: Sequence[str] = ("Phi3Backbone",)
    inner_layers: Sequence[str] = ("Phi3Decoder",)
