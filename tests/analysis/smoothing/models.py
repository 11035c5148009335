"""Models with attention, and their figures from the models' own layers."""

import keras

from keras_graphattn.layers import GraphFilterAttention
from tests.numerics import randomise


def attention(kind, **options):
    if kind == "plain":
        return keras.layers.MultiHeadAttention(2, 4, **options)
    return GraphFilterAttention(2, 4, order=3, **options)


def stack(*layers, length=4):
    """A functional model of layers one after the other, on tokens (B, length, 8)."""
    inputs = x = keras.Input((length, 8))
    for layer in layers:
        x = layer(x, x) if isinstance(layer, keras.layers.MultiHeadAttention) else layer(x)
    return keras.Model(inputs, x)


def vision_transformer(kind):
    """A pre-norm functional ViT of 12 blocks on 9 tokens."""
    inputs = x = keras.Input((9, 8))
    for number in range(12):
        normed = keras.layers.LayerNormalization(name=f"norm_{number}")(x)
        x = keras.layers.Add()([x, attention(kind, name=f"attention_{number}")(normed, normed)])
        hidden = keras.layers.Dense(16, activation="gelu")(keras.layers.LayerNormalization()(x))
        x = keras.layers.Add()([x, keras.layers.Dense(8)(hidden)])
    x = keras.layers.LayerNormalization(name="last")(x)
    pooled = keras.layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, keras.layers.Dense(3)(pooled), name="vit")
    randomise(model)
    return model


class Subclassed(keras.Model):
    """A model whose layers are in lists and dictionaries, built at its first call."""

    def __init__(self):
        super().__init__()
        self.first = {"dense": keras.layers.Dense(8)}
        self.blocks = [attention("graph_filter") for _ in range(2)]
        self.norms = [keras.layers.LayerNormalization() for _ in range(2)]

    def call(self, x):
        x = self.first["dense"](x)
        for block, norm in zip(self.blocks, self.norms, strict=True):
            x = norm(x + block(x, x))
        return x


class MapAttention(keras.layers.Layer):
    """A layer whose tokens are maps (B, h, w, d)."""

    def call(self, x):
        return 2.0 * x


def figures_of(report):
    """All figures but the maps by depth and name."""
    figures = {}
    for depth, layer in enumerate(report.layers):
        named = layer.summary() | {f"filter {k}": v for k, v in layer.coefficients.items()}
        if layer.heads is not None:
            named |= {k: v for k, v in vars(layer.heads).items() if not k.endswith("_map")}
        figures |= {f"{depth} {name}": value for name, value in named.items()}
    return figures
