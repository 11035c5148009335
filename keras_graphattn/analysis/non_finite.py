"""A callback that stops training at the first NaN or infinite loss, and finds its origin."""

import functools
import math
from collections.abc import Callable, Sequence

import keras
import numpy as np
from keras import ops

from keras_graphattn.keras_internals import replaced_attributes, walk
from keras_graphattn.types import Tensor


class StopAtNonFiniteLoss(keras.callbacks.Callback):  # type: ignore[misc]
    """Stops training at the first NaN or infinite loss, and names the step and the layer.

    A step costs no more than with `keras.callbacks.TerminateOnNaN`: the callback only checks the
    loss and copies nothing. It copies the weights once per epoch, on the device.

    When the loss is not finite, the callback restores these weights and runs the batch again. The
    error names the first layer whose output is not finite, or else the loss. If the outputs and
    the loss are all finite, a gradient was not, in this step or in an earlier one. The error then
    names the weight that became NaN or infinite, by its path. If there are several, it names the
    last, because gradients flow from the output. Afterwards the model has the weights from the
    start of the epoch.

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

    def __init__(self, batches: Sequence[object] | keras.utils.PyDataset | None = None) -> None:
        if batches is not None and not hasattr(batches, "__getitem__"):
            raise ValueError(
                "`batches` must return the batch of a step as `batches[step]`. Received: "
                f"batches={batches!r}. Leave it out if your batches have no index."
            )
        super().__init__()
        self.batches = batches
        self._epoch = 0
        self._values: list[Tensor] = []  # of the weights at the start of the epoch

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._epoch = epoch
        self._synchronise()
        # `fit` on JAX reuses the arrays of a step: copy them, on their device
        self._values = [ops.stop_gradient(ops.copy(weight.value)) for weight in self.model.weights]

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        loss = float((logs or {}).get("loss", 0.0))
        if not math.isfinite(loss):
            self._stop(f"step {batch + 1}", f"the loss is {loss}", batch)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._synchronise()
        if self._weights_not_finite():
            self._stop("the last step", "weights are not finite", None)

    def _synchronise(self) -> None:
        """Updates the model's weights: on JAX, `fit` keeps them outside the model."""
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()

    def _weights_not_finite(self) -> list[str]:
        """The paths of weights that are not finite, in the model's order."""
        return [weight.path for weight in self.model.weights if not _is_finite(weight)]

    def _stop(self, where: str, what: str, step: int | None) -> None:
        """Restores the weights from the start of the epoch and raises the error."""
        self._synchronise()
        paths = self._weights_not_finite()
        for weight, value in zip(self.model.weights, self._values, strict=False):
            weight.assign(value)
        origin = f"the gradient of '{paths[-1]}'" if paths else "unknown"
        if step is not None and self.batches is None:
            origin = "unknown; pass `batches` to find it"
        elif step is not None and self.batches is not None:
            origin = self._origin_in(self.batches[step]) or origin
        self.model.stop_training = True
        raise FloatingPointError(
            f"Training stopped at {where} of epoch {self._epoch + 1}: {what}. First non-finite "
            f"value: {origin}"
        )

    def _origin_in(self, batch: object) -> str | None:
        """Runs a batch with the restored weights; names the first non-finite value."""
        inputs, targets, weights = keras.tree.map_structure(
            lambda x: None if x is None else ops.convert_to_tensor(x),
            keras.utils.unpack_x_y_sample_weight(batch),
        )
        if not _is_finite(inputs):
            return "the inputs of the batch"
        layers: list[keras.Layer] = []  # with a non-finite output, in the order of their calls

        def watched(
            layer: keras.Layer, call: Callable[..., object], *args: object, **kwargs: object
        ) -> object:
            outputs = call(*args, **kwargs)
            if not _is_finite(outputs):
                layers.append(layer)
            return outputs

        inner = [layer for layer in walk(self.model) if layer is not self.model]
        hooks = [(layer, "call", functools.partial(watched, layer, layer.call)) for layer in inner]
        with replaced_attributes(hooks):
            outputs = self.model(inputs, training=True)
        if layers:
            return f"the output of '{layers[0].path}' ({type(layers[0]).__name__})"
        loss = self.model.compute_loss(inputs, targets, outputs, weights, training=True)
        return None if _is_finite(loss) else "the loss (the outputs are finite)"


def _is_finite(values: object) -> bool:
    """Whether no number in a tensor, or in a structure of them, is NaN or infinite."""
    tensors = [x for x in keras.tree.flatten(values) if hasattr(x, "dtype")]
    floats = [x for x in tensors if "float" in keras.backend.standardize_dtype(x.dtype)]
    return all(
        bool(np.isfinite(ops.convert_to_numpy(ops.cast(x, "float32"))).all()) for x in floats
    )
