"""GPT-2, from scratch or from a preset, with another attention through `convert`, and its training.

Perplexity is the exponential of the mean cross-entropy over all tokens that are counted.
"""

import argparse
from pathlib import Path
from typing import Any

import keras
import keras_hub
import numpy as np

import keras_graphattn
from recipes.causal_lm.data import FORM, Problem, per_word
from recipes.common.attentions import ATTENTIONS, Trial, layer_arguments
from recipes.common.command.parsing import UsageError
from recipes.common.data.batches import Windows
from recipes.common.data.sources import loading_preset
from recipes.common.training.layers import served_inputs
from recipes.common.training.optimizers import WarmUpLinearDecay, with_rates
from recipes.common.training.runs import Training

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
    keras.Model(task.input, task.output).load_weights(weights)
    return task


def build(trial: Trial) -> keras.Model:
    """A causal language model; logits (B, T, vocabulary) of the token after each.

    Its inputs are `token_ids` (B, T) and `padding_mask` (B, T); T is at most the context. With one
    seed, all models start with the same weights, except those that an attention adds.

    Raises:
        UsageError: If there is no such preset, or it cannot be converted so.
    """
    options, size = trial.options, trial.problem.vocabulary.size
    model = _from_preset(options) if options.preset else _from_scratch(size, options)
    verb = ATTENTIONS[trial.attention].convert
    if verb is not None:
        try:
            keras_graphattn.convert(model, verb, **layer_arguments(trial.settings))
        except ValueError as error:
            raise UsageError(f"--attention {trial.attention}: {error}") from error
    return model


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
    logits = keras.layers.Activation("linear", dtype="float32", name="logits")(task(inputs))
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
    """The prompt and its continuation by `generate()`, drawn from the 10 most likely tokens."""
    prompt = prompt_tokens(problem, options)
    length = min(len(prompt) + options.sample_tokens, options.context)
    tokens = np.zeros((1, length), "int32")
    tokens[0, : len(prompt)] = prompt
    if length > len(prompt):
        inputs = {"token_ids": tokens, "padding_mask": np.arange(length)[None] < len(prompt)}
        task.compile(sampler=keras_hub.samplers.TopKSampler(k=10, seed=seed))
        outputs = task.generate(inputs, stop_token_ids=None)["token_ids"]
        tokens = keras.ops.convert_to_numpy(outputs)
    return problem.vocabulary.decode(tokens[0, 1:])
