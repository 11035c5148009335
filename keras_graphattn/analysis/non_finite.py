"""A callback that stops training at the first NaN or infinite loss, and finds its origin."""

import math
from typing import Any

import keras
import numpy as np

from keras_graphattn.hub.sites import walk

Tensor = Any


class StopAtNonFiniteLoss(keras.callbacks.Callback):  # type: ignore[misc]
    """Stops training at the first NaN or infinite loss, and names the step and the layer.

    A step costs no more than with `keras.callbacks.TerminateOnNaN`: the callback only checks the
    loss and copies nothing. It copies the weights once per epoch, on the device.

    When the loss is not finite, the callback restores these weights and runs the batch again. The
    error names the first layer whose output is not finite, or else the loss. If the outputs and
    the loss are all finite, a gradient was not, in this step or in an earlier one. The error then
    names the layer whose weights became NaN or infinite. If there are several, it names the one
    nearest to the output, because gradients flow from there. Afterwards the model has the weights
    from the start of the epoch.

    Args:
        batches: The training batches, such as a `keras.utils.PyDataset`. `batches[step]` must be
            the batch that `fit` uses in that step. Without `batches`, the error names only the
            step.

    Raises:
        FloatingPointError: During `fit`. The message counts steps and epochs from 1.

    Example:

    >>> class Batches(keras.utils.PyDataset):
    ...     num_batches = 1
    ...     def __getitem__(self, index):
    ...         return np.array([[np.inf]], "float32"), np.array([[0.0]], "float32")
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, name="last")])
    >>> model.compile("sgd", "mse", jit_compile=False)
    >>> callback = StopAtNonFiniteLoss(Batches())
    >>> try:
    ...     history = model.fit(Batches(), callbacks=[callback], verbose=0)
    ... except FloatingPointError as error:
    ...     print(str(error).rpartition(": ")[2])
    the inputs of the batch
    """

    def __init__(self, batches: Any = None) -> None:
        if batches is not None and not hasattr(batches, "__getitem__"):
            raise ValueError(
                "`batches` must return the batch of a step as `batches[step]`. Received: "
                f"batches={batches!r}. Leave it out if your batches have no index."
            )
        super().__init__()
        self.batches = batches
        self._epoch = 0
        self._kept: list[Any] = []  # the weights at the start of the epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._synchronise()
        self._kept = [_copied(weight) for weight in self.model.weights]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        loss = float((logs or {}).get("loss", 0.0))
        if not math.isfinite(loss):
            self._stop(f"step {batch + 1}", f"the loss is {loss}", batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._synchronise()
        if self._layers_not_finite():
            self._stop("the last step", "weights are not finite", None)

    def _synchronise(self) -> None:
        """Updates the model's weights: on JAX, `fit` keeps them outside the model."""
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()

    def _layers_not_finite(self) -> list[Any]:
        """Returns the layers, in the model's order, whose weights are now not finite."""
        wrong = {id(w) for w in self.model.weights if not _finite(keras.ops.convert_to_numpy(w))}
        return [x for x in walk(self.model) if any(id(w) in wrong for w in _own_weights(x))]

    def _stop(self, where: str, what: str, step: int | None) -> None:
        """Restores the weights from the start of the epoch and raises the error."""
        self._synchronise()
        layers = self._layers_not_finite()
        for weight, value in zip(self.model.weights, self._kept, strict=False):
            weight.assign(value)
        origin = self._origin_in_batch(step)
        if step is not None and self.batches is None:
            origin = "unknown; pass `batches` to find it"
        elif origin is None:
            origin = f"the gradient of {_named(layers[-1])}" if layers else "unknown"
        self.model.stop_training = True
        raise FloatingPointError(
            f"Training stopped at {where} of epoch {self._epoch + 1}: {what}. First non-finite "
            f"value: {origin}"
        )

    def _origin_in_batch(self, step: int | None) -> str | None:
        """Runs the step's batch with the restored weights; names the first non-finite value."""
        if self.batches is None or step is None:
            return None
        inputs, targets, weights = keras.utils.unpack_x_y_sample_weight(self.batches[step])
        if not all(_finite(np.asarray(x)) for x in keras.tree.flatten(inputs)):
            return "the inputs of the batch"
        found, outputs = _first_non_finite(self.model, inputs)
        if found is not None:
            return f"the output of {_named(found)}"
        targets, weights = (
            None if x is None else keras.tree.map_structure(keras.ops.convert_to_tensor, x)
            for x in (targets, weights)
        )
        loss = self.model.compute_loss(inputs, targets, outputs, weights, training=True)
        finite = _finite(keras.ops.convert_to_numpy(loss))
        return None if finite else "the loss (the outputs are finite)"


def _first_non_finite(model: Any, inputs: Any) -> tuple[Any, Any]:
    """Runs the model; returns the first layer with a non-finite output, if any, and the outputs."""
    found: list[Any] = []

    def watched(layer: Any, call: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            outputs = call(*args, **kwargs)
            tensors = [x for x in keras.tree.flatten(outputs) if hasattr(x, "dtype")]
            if not all(_finite(keras.ops.convert_to_numpy(x)) for x in tensors):
                found.append(layer)
            return outputs

        return run

    layers = [layer for layer in walk(model) if layer is not model]
    try:
        for layer in layers:
            vars(layer)["call"] = watched(layer, layer.call)  # hides the method of the class
        tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, inputs)
        outputs = model(tensors, training=True)
    finally:
        for layer in layers:
            vars(layer).pop("call", None)
    return (found[0] if found else None), outputs


def _copied(weight: Any) -> Tensor:
    """Copies a weight on its device, because `fit` on JAX reuses the arrays of a step."""
    return keras.ops.stop_gradient(keras.ops.copy(weight.value))


def _own_weights(layer: Any) -> list[Any]:
    """Returns the weights of a layer without those of its sublayers."""
    inner = {id(w) for other in walk(layer) if other is not layer for w in other.weights}
    return [w for w in layer.weights if id(w) not in inner]


def _named(layer: Any) -> str:
    return f"'{layer.path or layer.name}' ({type(layer).__name__})"


def _finite(array: Any) -> bool:
    """Returns whether no entry is NaN or infinite; integers and text always are finite."""
    array = np.asarray(array)
    return array.dtype.kind in "biuSUO" or bool(np.isfinite(array.astype("float32")).all())
