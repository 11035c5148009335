"""The causal mask: each token sees itself and what came before."""

from typing import Any

import keras
from keras import ops

from keras_graphattn.masks.mask import Mask, Tensors

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Causal(Mask):
    """M[i, j] = 1 for j <= i, else 0.

    Example:

    >>> mask = Causal()
    >>> keras.ops.convert_to_numpy(mask.dense(3))[0, 0].tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    >>> x = np.array([1.0, 10.0, 100.0], "float32").reshape((1, 3, 1, 1))
    >>> keras.ops.convert_to_numpy(mask.apply(x)).ravel().tolist()
    [1.0, 11.0, 111.0]
    """

    paths = ("dense", "blockwise", "chunked")

    @property
    def is_causal(self) -> bool:
        return True

    def _rows(self, positions: Tensor, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        seen = ops.arange(length)[None, :] <= positions[:, None]
        return ops.cast(seen, "float32")[None, None]

    def _signal(self, x: Tensor, path: str, parameters: Tensors, inputs: Tensors) -> Tensor:
        return ops.cumsum(x, axis=1)
