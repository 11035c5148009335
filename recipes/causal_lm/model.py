"""GPT-2, from scratch or from a preset, with another attention, and its training.

The attention comes by `convert`, or else the model is built with it.

Perplexity is the exponential of the mean cross-entropy over all tokens that are counted.
"""

import argparse
import functools
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import keras_hub
import numpy as np
from keras import layers, ops
from keras.initializers import RandomNormal

from recipes.causal_lm.data import FORM, Problem, per_word
from recipes.common.attentions import ATTENTIONS, OF_LAYERS, Trial, layer_arguments
from recipes.common.command.parsing import UsageError
from recipes.common.data.batches import Windows
from recipes.common.data.sources import loading_preset
from recipes.common.training.layers import converted, dropout, named_seed, served_inputs
from recipes.common.training.optimizers import WarmUpLinearDecay, with_rates
from recipes.common.training.runs import Training, load_weights

LIKELY = 10  # tokens from which each token of a sample is drawn
PROMPT_TOKENS = 16  # of the test text at most, where no prompt is given


def prepare(trial: Trial) -> Training:
    """The compiled model and the batches of one attention with one seed."""
    problem, options = trial.problem, trial.options
    sizes = (options.context, options.batch_size)
    batches = Windows(problem.tokens["train"], *sizes, seed=trial.seed)
    validation, test = (
        Windows(problem.tokens[part], *sizes, options.stride) for part in ("validation", "test")
    )
    task = build(trial)
    model = trainer(task, options, options.epochs * batches.num_batches)

    def report() -> dict[str, Any]:
        values = model.evaluate(test, verbose=0, return_dict=True)
        loss = values["cross_entropy"]
        words = per_word(loss, test.num_predictions, problem.words("test"))
        return {
            "test_cross_entropy": loss,
            "test_perplexity": values["perplexity"],
            "test_perplexity_per_word": words,
            "sample": sample(task, problem, options, trial.seed),
        }

    return Training(model, batches, validation, report=report)


def best_model(trial: Trial, weights: Path) -> keras.Model:
    """The model of a run at its chosen epoch, not compiled."""
    task = build(trial)
    load_weights(keras.Model(task.input, task.output), weights)
    return task


def build(trial: Trial) -> keras.Model:
    """A causal language model; logits (B, T, vocabulary) of the token after each.

    Its inputs are `token_ids` (B, T) and `padding_mask` (B, T); T is at most the context. With one
    seed, all models start with the same weights, except those that an attention adds.

    Raises:
        UsageError: If there is no such preset, or it cannot be converted so.
    """
    options, size = trial.options, trial.problem.vocabulary.size
    if trial.attention in OF_LAYERS:
        return of_layers(size, options, trial.seed, functools.partial(_attention, trial))
    model = _from_preset(options) if options.preset else _from_scratch(size, options)
    return converted(model, trial, causal=True)


def trainer(task: keras.Model, options: argparse.Namespace, steps: int) -> keras.Model:
    """The same layers as a plain Keras model, compiled for Adam, to train and to evaluate.

    KerasHub's tasks take no batches made outside of TensorFlow. Loss and metrics are means over
    the tokens that are counted.
    """
    model = keras.Model(task.input, task.output, name=task.name)
    rate = WarmUpLinearDecay(options.learning_rate, options.warm_up, steps)
    model.compile(
        optimizer=with_rates(keras.optimizers.Adam(rate, global_clipnorm=1.0), model),
        loss=keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
        weighted_metrics=[
            keras.metrics.SparseCategoricalCrossentropy(name="cross_entropy", from_logits=True),
            keras_hub.metrics.Perplexity(from_logits=True, name="perplexity"),
        ],
    )
    return model


def served(task: keras.Model, options: argparse.Namespace) -> keras.Model:
    """The model that is exported, for texts of up to the context."""
    inputs = served_inputs(task, options.context)
    logits = layers.Activation("linear", dtype="float32", name="logits")(task(inputs))
    return keras.Model(inputs, logits, name=task.name)


def _from_scratch(vocabulary_size: int, options: argparse.Namespace) -> keras.Model:
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=vocabulary_size,
        num_layers=options.layers,
        num_heads=options.heads,
        hidden_dim=options.d_model,
        intermediate_dim=options.feed_forward,
        dropout=options.dropout,
        max_sequence_length=options.context,
    )
    return keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)


