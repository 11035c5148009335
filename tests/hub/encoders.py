"""Tiny encoders whose attention has a class of its own: rotary embedding, positions, soft cap."""

import functools

import keras_hub
import numpy as np

from tests.hub.models import IMAGE, LENGTH, VOCABULARY, WIDTHS, attentions_of, random_inputs
from tests.numerics import BACKEND

models = keras_hub.models
SPAN = 6  # of DeBERTa's buckets: tokens farther than half of it share them
LONGEST = 12
TEXT = {"vocabulary_size": VOCABULARY, "dropout": 0.0, **WIDTHS}
FRAMES = 3
SOFT_CAP = 2.0


video_prism = functools.partial(
    models.VideoPrismBackbone,
    **{name: WIDTHS[name] for name in ("num_heads", "hidden_dim", "intermediate_dim")},
    **{f"num_{kind}_layers": 1 for kind in ("spatial", "temporal", "auxiliary")},
    **{"num_frames": FRAMES, "patch_size": 4, "image_shape": IMAGE},
    attention_logit_soft_cap=SOFT_CAP,
)
esm = functools.partial(models.ESMBackbone, **TEXT)
ENCODERS = {
    "roformer_v2": functools.partial(models.RoformerV2Backbone, **TEXT, head_size=4),
    "esm": functools.partial(esm, use_pre_layer_norm=True),
    "esm_absolute": functools.partial(
        esm, position_embedding_type="absolute", max_sequence_length=LONGEST
    ),
    "deberta_v3": functools.partial(
        models.DebertaV3Backbone, **TEXT, bucket_size=SPAN, max_sequence_length=LONGEST
    ),
    "video_prism": functools.partial(video_prism, attention_logit_soft_cap=None),
    "video_prism_with_texts": functools.partial(
        video_prism, num_text_layers=1, vocabulary_size=VOCABULARY
    ),
    "xlnet": functools.partial(models.XLNetBackbone, **TEXT),
}
PLAIN = ("roformer_v2", "esm", "esm_absolute", "video_prism")  # A is a softmax of the scores
# On these backends, the original hides everything from padding, and padding from nobody.
SEES_PADDING = ("roformer_v2", "esm", "esm_absolute") if BACKEND != "torch" else ()


def inputs_of(backbone, length=LENGTH, real=(LENGTH - 2, LENGTH)):
    """Inputs by name; token 0 is padding, and segments differ."""
    inputs = random_inputs(backbone, length, real=list(real))
    for name, array in inputs.items():
        if name == "token_ids":
            inputs[name] = np.where(array == 1, 0, array)
        elif name == "segment_ids":
            inputs[name] = np.random.default_rng(2).integers(0, 2, array.shape)
    return inputs


class Case:
    """How to call one attention layer of a family: tokens (B, T, 8), and what goes with them."""

    def __init__(self, name, length=LENGTH):
        self.name = name
        self.length = length
        generator = np.random.default_rng(5)
        self.x = generator.standard_normal((3, length, 8)).astype("float32")
        self.real = np.arange(length)[None] < np.array([length, length - 2, length])[:, None]
        self.real[2, :2] = False  # padding on the left
        self.segments = generator.integers(0, 2, (3, length))
        shapes = {
            "deberta_v3": {"rel_embeddings": (3, 2 * SPAN, 8)},
            "xlnet": {
                "relative_position_encoding": (3, 2 * length, 8),
                "content_attention_bias": (2, 4),
                "positional_attention_bias": (2, 4),
                "segment_attention_bias": (2, 4),
                "segment_encoding": (2, 2, 4),
            },
        }
        self.given = {
            argument: generator.standard_normal(shape).astype("float32")
            for argument, shape in shapes.get(name, {}).items()
        }

    @property
    def mask(self):
        """The tokens that each token sees, (B, T, T)."""
        mask = np.repeat(self.real[:, None], self.length, axis=1)
        if self.name == "video_prism_with_texts":
            return mask & np.tril(np.ones((self.length, self.length), bool))
        if self.name == "xlnet":
            return mask | np.eye(self.length, dtype=bool)
        return np.ones_like(mask) if self.name in SEES_PADDING else mask

    def layer(self, backbone):
        """The last attention: of VideoPrism with texts, that of the texts."""
        return attentions_of(backbone)[-1]

    def arguments(self):
        if self.name == "xlnet":
            other = self.segments[:, :, None] != self.segments[:, None]
            return {"content_attention_mask": self.mask, "segment_matrix": other}
        if self.name == "video_prism_with_texts":
            return {"attention_mask": self.mask}
        if self.name in ("deberta_v3", "video_prism"):
            return {"attention_mask": self.real[:, None]}
        return {"attention_mask": self.real}

    def call(self, layer, x=None, given=None, **further):
        x = self.x if x is None else x
        given = self.given if given is None else given
        tokens = (x, x) if "video_prism" in self.name else (x,)
        found = layer(*tokens, **given, **self.arguments(), **further)
        return found[0] if isinstance(found, tuple) else found
