"""Training that stops where its numbers end, and says where that began."""

import math
from typing import Any

import keras
import numpy as np

from keras_graphattn.hub.sites import walk

Tensor = Any


class StopAtNonFiniteLoss(keras.callbacks.Callback):  # type: ignore[misc]
    """Stops training at the first NaN or infinite loss or weight, with the step and the layer.

    The weights from before each step are kept (in host memory, a copy per step). When the loss is
    not finite, they are put back, the batch runs once more, layer by layer, and the first layer
    whose output is not finite is named. Where a step leaves weights that are not finite after a
    finite loss, it was a gradient, and the layer nearest to the output that has such weights is
    named: gradients run from there. The model is left with the weights from before the step.

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
        self._epoch, self._step = 0, 0
        self._before: list[Any] | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._check_weights()
        self._step = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._check_weights()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        loss = float((logs or {}).get("loss", 0.0))
        if not math.isfinite(loss):
            self._synchronise()
            self._stop(f"the loss is {loss}", self._origin())

    def _synchronise(self) -> None:
        """On JAX, `fit` holds the weights outside the model."""
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()

    def _check_weights(self) -> None:
        """Keeps the weights as they are now, which have to be finite."""
        self._synchronise()
        now = [np.array(keras.ops.convert_to_numpy(w)) for w in self.model.weights]
        wrong = {
            id(w) for w, array in zip(self.model.weights, now, strict=True) if not _finite(array)
        }
        if not wrong:
            self._before = now
            return
        layers = [x for x in walk(self.model) if any(id(w) in wrong for w in _own_weights(x))]
        if self._before is None:
            self._stop("weights are not finite at the start", f"a weight of {_named(layers[0])}")
        self._put_back()
        self._stop("weights are not finite after it", f"the gradient of {_named(layers[-1])}")

    def _put_back(self) -> None:
        for weight, array in zip(self.model.weights, self._before or [], strict=False):
            weight.assign(array)

    def _origin(self) -> str:
        """What was not finite first: the inputs, the output of a layer, or the loss."""
        self._put_back()
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
        raise FloatingPointError(
            f"Training stopped at step {self._step + 1} of epoch {self._epoch + 1}, {what}. "
            f"Not finite first: {origin}"
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


def _own_weights(layer: Any) -> list[Any]:
    inner = {id(w) for other in walk(layer) if other is not layer for w in other.weights}
    return [w for w in layer.weights if id(w) not in inner]


def _named(layer: Any) -> str:
    return f"'{layer.path or layer.name}' ({type(layer).__name__})"


def _finite(array: Any) -> bool:
    array = np.asarray(array)
    return array.dtype.kind in "biuSUO" or bool(np.isfinite(array.astype("float32")).all())
