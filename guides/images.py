"""
Title: Images as grids
Description: Patches, masks over their grid as pictures, and a small topological ViT.
Accelerator: None

A vision transformer cuts an image into patches and forgets where they were. Position embeddings
tell it; a mask over the grid is another way. The mask has a factor for each offset, so many patches
down and so many across, that is the same everywhere in the image, as in a convolution.
"""

"""
## Patches

Patches are taken row by row. So token 5 of a 4 x 4 grid is the second patch of the second row.

The pictures go to a folder `images` in the folder that the environment variable `GUIDE_OUTPUT`
names, or to a new temporary folder. The guide says where.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "torch", "tensorflow"

import tempfile
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from keras_graphattn.layers import MaskedKernelAttention
from keras_graphattn.masks import BlockToeplitz
from keras_graphattn.optimizers import with_coefficient_rates

output = Path(os.environ.get("GUIDE_OUTPUT") or tempfile.mkdtemp(prefix="guide_"))


def patches(images, side):
    """(B, h, w) -> (B, T, side * side), row by row."""
    count, height, width = images.shape
    grid = images.reshape((count, height // side, side, width // side, side))
    return grid.transpose((0, 1, 3, 2, 4)).reshape((count, -1, side * side))


def save(figure, name):
    file = output / "images" / f"{name}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=80)
    print(f"picture: {file}")


try:
    from matplotlib.figure import Figure
except ImportError:
    Figure = None
    print("no matplotlib: no pictures")

keras.utils.set_random_seed(0)
digits = load_digits()
images = (digits.images / 16.0).astype("float32")
print(f"{len(images)} images of 8 x 8 pixels, as patches of 2 x 2: {patches(images, 2).shape}")

"""
## A mask over the grid

`BlockToeplitz((8, 8), num_prefix_tokens=1)` is a mask for 64 patches behind a class token, which is
not on the grid: all factors of this token are 1. Here the factors are set by hand, with a pixel for
a patch: head 1 sees what is near, head 2 what is in the same row, and head 3 what lies above.

A row of the mask's matrix belongs to one patch. Put back into the grid, it is a picture of what
that patch sees. All patches see the same picture, moved to where they are.
"""

mask = BlockToeplitz((8, 8), num_prefix_tokens=1)
mask.build((None, 65, 3, 16))
print(f"factors of each head, by offset down and across: {tuple(mask.log_factors.shape[1:])}")
down, across = np.meshgrid(np.arange(-7, 8), np.arange(-7, 8), indexing="ij")
by_hand = {  # a patch i minus the patch j that it sees: j is above i where `down` is positive
    "near": np.exp(-0.3 * (down**2 + across**2)),
    "same row": np.exp(-1.5 * np.abs(down)),
    "above": 1 / (1 + np.exp(-2.0 * down)),
}
mask.log_factors.assign(np.log(np.stack(list(by_hand.values())) + 1e-6))
matrix = keras.ops.convert_to_numpy(mask.dense())[0]  # (3, 65, 65)
seen = {place: 1 + 8 * place[0] + place[1] for place in ((2, 2), (4, 6))}  # 1 for the class token
if Figure is not None:
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots(2, 4)
    for row, (place, token) in zip(axes, seen.items(), strict=True):
        row[0].imshow(images[3], cmap="gray_r")
        row[0].set_title(f"patch {place}", fontsize=10)
        for axis, name, head in zip(row[1:], by_hand, matrix, strict=True):
            axis.imshow(head[token, 1:].reshape((8, 8)), cmap="gray", vmin=0, vmax=1)
            axis.set_title(f"sees: {name}", fontsize=10)
        for axis in row:
            axis.plot(place[1], place[0], "s", markersize=9, markeredgecolor="r", fillstyle="none")
            axis.set(xticks=[], yticks=[])
    save(figure, "masks_by_hand")

"""
## A small topological ViT

Kernel attention, with ReLU features, under such a mask in each layer (Choromanski et al.,
arXiv 2107.07999, Section 5.4), on 4 x 4 patches of 2 x 2 pixels. All factors start at 1 and are
learned. The optimizer of `with_coefficient_rates` lets them learn 30 times as fast as other
weights, the default of a mask. The class token is a learned vector, and the classifier looks at
nothing else.

The model has no position embedding: what it knows of the grid is in the masks. Without them, it
sees a bag of patches.
"""

x_train, x_test, y_train, y_test = train_test_split(
    patches(images, 2),
    digits.target,
    train_size=1280,
    test_size=512,
    random_state=0,
    stratify=digits.target,
)


@keras.saving.register_keras_serializable(package="images_guide")
class ClassToken(keras.layers.Layer):
    """(B, T, d) -> (B, 1 + T, d), with a learned vector in the first place."""

    def build(self, tokens_shape):
        self.vector = self.add_weight(shape=(1, 1, tokens_shape[-1]), initializer="zeros")

    def call(self, tokens):
        first = keras.ops.repeat(self.vector, keras.ops.shape(tokens)[0], axis=0)
        return keras.ops.concatenate([first, tokens], axis=1)

    def compute_output_shape(self, tokens_shape):
        return (tokens_shape[0], 1 + tokens_shape[1], tokens_shape[2])


def vit(masked, width=64, heads=4):
    inputs = keras.Input((16, 4), name="patches")
    x = ClassToken()(keras.layers.Dense(width)(inputs))
    for number in (1, 2):
        attention = MaskedKernelAttention(
            heads,
            width // heads,
            mask=BlockToeplitz((4, 4), num_prefix_tokens=1) if masked else None,
            name=f"attention_{number}",
        )
        x = x + attention(keras.layers.LayerNormalization()(x))
        hidden = keras.layers.Dense(2 * width, activation="gelu")
        x = x + keras.layers.Dense(width)(hidden(keras.layers.LayerNormalization()(x)))
    token = keras.layers.LayerNormalization()(x[:, 0])
    return keras.Model(inputs, keras.layers.Dense(10, activation="softmax")(token))


models = {"with block-Toeplitz masks": vit(True), "a bag of patches": vit(False)}
epochs, batch = 12, 64
for name, model in models.items():
    rate = keras.optimizers.schedules.CosineDecay(4e-3, epochs * -(-len(x_train) // batch))
    optimizer = keras.optimizers.Adam(rate)
    if "masks" in name:
        optimizer = with_coefficient_rates(optimizer)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x_train, y_train, epochs=epochs, batch_size=batch, verbose=0)
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    words = "test accuracy" if "masks" in name else "right on the test data:"
    print(f"{name}: {words} {accuracy:.3f}")

"""
## The learned masks

One picture for each head of the first layer: the patch that looks is at the cross, and each cell is
the factor for the patch that lies there, from three above to three below. Red factors are above 1
and blue ones below. The second layer is left out: only its class token is used, which sees all
patches alike.
"""

topological = models["with block-Toeplitz masks"]
factors = keras.ops.convert_to_numpy(topological.get_layer("attention_1").mask.log_factors)
factors = factors[:, ::-1, ::-1]  # from the offset of who looks to the offset of what is seen
print(f"factors from {np.exp(factors.min()):.1e} to {np.exp(factors.max()):.1e}")
if Figure is not None:
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    for number, (axis, table) in enumerate(zip(figure.subplots(1, 4), factors, strict=True), 1):
        picture = axis.imshow(table, cmap="RdBu_r", vmin=-9, vmax=9)
        axis.plot(3, 3, "k+")
        axis.set(xticks=[], yticks=[], title=f"head {number}")
    figure.colorbar(picture, ax=figure.axes, label="logarithm of the factor")
    save(figure, "learned_masks")