def of_layers(
    vocabulary_size: int, options: argparse.Namespace, seed: int, attention: Callable[..., Any]
) -> keras.Model:
    """GPT-2 of layers, as `_from_scratch` makes it, with attentions that `convert` does not have.

    `attention` makes the attention of a block from its number (from 0) and the layer's name.
    """

    def norm(name: str) -> layers.Layer:
        return layers.LayerNormalization(epsilon=1e-5, name=name)

    def dense(units: int, name: str) -> layers.Layer:
        return layers.Dense(units, kernel_initializer=RandomNormal(stddev=0.02), name=name)

    def added(tokens: Any, outputs: Any, name: str) -> Any:
        return layers.Add(name=name)(
            [tokens, dropout(options.dropout, seed, f"{name}_drop")(outputs)]
        )

    inputs = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("token_ids", "padding_mask")
    }
    embedding = keras_hub.layers.ReversibleEmbedding(
        *(vocabulary_size, options.d_model),
        embeddings_initializer=RandomNormal(stddev=0.01),
        name="token_embedding",
    )
    positions = keras_hub.layers.PositionEmbedding(
        options.context, initializer=RandomNormal(stddev=0.02), name="position_embedding"
    )
    tokens, mask = embedding(inputs["token_ids"]), inputs["padding_mask"]
    tokens = layers.Add(name="embedded")([tokens, positions(tokens)])
    tokens = dropout(options.dropout, seed, "embedded_drop")(tokens)
    for index in range(options.layers):
        name = f"block_{index + 1}"
        normed = norm(f"{name}_attention_norm")(tokens)
        masks = {"query_mask": mask, "value_mask": mask, "use_causal_mask": True}
        outputs = attention(index, f"{name}_attention")(normed, normed, **masks)
        tokens = added(tokens, outputs, f"{name}_attended")
        hidden = dense(options.feed_forward, f"{name}_hidden")(norm(f"{name}_norm")(tokens))
        outputs = dense(options.d_model, f"{name}_output")(ops.gelu(hidden, approximate=True))
        tokens = added(tokens, outputs, name)
    logits = embedding(norm("last_norm")(tokens), reverse=True)
    return keras.Model(inputs, logits, name="gpt2")


def _attention(trial: Trial, index: int, name: str) -> layers.Layer:
    """The attention of a block. It has the parameters of plain attention, as far as it can."""
    options = trial.options
    arguments = {
        "num_heads": options.heads,
        "key_dim": options.d_model // options.heads,
        "dropout": options.dropout,
        "seed": named_seed(trial.seed, name),
        "kernel_initializer": RandomNormal(stddev=0.02),
        "name": name,
        **layer_arguments(trial.settings, causal=True),
    }
    if trial.attention == "differential":  # half the heads, each of twice the width
        arguments |= {"num_heads": options.heads // 2, "layer_index": index}
    return pkgutil.resolve_name(ATTENTIONS[trial.attention].layer)(**arguments)


def _from_preset(options: argparse.Namespace) -> keras.Model:
    with loading_preset(options.preset, FORM):
        model = keras_hub.models.CausalLM.from_preset(
            options.preset, preprocessor=None, dtype=options.precision
        )
    longest = getattr(model.backbone, "max_sequence_length", options.context)
    if options.context > longest:
        raise UsageError(
            f"--context {options.context}: --preset {options.preset} takes {longest} tokens at most"
        )
    return model


def prompt_tokens(problem: Problem, options: argparse.Namespace) -> np.ndarray:
    """The tokens of the prompt of a sample; refuses a prompt that fills the context."""
    tokens = problem.tokens["test"][: 1 + min(PROMPT_TOKENS, options.context // 2)]
    if options.prompt is not None:
        tokens = np.append(tokens[:1], problem.vocabulary.encode(options.prompt))
    if len(tokens) >= options.context:
        raise UsageError(
            f"--prompt has {len(tokens) - 1} tokens: with the one before them they fill --context "
            f"{options.context}"
        )
    return tokens


def sample(task: keras.Model, problem: Problem, options: argparse.Namespace, seed: int) -> str:
    """The prompt and its continuation, each token drawn from the 10 most likely ones."""
    prompt = prompt_tokens(problem, options)
    length = min(len(prompt) + options.sample_tokens, options.context)
    tokens = np.zeros((1, length), "int32")
    tokens[0, : len(prompt)] = prompt
    if length > len(prompt):
        inputs = {"token_ids": tokens, "padding_mask": np.arange(length)[None] < len(prompt)}
        if not hasattr(task, "generate"):
            return problem.vocabulary.decode(continued(task, tokens, len(prompt), seed)[0, 1:])
        task.compile(sampler=keras_hub.samplers.TopKSampler(k=LIKELY, seed=seed))
        outputs = task.generate(inputs, stop_token_ids=None)["token_ids"]
        tokens = keras.ops.convert_to_numpy(outputs)
    return problem.vocabulary.decode(tokens[0, 1:])


def continued(model: keras.Model, tokens: np.ndarray, known: int, seed: int) -> np.ndarray:
    """Tokens (1, T), of which the first ones are known, with the others drawn one by one."""
    generator, tokens = np.random.default_rng(seed), tokens.copy()
    for place in range(known, tokens.shape[1]):
        mask = (np.arange(tokens.shape[1])[None] < place).astype("int32")
        logits = model.predict_on_batch({"token_ids": tokens, "padding_mask": mask})[0, place - 1]
        likely = np.argsort(logits)[-LIKELY:]
        chances = np.exp(logits[likely].astype("float64") - logits[likely].max())
        tokens[0, place] = generator.choice(likely, p=chances / chances.sum())
    return tokens
