"""The backbones that `convert` reaches, each as a tiny random one with inputs of its kind."""

import functools

import keras
import keras_hub
import numpy as np

from keras_graphattn.hub.families import view
from keras_graphattn.hub.slots import attention_slots
from tests.numerics import BACKEND, to_numpy

VOCABULARY = 30
LENGTH = 7
WIDTHS = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
IMAGE = (8, 8, 3)
models = keras_hub.models


def made(kind, *settings, **options):
    """A decoder of two layers; later settings override earlier ones."""
    merged = {"vocabulary_size": VOCABULARY, "num_layers": 2, "intermediate_dim": 16}
    for each in (*settings, options):
        merged |= each
    return kind(**merged)


def text(kind, **options):
    lengths = {"vocabulary_size": VOCABULARY, "max_sequence_length": 24}
    return kind(**{**lengths, **WIDTHS, **options})


def two_towers(kind, length=24, **options):
    """CLIP, MetaCLIP 2 or SigLIP."""
    vision = {**WIDTHS, "patch_size": 4, "image_shape": IMAGE, "name": "vision_encoder"}
    words = {"vocabulary_size": VOCABULARY, "embedding_dim": 8, "name": "text_encoder"}
    return getattr(models, f"{kind}Backbone")(
        getattr(models, f"{kind}VisionEncoder")(**vision),
        getattr(models, f"{kind}TextEncoder")(**words, **WIDTHS, max_sequence_length=length),
        **options,
    )


vit = functools.partial(
    models.ViTBackbone,
    **{name: WIDTHS[name] for name in ("num_layers", "num_heads", "hidden_dim")},
    **{"image_shape": IMAGE, "patch_size": (4, 4), "mlp_dim": 16},
)


def dinov2():
    backbone = models.DINOV2Backbone(
        patch_size=4, image_shape=IMAGE, position_embedding_shape=IMAGE, **WIDTHS
    )
    # Saving and loading interpolates its position embeddings, which moves them once they trained.
    backbone.get_layer("embeddings").trainable = False
    return backbone


bart = functools.partial(
    text, models.BartBackbone, max_sequence_length=72, num_heads=4, hidden_dim=16
)
whisper = functools.partial(
    models.WhisperBackbone,
    **{"vocabulary_size": VOCABULARY, "num_mels": 4, **WIDTHS},
    **{"max_encoder_sequence_length": 6, "max_decoder_sequence_length": 72},
)
HEADS = {"num_query_heads": 4, "num_key_value_heads": 2, "hidden_dim": 16}
BACKBONES = {
    "bert": functools.partial(text, models.BertBackbone),
    "roberta": functools.partial(text, models.RobertaBackbone),
    "xlm_roberta": functools.partial(text, models.XLMRobertaBackbone),
    "distil_bert": functools.partial(text, models.DistilBertBackbone),
    "electra": lambda: models.ElectraBackbone(
        vocab_size=VOCABULARY, embedding_dim=8, max_sequence_length=24, **WIDTHS
    ),
    "albert": functools.partial(
        text, models.AlbertBackbone, embedding_dim=8, num_inner_repetitions=2
    ),
    "bart": bart,
    "vit": vit,
    "deit": lambda: models.DeiTBackbone(image_shape=IMAGE, patch_size=(4, 4), **WIDTHS),
    "clip": functools.partial(two_towers, "CLIP", projection_dim=8),
    "siglip": functools.partial(two_towers, "SigLIP", LENGTH),
    "dinov2": dinov2,
    "gpt2": functools.partial(text, models.GPT2Backbone),
    "opt": functools.partial(text, models.OPTBackbone),
    "whisper": whisper,
    "llama": functools.partial(made, models.LlamaBackbone, HEADS),
    "llama3": functools.partial(
        made,
        models.Llama3Backbone,
        HEADS,
        rope_frequency_adjustment_factor=8.0,
        rope_low_freq_factor=1.0,
        rope_high_freq_factor=4.0,
        rope_pretraining_sequence_length=16,
    ),
}
MASKED = [name for name in BACKBONES if name not in ("vit", "deit", "clip", "siglip", "dinov2")]


# DINOv2 keeps two of the first, one interpolated from the other. The others are the frequencies of
# a rotation, and statistics.
FIXED = ("position_embeddings", "inv_freq", "moving_")


def randomised(model, seed=0, size=0.4, keeps_start=False):
    """The model with weights that are large enough that attention is not uniform.

    They are the same on all backends: matrices are random, norms and biases near their start.
    The noise is of a `size`, which may be a function of the weight.
    """
    generator = np.random.default_rng(seed)
    for variable in model.weights:
        if any(name in variable.path for name in FIXED):
            continue
        shape = tuple(variable.shape)
        is_new = (len(shape) > 1 or "sinks" in variable.path) and not keeps_start
        start = 0.0 if is_new else to_numpy(variable)
        noise = (size(variable) if callable(size) else size) * generator.standard_normal(shape)
        variable.assign((start + noise).astype("float32"))
    return model


