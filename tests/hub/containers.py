"""Containers that hold converted attention, and the ways in which a model is copied."""

import copy
import pickle

import keras
import keras_hub
import numpy as np

import keras_graphattn
from tests.hub.models import VOCABULARY, moved, random_backbone

TOKENS = np.array([[3, 4, 5, 6, 7], [7, 8, 9, 1, 1]])
SERIES = np.random.default_rng(0).standard_normal((2, 5, 8)).astype("float32")
INPUTS = {
    "token_ids": TOKENS,
    "padding_mask": np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], "int32"),
    "segment_ids": np.zeros_like(TOKENS),
}
OPTIONS = {
    "graph_filter": {"order": 4},
    "p_laplacian": {"p": 1.5, "epsilon": 0.5},
    "attentive_graph_filter": {},
    "masked_kernel": {},
}


def register(cls):
    return keras.saving.register_keras_serializable(package="hub_tests")(cls)


def encoder(name="encoder"):
    return keras_hub.layers.TransformerEncoder(16, num_heads=2, name=name)


@register
class Tower(keras.layers.Layer):
    """Makes its encoders itself and builds them when it is called."""

    def __init__(self, depth=2, **kwargs):
        super().__init__(**kwargs)
        self.encoders = [encoder(f"encoder_{index}") for index in range(depth)]

    def call(self, x):
        for layer in self.encoders:
            x = layer(x)
        return x


@register
class BuiltTower(Tower):
    """Builds its encoders in `build` and tells its argument itself."""

    def __init__(self, depth=2, **kwargs):
        super().__init__(depth, **kwargs)
        self.depth = depth

    def build(self, shape):
        for layer in self.encoders:
            layer.build(shape)

    def get_config(self):
        return {**super().get_config(), "depth": self.depth}


@register
class Block(keras.layers.Layer):
    """A layer of one's own with stock attention in an attribute."""

    kind = keras.layers.MultiHeadAttention

    def build(self, shape):
        self.attention = self.kind(2, 4, name="attention")
        self.attention.build(shape, shape)

    def call(self, x):
        return x + self.attention(x, x)


@register
class Subclassed(keras.Model):
    """A model of one's own with a backbone in it."""

    def __init__(self, width=8, **kwargs):
        super().__init__(**kwargs)
        self.embedding = keras.layers.Embedding(VOCABULARY, width)
        self.tower = Tower(1)
        self.decoder = keras_hub.layers.TransformerDecoder(16, num_heads=2)

    def call(self, tokens):
        return self.decoder(self.tower(self.embedding(tokens)))


@register
class OwnFunctional(keras.Model):
    """A functional model whose graph its constructor makes."""

    def __init__(self, width=8, **kwargs):
        tokens = keras.Input((None,), dtype="int32")
        x = keras.layers.Embedding(VOCABULARY, width)(tokens)
        super().__init__(tokens, Tower(1)(encoder()(x)), **kwargs)
        self.width = width

    def get_config(self):
        return {"width": self.width, "name": self.name}


@register
class OwnStep(keras.Model):
    """A functional model with a training step of its own: Keras configures it as its own."""

    def train_step(self, *arguments):
        return super().train_step(*arguments)


def composed(backbone):
    """Both outputs of a BERT, one of them through a head."""
    pooled = keras.layers.Dense(3)(backbone.output["pooled_output"])
    return keras.Model(backbone.input, [pooled, backbone.output["sequence_output"]])


def cut(backbone):
    """A BERT cut after its first layer."""
    return keras.Model(backbone.input, backbone.transformer_layers[0].output)


def nested():
    backbone = random_backbone("bert")
    inputs = {
        name: keras.Input((None,), dtype="int32", name=name) for name in ("token_ids", *INPUTS)
    }
    pooled = backbone(inputs)["pooled_output"]
    return keras.Model(inputs, keras.layers.Dense(3)(pooled))


def nested_functional():
    x = keras.Input((5, 8))
    return functional(keras.Model(x, encoder()(x), name="inner"))


def functional(layer, *shape):
    x = keras.Input(shape or (5, 8))
    return keras.Model(x, keras.layers.Dense(2)(layer(x)))


def step():
    x = keras.Input((5, 8))
    return OwnStep(x, encoder()(x))


