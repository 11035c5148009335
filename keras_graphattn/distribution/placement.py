"""Placing a model that exists already, such as one converted or loaded outside the scope."""

from typing import Any

import keras

from keras_graphattn.checks import distribution as arguments
from keras_graphattn.distribution.layout import check_layout_map
from keras_graphattn.hub.internals import compiled_metrics, layouts_of, place_again


def distribute(model: Any) -> Any:
    """Places the weights of a built model as the distribution of this program says, in place.

    Keras places weights when they are made: a model that was built, loaded or converted before
    `keras.distribution.set_distribution` has all or some of them on one device, and training
    fails. With this call it trains as if it had been built within the distribution's scope. To
    build a model that does not fit one device's memory, build it under `keras.device("cpu")`, or
    within the scope.

    Args:
        model: A built model or layer. If it is compiled, it must not have been trained yet.

    Returns:
        The model itself.

    Raises:
        ValueError: On another backend than JAX; if no distribution is set; if a rule of its layout
            map matches no weight of the model; and if the optimizer has slots already.

    Example:

    >>> if keras.backend.backend() == "jax":
    ...     layer = GraphFilterAttention(num_heads=2, key_dim=8)
    ...     outputs = layer(keras.random.normal((1, 4, 16)))
    ...     with keras.distribution.DataParallel().scope():
    ...         layer = distribute(layer)
    """
    arguments.check_backend(
        "On tensorflow build and compile the model within the scope of a tf.distribute strategy."
    )
    arguments.built("model", model, {})
    distribution = keras.distribution.distribution()
    if distribution is None:
        raise ValueError(
            "No distribution is set. Call keras.distribution.set_distribution(...) first, or call "
            "this within the distribution's scope: training needs it as well."
        )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and optimizer.built:
        raise ValueError(
            f"The optimizer of '{model.name}' has slots already, on the devices where the weights "
            "were. Place the model before it is trained, or compile it with a new optimizer."
        )
    rules = layouts_of(distribution)
    if rules is not None:
        check_layout_map(model, rules, large=2**62)
    for variable in [*model.variables, *_compiled_state(model)]:
        place_again(variable, distribution)
    return model


def _compiled_state(model: Any) -> list[Any]:
    """What `compile` made: the optimizer's counters and the sums of metrics."""
    optimizer = getattr(model, "optimizer", None)
    found = [] if optimizer is None else list(optimizer.variables)
    found += getattr(model, "metrics_variables", ())
    for metric in compiled_metrics(model):
        found += getattr(metric, "variables", ())
    return found
