"""
Title: A gallery of masks
Author: The keras_graphattn authors
Date created: 2026/11/21
Last modified: 2026/11/22
Description: The matrix of each mask, and relative positions on a grid that are learned.
Accelerator: None
"""

"""
A mask multiplies the kernel of two tokens by a factor that depends on where they stand. Here is
what each kind looks like, drawn by `plot_mask`: queries down, keys across, black is 0.
"""

"""
## Pictures

The factors of `Toeplitz`, `BlockToeplitz` and `LowRank` all start at 1 or near it and are learned;
so some of them get numbers by hand here. The picture goes to a folder `masks` in the folder that
the environment variable `GUIDE_OUTPUT` names, or to a new temporary folder. The guide says where.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "torch", "tensorflow"

import tempfile
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from keras_graphattn.analysis import plot_mask
from keras_graphattn.layers import MaskedKernelAttention
from keras_graphattn.masks import (
    BlockToeplitz,
    Causal,
    Exponential,
    GraphDiffusion,
    Hypercube,
    LowRank,
    Product,
    RandomWalk,
    Segments,
    StochasticPositions,
    Toeplitz,
    Tree,
)

keras.utils.set_random_seed(0)
length, ids = 25, np.repeat([[0, 1, 2]], [10, 6, 9], axis=1)
binary_trees = [-1, *((i - 1) // 2 for i in range(1, 15)), -1, *(15 + i // 2 for i in range(9))]
caves = [(a, b) for start in (0, 9, 17) for a in range(start, start + 8) for b in range(start, a)]
caves += [(8, 9), (17, 16)]  # three groups of friends, and a friendship from each to the next
gallery = {
    "Causal": (Causal(), {}),
    "Segments": (Segments(), {"segment_ids": ids}),
    "Exponential": (Exponential(2, initial_rates=[0.05, 1.0]), {}),
    "Exponential, causal": (Exponential(causal=True, initial_rates=0.2), {}),
    "Toeplitz": (Toeplitz(length), {}),
    "Toeplitz.alibi": (Toeplitz.alibi(length), {}),
    "BlockToeplitz, 5 x 5": (BlockToeplitz((5, 5)), {}),
    "4 x 6 by distance, CLS": (BlockToeplitz((4, 6), 1, form="distance"), {}),
    "LowRank": (LowRank(3, length), {}),
    "StochasticPositions": (StochasticPositions(3, seed=1), {}),
    "Segments x Causal": (Product([Segments(), Causal()]), {"segment_ids": ids}),
    "Causal x Toeplitz": (Product([Causal(), Toeplitz(length)]), {}),
    "Tree, two trees": (Tree(binary_trees, initial_rate=-0.4), {}),
    "GraphDiffusion": (GraphDiffusion(caves, num_nodes=length, initial_time=0.08), {}),
    "RandomWalk": (RandomWalk(caves, num_nodes=length, walk_length=3, exact=True), {}),
    "Hypercube, 16 corners": (Hypercube(0.7, dimension=4), {}),
}
lengths = {name: getattr(mask, "num_nodes", length) for name, (mask, _) in gallery.items()}
for name, (mask, _) in gallery.items():
    mask.build((1, lengths[name], 1, 8))


def set_factors(mask, factor):
    """Gives a Toeplitz mask the factor `factor(offset, ...)`, offsets counted from the middle."""
    shape = mask.log_factors.shape[1:]
    offsets = np.meshgrid(*[np.arange(size) - size // 2 for size in shape], indexing="ij")
    mask.log_factors.assign(np.log(factor(*offsets))[None])


def waves(*offsets):
    return 0.1 + np.exp(-0.15 * sum(map(np.abs, offsets))) * (1 + np.cos(1.3 * offsets[-1]))


set_factors(gallery["Toeplitz"][0], waves)
set_factors(gallery["Causal x Toeplitz"][0].masks[1], waves)
set_factors(gallery["BlockToeplitz, 5 x 5"][0], lambda y, x: np.exp(-0.5 * np.hypot(y, x)))
distances = gallery["4 x 6 by distance, CLS"][0].log_factors
distances.assign(-0.5 * np.arange(distances.shape[1])[None])

for name, (mask, inputs) in gallery.items():
    signal = keras.random.normal((1, lengths[name], 1, 8), seed=0)
    matrix = keras.ops.convert_to_numpy(mask.dense(lengths[name], **inputs))[0, 0]
    applied = keras.ops.convert_to_numpy(mask.apply(signal, **inputs))[0, :, 0]
    difference = applied - matrix @ keras.ops.convert_to_numpy(signal)[0, :, 0]
    print(f"{name}: apply(x) - dense() @ x is at most {np.abs(difference).max():.1e}")

try:
    from matplotlib.figure import Figure
except ImportError:
    print("no matplotlib: no picture")
else:
    figure = Figure(figsize=(14, 12.8), layout="constrained")
    axes = figure.subplots(4, 4).ravel()
    for axis, (name, (mask, inputs)) in zip(axes, gallery.items(), strict=True):
        plot_mask(mask, lengths[name], axis=axis, **inputs).set_title(name, fontsize=10)
    output = Path(os.environ.get("GUIDE_OUTPUT") or tempfile.mkdtemp(prefix="guide_"))
    picture = output / "masks" / "masks.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=80)
    print(f"picture: {picture}")

"""
## Relative positions on a grid, learned

Handwritten digits as 4 x 4 patches behind a token that collects the answer. The model has no
position embedding: all that it knows of the grid is in its block-Toeplitz masks.
"""

digits = load_digits()
patches = digits.images.reshape((-1, 4, 2, 4, 2)).transpose((0, 1, 3, 2, 4)) / 16.0
patches = patches.reshape((-1, 16, 4)).astype("float32")
x_train, x_test, y_train, y_test = train_test_split(
    patches, digits.target, train_size=1280, test_size=512, random_state=0, stratify=digits.target
)
inputs = keras.Input((16, 4), name="patches")
x = keras.layers.ZeroPadding1D((1, 0))(keras.layers.Dense(48)(inputs))
for number in (1, 2, 3):
    mask = BlockToeplitz((4, 4), num_prefix_tokens=1)
    attention = MaskedKernelAttention(6, 16, mask=mask, name=f"attention_{number}")
    x = x + attention(keras.layers.LayerNormalization()(x))
    hidden = keras.layers.Dense(96, activation="gelu")(keras.layers.LayerNormalization()(x))
    x = x + keras.layers.Dense(48)(hidden)
outputs = keras.layers.Dense(10, activation="softmax")(keras.layers.Flatten()(x))
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.Adam(2e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x_train, y_train, epochs=8, batch_size=64, verbose=0)
_, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"block-Toeplitz masks: test accuracy {accuracy:.3f}")
factors = keras.ops.exp(model.get_layer("attention_1").mask.log_factors)[0]
print("factors of the first head for each offset (down, across):")
print(np.round(keras.ops.convert_to_numpy(factors), 2))
