"""A mask whose matrix the caller brings with each call."""

from typing import Any

import keras
from keras import ops

from keras_graphattn.masks.mask import Mask, Tensors
from keras_graphattn.ops.precision.float32 import at_least_float32

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Entries(Mask):
    """M = the tensor `entries` of the call: (T, T), (B, T, T) or (B, N, T, T).

    Booleans, or factors that are not negative. The matrix exists, so there is no faster path than
    "blockwise".

    Example:

    >>> mask = Entries()
    >>> x = np.array([1.0, 10.0], "float32").reshape((1, 2, 1, 1))
    >>> outputs = mask.apply(x, entries=np.array([[True, True], [False, True]]))
    >>> keras.ops.convert_to_numpy(outputs).ravel().tolist()
    [11.0, 10.0]
    """

    inputs_at_call = ("entries",)

    def _matrix(self, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        entries = inputs["entries"]
        rank = len(entries.shape)
        if rank not in (2, 3, 4):
            raise ValueError(
                "The entries of a mask must have shape (T, T), (B, T, T) or (B, N, T, T). "
                f"Received: shape={tuple(entries.shape)}"
            )
        entries = at_least_float32(entries)
        if rank == 2:
            return entries[None, None]
        return entries[:, None] if rank == 3 else entries

    def _known_length(self, inputs: Tensors) -> Any:
        return ops.shape(inputs["entries"])[-1]
