"""The logarithm of a mask of factors, as a bias."""

from typing import Any

import keras
from keras import ops

from keras_graphattn import masks
from keras_graphattn.biases.bias import Bias
from keras_graphattn.masks.composed import Composed
from keras_graphattn.masks.mask import Mask, Rows


@keras.saving.register_keras_serializable(package="keras_graphattn")
class LogMask(Composed, Bias):
    """b = log M of a mask M of `keras_graphattn.masks`: the factors multiply the softmax weights.

        A = softmax(S + log M) = D^-1 [exp(S) o M],   D the row sums

    A factor of 0 hides the key. With `masks.GatedDecay`, softmax attention forgets as the tokens
    decide (Lin et al., "Forgetting Transformer", arXiv 2503.02130). With `masks.RandomWalk`,
    `GraphFilterAttention` is then graph kernel attention (GKAT) in its dense form, with a filter.

    Args:
        mask: A mask of `keras_graphattn.masks`, or the name of one that needs no argument. The
            tensors that it needs at each call are `bias_inputs`.
        **kwargs: `name`, `trainable` and `dtype` of a Keras layer, and
            `coefficient_learning_rate_multiplier`, the property, which holds for the mask's
            weights if the mask was given none.

    Weights:
        Those of the mask.

    Raises:
        ValueError: For anything that is not a mask.

    Example:

    >>> from keras_graphattn.masks import Causal
    >>> keras.ops.convert_to_numpy(LogMask(Causal()).dense(2))[0, 0].tolist()
    [[0.0, -inf], [0.0, 0.0]]

    Source: Choromanski et al., arXiv 2107.07999 (ICML 2022), Section 4.2, for any mask.
    """

    mask: Mask
    _parts_name = "mask"

    def __init__(self, mask: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mask = masks.get(mask)
        self._share_multiplier()
        self._take_inputs()
        self.hides_keys = True

    def _combined(self, rows: list[Rows]) -> Rows:
        """log M, minus infinity where M is 0; its gradient there is 0."""
        (factors,) = rows
        hidden = ops.equal(factors, 0.0)
        logarithms = ops.log(ops.where(hidden, ops.cast(1.0, factors.dtype), factors))
        return ops.where(hidden, ops.cast(-float("inf"), factors.dtype), logarithms)
