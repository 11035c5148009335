"""A mask whose matrix the caller gives with each call."""

import keras

from keras_graphattn.masks.inputs import Length, Tensors
from keras_graphattn.masks.mask import Mask, Rows
from keras_graphattn.numerics.precision import at_least_float32


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Entries(Mask):
    """M is the tensor `entries` of the call, of shape (T, T), (B, T, T) or (B, N, T, T).

    The entries are booleans, or factors that are not negative. As the matrix exists already, the
    only paths are "dense" and "blockwise".

    Example:

    >>> mask = Entries()
    >>> x = np.array([1.0, 10.0], "float32").reshape((1, 2, 1, 1))
    >>> outputs = mask.apply(x, entries=np.array([[True, True], [False, True]]))
    >>> keras.ops.convert_to_numpy(outputs).ravel().tolist()
    [11.0, 10.0]
    """

    inputs_at_call = ("entries",)

    def _matrix(self, length: Length, parameters: Tensors, inputs: Tensors) -> Rows:
        entries = at_least_float32(inputs["entries"])
        rank = len(entries.shape)
        if rank == 2:
            return entries[None, None]
        return entries[:, None] if rank == 3 else entries  # (1 or B, 1 or N, T, T)
