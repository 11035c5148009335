"""How an image model is trained: AdamW along a cosine, with moving averages of its weights."""

import argparse

import keras

from recipes.common.training.averages import averaged
from recipes.common.training.coefficients import with_rates
from recipes.common.training.measures import one_hot_loss_and_metrics

NOT_DECAYED = (
    *("bias", "gamma", "beta", "table", "vector", "scale", "log_factors", "coefficient"),
    *("embedding", "token", "lambda"),  # of KerasHub's models
)


def compile_model(
    model: keras.Model, classes: int, steps: int, options: argparse.Namespace
) -> None:
    """Compiles for AdamW: a linear warm-up, then half a cosine; matrices only decay.

    Args:
        model: The model.
        classes: Number of classes.
        steps: Batches of an epoch.
        options: The command line's options.
    """
    all_steps = options.epochs * steps  # Keras counts those that only accumulate too
    warm_up = min(round(options.warm_up_epochs * steps), all_steps - 1)
    peak = options.learning_rate
    rate = keras.optimizers.schedules.CosineDecay(
        peak if warm_up == 0 else 0.0,
        all_steps - warm_up,
        alpha=min(1.0, options.final_learning_rate / peak),
        warmup_target=None if warm_up == 0 else peak,
        warmup_steps=warm_up,
    )
    optimizer = keras.optimizers.AdamW(
        rate,
        weight_decay=options.weight_decay,
        **averaged(options.ema),
        gradient_accumulation_steps=options.accumulate if options.accumulate > 1 else None,
    )
    optimizer.exclude_from_weight_decay(var_names=list(NOT_DECAYED))
    model.compile(
        optimizer=with_rates(optimizer, model),
        **one_hot_loss_and_metrics(classes, options.label_smoothing),
    )
