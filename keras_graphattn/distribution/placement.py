"""Places a model that already exists, such as one converted or loaded outside the scope."""

from typing import Any

import keras

from keras_graphattn.distribution.checks import built, check_backend
from keras_graphattn.distribution.layout import check_layout_map
from keras_graphattn.keras_internals import compiled_metrics, layouts_of, place_again


def distribute(model: Any) -> Any:
    """Places the weights of a built model according to the current distribution, in place.

    Keras places weights when it creates them. If a model was built, loaded or converted before
    `keras.distribution.set_distribution`, all or some of its weights are on one device, and
    training fails. After this call it trains like a model that was built within the
    distribution's scope. If a model does not fit into the memory of one device, build it under
    `keras.device("cpu")` or within the scope.

    Args:
        model: A built model or layer. It may be compiled, but not trained yet.

    Returns:
        The model itself.

    Raises:
        ValueError: If the backend is not JAX, no distribution is set, a rule of its layout map
            matches no weight of the model, or the optimizer already has slot variables.

    Example:

    >>> if keras.backend.backend() == "jax":
    ...     layer = GraphFilterAttention(num_heads=2, key_dim=8)
    ...     outputs = layer(keras.random.normal((1, 4, 16)))
    ...     with keras.distribution.DataParallel().scope():
    ...         layer = distribute(layer)
    """
    check_backend(
        "On tensorflow, build and compile the model in the scope of a tf.distribute strategy."
    )
    built("model", model, {})
    distribution = keras.distribution.distribution()
    if distribution is None:
        raise ValueError(
            "No distribution is set. Call keras.distribution.set_distribution(...) first, or call "
            "this within the distribution's scope. Training needs the distribution as well."
        )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and optimizer.built:
        raise ValueError(
            f"The optimizer of '{model.name}' already has slot variables, on the devices where the "
            "weights were. Place the model before training, or compile it with a new optimizer."
        )
    rules = layouts_of(distribution)
    if rules is not None:
        check_layout_map(model, rules, large=2**62)
    for variable in [*model.variables, *_compiled_state(model)]:
        place_again(variable, distribution)
    return model


def _compiled_state(model: Any) -> list[Any]:
    """Returns the variables that `compile` created: the optimizer's, and those of metrics."""
    optimizer = getattr(model, "optimizer", None)
    found = [] if optimizer is None else list(optimizer.variables)
    found += getattr(model, "metrics_variables", ())
    for metric in compiled_metrics(model):
        found += getattr(metric, "variables", ())
    return found
