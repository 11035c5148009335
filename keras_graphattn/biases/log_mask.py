"""The logarithm of a mask of factors, as a bias."""

from typing import Any

import keras
from keras import ops

from keras_graphattn import masks
from keras_graphattn.biases.bias import Bias
from keras_graphattn.keras_internals import move
from keras_graphattn.masks.inputs import Arrays, Flags, Length, Tensors
from keras_graphattn.masks.mask import Mask, Positions, Rows, Shape
from keras_graphattn.serialization import restored
from keras_graphattn.types import Bool, Float, Tensor


@keras.saving.register_keras_serializable(package="keras_graphattn")
class LogMask(Bias):
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

    def __init__(self, mask: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mask = masks.get(mask)
        self._share_multiplier()
        self.inputs_at_call, self.hides_keys = self.mask.inputs_at_call, True
        self.reads_tokens = self.mask.reads_tokens

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        if not self.mask.built:
            self.mask.build(input_shape)
        elif self.mask._parent is None:
            move(self.mask, self)

    @property
    def given_inputs(self) -> tuple[str, ...]:
        return self.mask.given_inputs

    def build_reader(self, tokens_shape: Shape) -> None:
        self.mask.build_reader(tokens_shape)

    def inputs_of_tokens(
        self, tokens: Float[Tensor, "B T d"], kept: Bool[Tensor, "B T"] | None
    ) -> Tensors:
        return self.mask.inputs_of_tokens(tokens, kept)

    def empty_inputs(self, batch_size: int, length: int, num_heads: int) -> Tensors:
        return self.mask.empty_inputs(batch_size, length, num_heads)

    def parameters(self) -> Tensors:
        return self.mask.parameters()

    def _matrix(self, length: Length, parameters: Tensors, inputs: Tensors) -> Rows:
        return _log(self.mask._matrix(length, parameters, inputs))

    def _rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
        return _log(self.mask._rows(positions, length, parameters, inputs))

    def _block_rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
        return _log(self.mask._block_rows(positions, length, parameters, inputs))

    def _check_built(self) -> None:
        self.mask._check_built()

    def _check_length(self, length: int) -> None:
        self.mask._check_length(length)

    def _check_values(self, inputs: Arrays, length: int | None) -> bool:
        return self.mask._check_values(inputs, length)

    def _bounded(self, inputs: Tensors, length: Length) -> tuple[Tensors, Flags]:
        return self.mask._bounded(inputs, length)

    @property
    def _own_length(self) -> int | None:
        return self.mask._own_length

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "mask": keras.saving.serialize_keras_object(self.mask)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "LogMask":
        return cls(**{**config, "mask": restored("mask", config.get("mask"))})


def _log(factors: Rows) -> Rows:
    """log M, minus infinity where M is 0; its gradient there is 0."""
    hidden = ops.equal(factors, 0.0)
    logarithms = ops.log(ops.where(hidden, ops.cast(1.0, factors.dtype), factors))
    return ops.where(hidden, ops.cast(-float("inf"), factors.dtype), logarithms)
