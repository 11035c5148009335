"""
Title: See oversmoothing, and cure it
Description: Measure how alike tokens become with depth, and what a graph filter does about it.
Accelerator: None

Attention averages tokens. Layer after layer, they become more and more alike, and a deep model has
less and less to work with: this is oversmoothing. `inspect_smoothing` shows it in any Keras or
KerasHub model, without a change of the model. This guide trains a deep vision transformer twice,
with plain attention and with graph filters, and looks at both.
"""

"""
## A deep transformer for small images

Each 8 x 8 digit is a sequence of 16 patches. The data come with scikit-learn: no download. The
second model differs in the attention only: `GraphFilterAttention` with a filter that starts as
H = I + (I - A). It keeps each token, and adds what the token does not share with the others.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "torch", "tensorflow"

import csv
import tempfile
from pathlib import Path

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from keras_graphattn import analysis
from keras_graphattn.filters import FirstOrder
from keras_graphattn.layers import AttentiveGraphFilter, GraphFilterAttention

DEPTH, WIDTH, EPOCHS = 4, 32, 8
digits = load_digits()
patches = (digits.images / 16.0).astype("float32").reshape(-1, 4, 2, 4, 2)
patches = patches.transpose(0, 1, 3, 2, 4).reshape(-1, 16, 4)
x_train, x_test, y_train, y_test = train_test_split(
    patches, digits.target, train_size=1280, test_size=512, random_state=0, stratify=digits.target
)


def vision_transformer(attention, name):
    """Pre-normalised blocks; `attention` makes the layer of each."""
    inputs = keras.Input((16, 4), name="patches")
    x = keras.layers.Dense(WIDTH)(inputs)
    places = keras.ops.cumsum(keras.ops.ones_like(inputs[:, :, 0]), axis=1) - 1
    x = x + keras.layers.Embedding(16, WIDTH)(places)
    for number in range(DEPTH):
        normed = keras.layers.LayerNormalization()(x)
        x = x + attention(name=f"attention_{number}")(normed, normed)
        hidden = keras.layers.LayerNormalization()(x)
        hidden = keras.layers.Dense(2 * WIDTH, activation="gelu")(hidden)
        x = x + keras.layers.Dense(WIDTH)(hidden)
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(x))
    outputs = keras.layers.Dense(10, activation="softmax", name="digit")(x)
    model = keras.Model(inputs, outputs, name=name)
    optimizer = keras.optimizers.AdamW(3e-3, weight_decay=1e-4)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def plain_attention(name):
    return keras.layers.MultiHeadAttention(4, 8, name=name)


def graph_filter(name):
    return GraphFilterAttention(4, 8, filter=FirstOrder(3, start="high_boost"), name=name)


"""
## The report of plain attention

The report has a line for each attention layer. Its columns are means over the test images:
similarity of the tokens before the attention, after it, and after its block; the share of their
constant component; how many singular values count; and what the operator of the heads does to high
frequencies, before the filter (A) and after it (H). Without a filter, the two are equal.

`SmoothingLogger` writes the same to a CSV file during training.
"""

output = Path(os.environ.get("GUIDE_OUTPUT") or tempfile.mkdtemp(prefix="guide_"))
keras.utils.set_random_seed(0)
plain = vision_transformer(plain_attention, "plain")
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "smoothing.csv"
    logger = analysis.SmoothingLogger(x_train[:32], file, every=4)
    plain.fit(x_train, y_train, batch_size=128, epochs=EPOCHS, verbose=0, callbacks=[logger])
    with file.open() as opened:
        for row in csv.DictReader(opened):
            if int(row["depth"]) == DEPTH - 1:
                similarity = float(row["block_cosine"])
                print(f"epoch {row['epoch']}: similarity after the last block {similarity:.3f}")

report = analysis.inspect_smoothing(plain, x_test[:128])
print(report)
_, accuracy = plain.evaluate(x_test, y_test, batch_size=128, verbose=0)
print(f"plain attention: test accuracy {accuracy:.3f}")

"""
All gains at high frequencies are below 1, and small in the deep layers: these only average. The
tokens after the last block have nearly one direction, and few singular values count.

## The report of graph filters
"""

keras.utils.set_random_seed(0)
filtered = vision_transformer(graph_filter, "graph_filter")
filtered.fit(x_train, y_train, batch_size=128, epochs=EPOCHS, verbose=0)
cured = analysis.inspect_smoothing(filtered, x_test[:128])
print(cured)
_, accuracy = filtered.evaluate(x_test, y_test, batch_size=128, verbose=0)
print(f"graph filter: test accuracy {accuracy:.3f}")

"""
Beside the first table, the tokens after each block are less alike, and more singular values count.
One run with one seed says little about the accuracy. The recipes in `recipes/` compare the two over
several seeds.

## The pictures

`plot_similarity` and `plot_responses` draw on an axis of matplotlib. `plot_attention_maps` draws
the matrices of a head: A shows what the head looks at. H, after the filter, is mostly the negative
of A, with a strong diagonal.