def called(model, inputs):
    model(inputs)
    return model


WITHOUT = {name: INPUTS[name] for name in ("token_ids", "padding_mask")}  # segments
FRAMES = np.stack([SERIES, SERIES + 1.0, 0.5 * SERIES], axis=1)

# A function that makes the container, and its inputs.
CONTAINERS = {
    "backbone": (lambda: random_backbone("bert"), INPUTS),
    "composed": (lambda: composed(random_backbone("bert")), INPUTS),
    "cut": (lambda: cut(random_backbone("bert")), INPUTS),
    "nested_backbone": (nested, INPUTS),
    "nested_functional": (nested_functional, SERIES),
    "task": (
        lambda: keras_hub.models.BertTextClassifier(random_backbone("bert"), num_classes=3),
        INPUTS,
    ),
    "causal_task": (lambda: keras_hub.models.GPT2CausalLM(random_backbone("gpt2")), WITHOUT),
    "llama": (lambda: random_backbone("llama"), WITHOUT),
    "llama_task": (lambda: keras_hub.models.LlamaCausalLM(random_backbone("llama")), WITHOUT),
    "sequential": (lambda: keras.Sequential([keras.Input((5, 8)), encoder(), Tower(1)]), SERIES),
    "time_distributed": (
        lambda: functional(keras.layers.TimeDistributed(encoder()), 3, 5, 8),
        FRAMES,
    ),
    "layer": (lambda: functional(Tower()), SERIES),
    "built_layer": (lambda: functional(BuiltTower(1)), SERIES),
    "subclassed": (lambda: called(Subclassed(), TOKENS), TOKENS),
    "own_functional": (OwnFunctional, TOKENS),
    "own_step": (step, SERIES),
    "encoder": (lambda: called(encoder(), SERIES), SERIES),
    "tower": (lambda: called(BuiltTower(), SERIES), SERIES),
}

ATTENTIONS = dict.fromkeys(CONTAINERS, tuple(OPTIONS))
ATTENTIONS["llama"] = ATTENTIONS["llama_task"] = ("graph_filter", "p_laplacian")
LATER = {"composed": composed, "cut": cut}  # made of the tensors of a backbone that is converted
LAYERS = ("encoder", "tower")  # the others are models


def saved(model, folder):
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


def with_weights_of(new, model):
    """A clone with the weights of the original: `clone_model` and configurations have none."""
    new.set_weights(model.get_weights())
    return new


def cloned(model, folder):
    return with_weights_of(keras.models.clone_model(model), model)


def cloned_by_layer(model, folder):
    if not isinstance(model, keras.Sequential) and not hasattr(model, "operations"):
        return cloned(model, folder)  # Keras takes a function for its own containers only
    return with_weights_of(
        keras.models.clone_model(model, clone_function=lambda x: x.from_config(x.get_config())),
        model,
    )


def configured(model, folder):
    new = type(model).from_config(model.get_config())
    if not new.built:
        new.build_from_config(model.get_build_config())
    return with_weights_of(new, model)


def serialized(model, folder):
    config = keras.saving.serialize_keras_object(model)
    return with_weights_of(keras.saving.deserialize_keras_object(config), model)


WAYS = {
    "saved": saved,
    "cloned": cloned,
    "cloned_by_layer": cloned_by_layer,
    "configured": configured,
    "serialized": serialized,
    "pickled": lambda model, folder: pickle.loads(pickle.dumps(model)),
    "deep_copied": lambda model, folder: copy.deepcopy(model),
}


def converted(name, attention="graph_filter"):
    """A converted container whose coefficients have moved, and its inputs."""
    keras.utils.set_random_seed(0)
    make, inputs = CONTAINERS[name]
    part = random_backbone("bert") if name in LATER else make()
    keras_graphattn.convert(part, attention, **OPTIONS[attention])
    model = LATER[name](part) if name in LATER else part
    return moved(model), inputs


def answers(model, inputs):
    found = model(inputs, training=False)
    return [np.asarray(keras.ops.convert_to_numpy(x), "float64") for x in keras.tree.flatten(found)]


def classes(model):
    return [(row.path, row.class_name) for row in keras_graphattn.inspect(model)]
