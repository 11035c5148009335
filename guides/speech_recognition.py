"""
Title: From sound to words with a graph filter
Author: The keras_graphattn authors
Date created: 2026/11/26
Last modified: 2026/11/26
Description: A small recogniser with CTC, from samples to letters, whose encoder has GFSA.
Accelerator: None
"""

"""
The GFSA paper has speech recognition among its experiments: the filter stands in the encoder,
where a frame of sound attends to all other frames. This guide makes a small recogniser from samples
to letters. It learns in less than a minute, because its "speech" is **synthetic**: vowels are two
tones each, the two formants that tell vowels apart, and no one says them. The recipe
`recipes.speech_recognition` trains on real recordings, with a decoder, a Branchformer and a beam
search.
"""

"""
## Synthetic vowels

Each utterance has one to five vowels. A voice moves all formants up or down, a vowel is long or
short, and there is noise. The letters of the vowels are the transcript.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")  # or "jax", "tensorflow"

import tempfile
from pathlib import Path

import keras
import numpy as np
from keras import layers, ops
from matplotlib import pyplot as plt

from keras_graphattn.analysis import inspect_smoothing, plot_attention_maps
from keras_graphattn.layers import GraphFilterAttention
from keras_graphattn.optimizers import with_coefficient_rates

keras.utils.set_random_seed(0)
OUTPUT = Path(os.environ.get("GUIDE_OUTPUT") or tempfile.mkdtemp()) / "speech_recognition"
OUTPUT.mkdir(parents=True, exist_ok=True)

RATE, LONGEST, LETTERS = 8000, 9600, "aeiou"  # samples a second, of an utterance
FORMANTS = {"a": (750, 1250), "e": (450, 2000), "i": (280, 2400), "o": (450, 850), "u": (300, 650)}


def utterance(random):
    """Samples of vowels, and their letters."""
    letters, voice = random.choice(list(LETTERS), random.integers(1, 6)), random.uniform(0.9, 1.1)
    sounds = [np.zeros(random.integers(200, 800))]
    for letter in letters:
        time = np.arange(random.integers(600, 900)) / RATE
        tones = [np.sin(2 * np.pi * formant * voice * time) for formant in FORMANTS[letter]]
        sounds += [sum(tones) * np.hanning(len(time)), np.zeros(random.integers(400, 700))]
    sound = np.concatenate(sounds)
    samples = np.pad(sound, (0, LONGEST - len(sound))) + 0.02 * random.standard_normal(LONGEST)
    return samples.astype("float32"), "".join(letters)


def utterances(count, seed):
    """Samples (N, S), and the numbers of the letters (N, 5), from 1; 0 comes after the last."""
    random = np.random.default_rng(seed)
    samples, texts = zip(*(utterance(random) for _ in range(count)), strict=True)
    targets = np.zeros((count, 5), "int32")
    for row, text in enumerate(texts):
        targets[row, : len(text)] = [LETTERS.index(letter) + 1 for letter in text]
    return np.stack(samples), targets


train, test = utterances(1024, seed=0), utterances(128, seed=1)

"""
## The recogniser

The features are layers of the model, so it takes samples: a log-Mel spectrogram in decibels, then
two convolutions that divide the time by four. The encoder is one block with `GraphFilterAttention`.
For each frame, the last layer has a score for each letter and for CTC's blank, number 0.
"""

samples = keras.Input((LONGEST,), name="samples")
x = layers.MelSpectrogram(
    fft_length=256, sequence_stride=80, sampling_rate=RATE, num_mel_bins=40, min_power=1e-4
)(samples)
x = layers.Rescaling(0.05)(layers.Permute((2, 1))(x))  # decibels
for _ in range(2):
    x = layers.Conv1D(48, 5, strides=2, padding="same", activation="gelu")(x)
attended = GraphFilterAttention(2, 24, order=3)(layers.LayerNormalization()(x))
x = x + attended
hidden = layers.Dense(96, activation="gelu")(layers.LayerNormalization()(x))
x = x + layers.Dense(48)(hidden)
scores = layers.Dense(len(LETTERS) + 1, name="scores")(layers.LayerNormalization()(x))
model = keras.Model(samples, scores)

"""
`keras.losses.CTC` sums over all alignments of frames and letters. It takes the padding of the
targets, 0, for the blank. Coefficients of filters learn at their own rate.
"""

model.compile(
    optimizer=with_coefficient_rates(keras.optimizers.Adam(3e-3)), loss=keras.losses.CTC()
)
history = model.fit(*train, batch_size=32, epochs=6, verbose=0)
print("loss by epoch:", [round(loss, 2) for loss in history.history["loss"]])

"""
## What it hears

Greedy decoding takes the best number of each frame, then drops repetitions and blanks.
"""


def heard(scores):
    """The letters of each utterance, from scores (N, T, 6)."""
    best = np.argmax(scores, axis=-1)
    changes = np.diff(best, axis=1, prepend=0) != 0
    return [
        "".join(LETTERS[n - 1] for n in row[new & (row > 0)])
        for row, new in zip(best, changes, strict=True)
    ]


answers = heard(model.predict(test[0], verbose=0))
texts = ["".join(LETTERS[number - 1] for number in row if number) for row in test[1]]
for text, answer in list(zip(texts, answers, strict=True))[:3]:
    print(f"said {text}, heard {answer}")
right = np.mean([text == answer for text, answer in zip(texts, answers, strict=True)])
print(f"test accuracy {right:.3f} (whole utterances)")

"""
## Where a frame looks

A is the attention, H the filter of it. Both begin equal. After training, a column is a frame that
others look at; blue entries of H are subtracted.
"""

report = inspect_smoothing(model, test[0][:1], max_sequences=1)
plot_attention_maps(report, 0).savefig(OUTPUT / "attention.png", dpi=100)
print(f"picture: {OUTPUT / 'attention.png'}")

figure, panel = plt.subplots(figsize=(7, 3), layout="constrained")
probabilities = ops.convert_to_numpy(ops.softmax(model(test[0][:1])))[0]
for number, name in enumerate(["blank", *LETTERS]):
    panel.plot(probabilities[:, number], label=name)
panel.set(xlabel="frame of 40 ms", ylabel="probability", title=f"said: {texts[0]}")
panel.legend(ncols=6, frameon=False, fontsize=8)
figure.savefig(OUTPUT / "letters.png", dpi=100)
print(f"picture: {OUTPUT / 'letters.png'}")
