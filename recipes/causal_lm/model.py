"""GPT-2, from scratch or from a preset, with another attention put in by `convert`."""

import argparse
from typing import Any

import keras
import keras_hub

import keras_graphattn
from keras_graphattn.optimizers import with_coefficient_rates
from recipes.causal_lm.arguments import settings
from recipes.causal_lm.metrics import Perplexity
from recipes.common.attentions import ATTENTIONS, layer_arguments
from recipes.common.command import UsageError
from recipes.common.optimizers import WarmUpLinearDecay
from recipes.common.served import served_inputs


def build(attention: str, vocabulary_size: int, options: argparse.Namespace) -> keras.Model:
    """A causal language model; logits (B, T, vocabulary) of the token after each.

    Its inputs are `token_ids` (B, T) and `padding_mask` (B, T); T is at most the context. A model
    of one seed starts with the same weights whatever its attention, but for those that the
    attention adds.

    Args:
        attention: A name of `ATTENTIONS`.
        vocabulary_size: Number of different tokens.
        options: The command line's options.

    Raises:
        UsageError: If there is no such preset, or it cannot be converted so.
    """
    model = _from_preset(options) if options.preset else _from_scratch(vocabulary_size, options)
    verb = ATTENTIONS[attention].convert
    if verb is not None:
        try:
            keras_graphattn.convert(model, verb, **layer_arguments(settings(options)[attention]))
        except ValueError as error:
            raise UsageError(f"--attention {attention}: {error}") from error
    return model


def tokenizer(options: argparse.Namespace) -> Any:
    """The tokenizer of `--preset`."""
    try:
        return keras_hub.models.Tokenizer.from_preset(options.preset)
    except Exception as error:  # KerasHub raises whatever the network or the disk met
        raise _no_preset(options, error) from error


def trainer(task: keras.Model, options: argparse.Namespace, steps: int) -> keras.Model:
    """The same layers as a plain Keras model, compiled for Adam, to train and to evaluate.

    KerasHub's tasks take no batches made outside of TensorFlow. Loss and metrics are means over
    the tokens that are counted.
    """
    model = keras.Model(task.input, task.output, name=task.name)
    rate = WarmUpLinearDecay(options.learning_rate, options.warm_up, steps)
    model.compile(
        optimizer=with_coefficient_rates(keras.optimizers.Adam(rate, global_clipnorm=1.0)),
        loss=keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
        weighted_metrics=[
            keras.metrics.SparseCategoricalCrossentropy(name="cross_entropy", from_logits=True),
            Perplexity(name="perplexity"),
        ],
    )
    return model


def served(task: keras.Model, options: argparse.Namespace) -> keras.Model:
    """What the SavedModel is made of, for texts of up to the context."""
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
    try:
        model = keras_hub.models.CausalLM.from_preset(
            options.preset, preprocessor=None, dtype=options.precision
        )
    except Exception as error:  # KerasHub raises whatever the network or the disk met
        raise _no_preset(options, error) from error
    longest = getattr(model.backbone, "max_sequence_length", options.context)
    if options.context > longest:
        raise UsageError(
            f"--context {options.context}: --preset {options.preset} takes {longest} tokens at most"
        )
    return model


def _no_preset(options: argparse.Namespace, error: Exception) -> UsageError:
    return UsageError(
        f"--preset {options.preset} cannot be loaded as a causal language model with its tokenizer:"
        f" {type(error).__name__}: {str(error)[:300]} (without a network, give a preset's folder)"
    )