def by_fan_in(variable):
    """The size of a weight's noise."""
    shape = tuple(variable.shape)
    return (np.prod(shape[:-1]) if len(shape) > 2 else 6.0) ** -0.5


def random_backbone(name):
    return randomised(BACKBONES[name](), size=0.3, keeps_start=True)


def moved(model):
    """The model with the coefficients of its filters away from their start."""
    generator = np.random.default_rng(3)
    for variable in model.weights:
        if "coefficient" in variable.path or "theta" in variable.path:
            variable.assign(generator.uniform(-0.5, 0.5, tuple(variable.shape)))
    return model


def attentions_of(model):
    """The attention layers that can be converted, or are."""
    layers = [slot.layer for slot in attention_slots(model)]
    return [layer for layer in layers if view(layer).refusal_reason() is None]


def random_inputs(backbone, length=LENGTH, batch=2, real=None, seed=1):
    """Inputs by name: tokens of `length`, of which the first `real` are not padding."""
    generator = np.random.default_rng(seed)
    real = np.array([length - 2, length] if real is None else real)[:, None]
    mask = np.arange(length)[None] < real
    inputs = {}
    for name, tensor in wanted_by(backbone).items():
        shape = tensor.shape
        if "mask" in name:
            inputs[name] = mask.astype("int32")
        elif name == "position_ids":
            inputs[name] = np.tile(np.arange(length, dtype="int32"), (batch, 1))
        elif "segment" in name:
            inputs[name] = np.zeros((batch, length), "int32")
        elif "token" in name:
            inputs[name] = np.where(mask, generator.integers(2, VOCABULARY, mask.shape), 1)
        else:
            shape = (batch, *(6 if size is None else size for size in shape[1:]))
            inputs[name] = generator.standard_normal(shape).astype("float32")
    return inputs


def wanted_by(model):
    """The symbolic inputs of a model by name."""
    if isinstance(model.input, list):
        return {tensor.name: tensor for tensor in model.input}
    return model.input if isinstance(model.input, dict) else {"images": model.input}


def as_given(model, inputs):
    """Inputs by name in the structure that a model takes; positions are added where they lack.

    A tuple is the arguments of a layer.
    """
    if isinstance(inputs, tuple):
        return inputs
    wanted = wanted_by(model)
    if "position_ids" in wanted and "position_ids" not in inputs:
        batch, length = inputs["token_ids"].shape
        inputs = {**inputs, "position_ids": np.tile(np.arange(length, dtype="int32"), (batch, 1))}
    if isinstance(model.input, list):
        return [inputs[name] for name in wanted]
    return inputs if isinstance(model.input, dict) else inputs["images"]


def outputs(model, inputs):
    """All outputs as one list of arrays, those of padded positions zeroed."""
    given, is_layer = as_given(model, inputs), isinstance(inputs, tuple)
    # SAM's task has a way of its own to be compiled.
    if BACKEND == "jax" and not is_layer and not isinstance(model, models.SAMImageSegmenter):
        found = model.predict_on_batch(given)
    else:
        found = model(*given) if is_layer else model(given, training=False)
    arrays = [
        np.asarray(keras.ops.convert_to_numpy(x), "float64") for x in keras.tree.flatten(found)
    ]
    masks = [] if is_layer else [inputs[name] for name in inputs if name.endswith("padding_mask")]
    for index, array in enumerate(arrays):
        if masks and array.ndim == 3 and array.shape[1] == masks[0].shape[1]:
            arrays[index] = array * masks[0][:, :, None]
    return arrays


def assert_equal_outputs(actual, expected, tolerance=1e-6):
    """Equal up to `tolerance` of the largest entry (float32 rounding grows with the entries)."""
    assert len(actual) == len(expected)
    for new, old in zip(actual, expected, strict=True):
        assert np.isfinite(new).all()
        np.testing.assert_allclose(new, old, rtol=0, atol=tolerance * max(1.0, np.abs(old).max()))


def with_head(backbone):
    """A model with one number out of all of the backbone's outputs, to take a step of `fit`."""
    scores = [
        keras.ops.mean(keras.layers.Reshape((-1,))(output[..., :1]), axis=-1, keepdims=True)
        for output in keras.tree.flatten(backbone.output)
    ]
    return keras.Model(backbone.input, sum(scores))


def fit_one_step(backbone, inputs):
    inputs = as_given(backbone, inputs)
    model = with_head(backbone)
    model.compile("adam", "mse", run_eagerly=BACKEND != "jax", jit_compile=BACKEND == "jax")
    model.fit(inputs, np.array([[3.0], [-3.0]]), batch_size=2, epochs=1, verbose=0)
