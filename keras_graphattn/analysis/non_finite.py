"""Training that stops where its numbers end, and says where that began."""

import math
from typing import Any

import keras
import numpy as np

from keras_graphattn.hub.sites import walk

Tensor = Any


class StopAtNonFiniteLoss(keras.callbacks.Callback):  # type: ignore[misc]
    """Stops training at the first NaN or infinite loss or weight, with the step and the layer.

    Copies of the weights from before the last two steps are kept, on the device. When the loss is
    not finite, the last are put back, the batch runs once more, layer by layer, and the first
    layer whose output is not finite is named. If those weights are not finite themselves, it was
    a gradient of the step before, and the layer nearest to the output that has such weights is
    named: gradients run from there. The model is left with the weights from before that step.

    Args:
        batches: The training batches, such as a `keras.utils.PyDataset`: `batches[step]` is what
            `fit` trains on in that step. Without them the step is named, and a layer only where
            weights tell it.

    Raises:
        FloatingPointError: In `fit`. Steps and epochs count from 1.

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
                "`batches` must give the batch of a step as `batches[step]`. Received: "
                f"batches={batches!r}. Leave it out where there is no such thing."
            )
        super().__init__()
        self.batches = batches
        self._epoch, self._step, self._epoch_of_step = 0, 0, 0
        self._previous = (0, 0)
        self._before: list[Any] | None = None  # this step
        self._earlier: list[Any] | None = None  # the step before

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._synchronise()
        self._earlier, self._before = self._before, [_copied(w) for w in self.model.weights]
        self._previous, self._step = (self._epoch_of_step, self._step), batch
        self._epoch_of_step = self._epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        loss = float((logs or {}).get("loss", 0.0))
        if math.isfinite(loss):
            return
        self._synchronise()
        layers = self._layers_not_finite(self._before)
        if not layers:
            self._put_back(self._before)
            self._stop(f"the loss is {loss}", self._origin())
        if self._earlier is None:
            self._stop("weights are not finite at the start", f"a weight of {_named(layers[0])}")
        self._epoch_of_step, self._step = self._previous
        self._put_back(self._earlier)
        self._stop("weights are not finite after it", f"the gradient of {_named(layers[-1])}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._synchronise()
        layers = self._layers_not_finite([w.value for w in self.model.weights])
        if layers and self._before is not None:
            self._put_back(self._before)
            self._stop("weights are not finite after it", f"the gradient of {_named(layers[-1])}")

    def _synchronise(self) -> None:
        """On JAX, `fit` holds the weights outside the model."""
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()

    def _layers_not_finite(self, values: list[Any] | None) -> list[Any]:
        """The layers, in the model's order, with weights that are not finite in `values`."""
        pairs = zip(self.model.weights, values or [], strict=False)
        wrong = {id(w) for w, v in pairs if not _finite(keras.ops.convert_to_numpy(v))}
        return [x for x in walk(self.model) if any(id(w) in wrong for w in _own_weights(x))]

    def _put_back(self, values: list[Any] | None) -> None:
        for weight, value in zip(self.model.weights, values or [], strict=False):
            weight.assign(value)

    def _origin(self) -> str:
        """What was not finite first: the inputs, the output of a layer, or the loss."""
        if self.batches is None:
            return "unknown without the batches (argument `batches`)"
        batch = self.batches[self._step]
        inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
        if not all(_finite(np.asarray(x)) for x in keras.tree.flatten(inputs)):
            return "the inputs of the batch"
        found = _first_non_finite(self.model, inputs)
        return "the loss, of finite outputs" if found is None else f"the output of {_named(found)}"

    def _stop(self, what: str, origin: str) -> None:
        self.model.stop_training = True
        step, epoch = self._step + 1, self._epoch_of_step + 1
        raise FloatingPointError(
            f"Training stopped at step {step} of epoch {epoch}, {what}. Not finite first: {origin}"
        )


def _first_non_finite(model: Any, inputs: Any) -> Any:
    """The layer whose output is not finite first when the model runs; None if all are."""
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
            vars(layer)["call"] = watched(layer, layer.call)
        model(keras.tree.map_structure(keras.ops.convert_to_tensor, inputs), training=True)
    finally:
        for layer in layers:
            vars(layer).pop("call", None)
    return found[0] if found else None


def _copied(weight: Any) -> Tensor:
    """A copy on the same device: `fit` on JAX gives away the arrays of a step."""
    return keras.ops.stop_gradient(keras.ops.copy(weight.value))


def _own_weights(layer: Any) -> list[Any]:
    inner = {id(w) for other in walk(layer) if other is not layer for w in other.weights}
    return [w for w in layer.weights if id(w) not in inner]


def _named(layer: Any) -> str:
    return f"'{layer.path or layer.name}' ({type(layer).__name__})"


def _finite(array: Any) -> bool:
    array = np.asarray(array)
    return array.dtype.kind in "biuSUO" or bool(np.isfinite(array.astype("float32")).all())