![Similarity by depth, and the frequency response of one layer's heads](images/smoothing.png)

![One head's attention before and after the filter](images/smoothing_maps.png)
"""

try:
    from matplotlib.figure import Figure
except ImportError:
    print("no matplotlib: no pictures")
else:
    folder = output / "smoothing"
    folder.mkdir(parents=True, exist_ok=True)

    def save(figure, name):
        figure.savefig(folder / name, dpi=70)
        print(f"picture: {folder / name}")

    figure = Figure(figsize=(13, 3.9), layout="constrained")
    axes = figure.subplots(1, 3)
    analysis.plot_similarity(
        [report, cured], labels=["plain attention", "graph filter"], axis=axes[0]
    )
    for axis, shown in zip(axes[1:], (report, cured), strict=True):
        analysis.plot_responses(shown, depth=DEPTH // 2, axis=axis)
        axis.set(title=f"{shown.model}: {axis.get_title()}", ylim=(0.0, 2.6))
    save(figure, "similarity.png")
    save(analysis.plot_attention_maps(cured, depth=DEPTH // 2), "maps.png")

"""
## What a layer does to its own values

The report keeps the matrices and the values of each head for the first image. So the functions of
`analysis` that take a matrix work on any model. `frequency_parts` applies an operator several
times: what is left of the differences between tokens, beside what they have in common?
`plot_powers` draws it. `p_laplacian_energy` and `homophily` are the measures of p-LaT: how far
tokens that attend to each other are apart, and which share of the attention is between near ones.
"""

for shown in (report, cured):
    heads = shown.layers[DEPTH // 2].heads
    low, high = analysis.frequency_parts(heads.operator_map, heads.values, steps=4)
    left = (high / low).mean(axis=0).round(3)
    energy = analysis.p_laplacian_energy(heads.attention_map, heads.values, p=2.0).mean()
    near = analysis.homophily(heads.attention_map, heads.values).mean()
    print(f"{shown.model}: high / low {left}, energy {energy:.3f}, homophily {near:.3f}")

"""
Three steps of plain attention leave almost no differences between the tokens. The graph filter
keeps them, and its values are further apart.

## Deeper, with several seeds

These commands take longer than a guide. The first trains ViTs of 24 blocks on the same digits, each
block normalised after its branches, with ten seeds. The second fine-tunes a pretrained MiniLM on
CoLA, with three seeds. The recipes measure the similarity after every block, and the last
command draws the picture and prints the table.

    python -m recipes.image_classification --layers 24 --post-norm --d-model 32 --heads 4 \
        --feed-forward 64 --epochs 40 --warm-up-epochs 10 --learning-rate 5e-4 --mix-up 0 \
        --attention softmax,gfsa,gfsa_high_pass --seeds 0,1,2,3,4,5,6,7,8,9 --backend jax \
        --output results/deep/post-24
    python -m recipes.text_classification --task cola --data-dir folder/with/cola \
        --preset minilm --attention softmax,gfsa --seeds 0,1,2 --backend tensorflow \
        --output results/deep/minilm-cola
    python -m recipes.common.output.together results/deep/minilm-cola results/deep/post-24

![Test metric of each seed, and similarity by depth](images/smoothing_depth.png)

| model | attention | test metric | similarity in the middle | at the end |
| --- | --- | --- | --- | --- |
| MiniLM on CoLA | softmax | Matthews correlation 0.314 ± 0.021 | 0.21 | 0.54 |
| | GFSA, started as plain attention | 0.317 ± 0.046 | 0.21 | 0.52 |
| 24 blocks | softmax | accuracy 0.856 ± 0.020 | 0.96 | 1.00 |
| | GFSA, started as plain attention | 0.875 ± 0.016 | 0.92 | 1.00 |
| | GFSA, started as a high-pass filter | 0.864 ± 0.022 | 0.66 | 0.99 |

In the deep model, plain attention makes all tokens alike after half of the blocks. The filter that
starts as a high-pass keeps them apart for longer, with every seed. Whether that pays is another
question. Seed by seed, GFSA from the plain start is above softmax by 0.019 with a standard error of
0.006, and from the high-pass start by 0.009 with an error of 0.007. A model of six layers that was
trained with plain attention does not smooth much, and GFSA changes little in it.
"""

"""
## Layers without a matrix

`AttentiveGraphFilter` never forms a matrix. The report probes it: it applies the layer to unit
signals and reads the columns of its operator from the answers. It is checked against what the layer
makes of its own values. The same holds for kernel attention, fused kernels and converted KerasHub
models. Where a layer cannot be probed, the report names it and says why.
"""

inputs = keras.Input((16, 4))
singular = AttentiveGraphFilter(4, 8, name="singular")(keras.layers.Dense(WIDTH)(inputs))
singular_report = analysis.inspect_smoothing(
    keras.Model(inputs, singular, name="no_matrix"), x_test[:8]
)
heads = singular_report.layers[0].heads
print("singular values, gain of each head at frequency 0:", heads.operator_fourier[:, 0].round(3))

"""
Your own model needs one line: `print(analysis.inspect_smoothing(model, inputs))`. Give it batches
that are preprocessed, as for `model.predict`. Padding is left out by the masks that the attention
layers get.
"""
