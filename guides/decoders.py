"""
Title: A decoder with a graph filter: convert, fine-tune with LoRA, generate, save
Author: The keras_graphattn authors
Date created: 2026/11/22
Last modified: 2026/11/22
Description: Converts a Llama of KerasHub, trains the filter and LoRA factors, generates text.
Accelerator: GPU for presets; none for the small model of this guide
"""

"""
    python guides/decoders.py                        # a small Llama, trained here
    python guides/decoders.py llama3.2_1b            # a preset of KerasHub, or a folder with one

`convert` replaces attention in a model that has been trained. All weights stay, and the model
starts with the same outputs. Mistral, Qwen, Gemma, Phi-3, GPT-NeoX, Bloom, Falcon and others work
in the same way.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "torch", "tensorflow"

import sys
import tempfile
from pathlib import Path

import keras
import keras_hub
import numpy as np

import keras_graphattn

PRESET = sys.argv[1] if len(sys.argv) > 1 else None
keras.utils.set_random_seed(0)

"""
## A model

A preset has a tokenizer. The small model reads digits: token 1 starts a text, and token 2 + d is
the digit d. It learns to count: each digit is one more than the digit before.
"""

LENGTH, START = 16, 1


def counting(step, count, seed):
    """Texts that count by `step` from a random digit, as token ids (count, LENGTH)."""
    first = np.random.default_rng(seed).integers(0, 10, (count, 1))
    digits = (first + step * np.arange(LENGTH - 1)) % 10
    return np.concatenate([np.full((count, 1), START), 2 + digits], axis=1).astype("int32")


def examples(tokens):
    """Inputs and targets of a language model: each token predicts the next."""
    inputs = {"token_ids": tokens[:, :-1], "padding_mask": np.ones_like(tokens[:, :-1])}
    targets, weights = tokens[:, 1:], np.ones(tokens[:, 1:].shape, "float32")
    weights[:, 0] = 0.0  # the first digit is random
    return {"x": inputs, "y": targets, "sample_weight": weights}


def compiled(model, learning_rate):
    """The model, ready to be trained and to generate."""
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
        sampler="greedy",
    )
    return model


if PRESET is None:
    backbone = keras_hub.models.LlamaBackbone(
        vocabulary_size=12,
        num_layers=2,
        num_query_heads=4,
        num_key_value_heads=2,
        hidden_dim=32,
        intermediate_dim=64,
    )
    model = compiled(keras_hub.models.LlamaCausalLM(backbone=backbone), 3e-3)
    model.fit(**examples(counting(1, 512, seed=0)), epochs=8, batch_size=32, verbose=0)
else:
    model = keras_hub.models.CausalLM.from_preset(PRESET)


def continued(model):
    """What the model writes after a prompt: text for a preset, digits for the small model."""
    if PRESET is not None:
        return model.generate("The graph of tokens", max_length=40)
    tokens = np.zeros((1, LENGTH), "int32")
    tokens[0, :2] = START, 2 + 4  # the digit 4
    mask = np.arange(LENGTH)[None] < 2
    generated = model.generate({"token_ids": tokens, "padding_mask": mask}, stop_token_ids=None)
    return " ".join(str(token - 2) for token in np.asarray(generated["token_ids"])[0, 1:])


print("the original writes:", continued(model))

"""
## Convert

The converted model writes the same. `inspect` shows what changed.
"""

before = continued(model)
keras_graphattn.convert(model, "graph_filter", order=3)
print(keras_graphattn.inspect(model))
assert continued(model) == before

"""
## Fine-tune

LoRA freezes the weights and adds two thin matrices to the projections. The coefficients of the
filters are trained as well, with a rate of their own: 100 times that of other weights. The small
model now learns to count down.
"""

model.backbone.enable_lora(4)
trained = [variable.path for variable in model.trainable_variables]
print(f"{len(trained)} trained weights, such as {trained[0]} and {trained[-1]}")

if PRESET is None:
    compiled(model, 1e-2)
    model.fit(**examples(counting(-1, 512, seed=1)), epochs=20, batch_size=32, verbose=0)
    unseen = examples(counting(-1, 128, seed=2))
    results = model.evaluate(**unseen, verbose=0, return_dict=True)
    print(f"counting down: test accuracy {results['accuracy']:.3f}")
else:
    texts = ["Attention is a matrix. A filter is a function of it."] * 8
    model.fit(texts, batch_size=2, epochs=1)
print("the fine-tuned model writes:", continued(model))

"""
## Save, load elsewhere, take it back

A preset holds the plain configuration, the conversion and all weights. Another program needs
`import keras_graphattn` to load it. `revert` gives the original attention back, with the weights
as they are now.
"""

with tempfile.TemporaryDirectory() as folder:
    model.save_to_preset(folder)
    print("the preset has", ", ".join(sorted(path.name for path in Path(folder).iterdir())))
    options = {} if PRESET else {"preprocessor": None}
    again = keras_hub.models.CausalLM.from_preset(folder, **options)
again.compile(sampler="greedy")
assert continued(again) == continued(model)
print("the loaded model writes:", continued(again))
print("its attention layers:", {row.class_name for row in keras_graphattn.inspect(again)})
keras_graphattn.revert(again)
