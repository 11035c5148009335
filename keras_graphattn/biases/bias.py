"""The base of all biases: a matrix of numbers that are added to the scores of attention.

    A = softmax(Q K^T / sqrt(H) + b),   b[i, j] a number for each pair of positions and head

A bias returns its matrix whole (`dense`) or some rows at a time (`rows`), so attention in blocks
and decoding never form all of it.
"""

import functools
import operator
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from keras_graphattn.checks import is_list
from keras_graphattn.masks.composed import Composed
from keras_graphattn.masks.mask import Mask, PairMatrix, Rows, widest_dtype
from keras_graphattn.masks.mask import get as get_mask
from keras_graphattn.serialization import resolve
from keras_graphattn.types import Tensor

NEAR_ZERO = keras.initializers.RandomNormal(stddev=0.02)  # as Graphormer's tables start

BIASES: dict[str, type["Bias"]] = {}  # by name; filled by `keras_graphattn.biases`


class Bias(PairMatrix):
    """b, a T x T matrix of numbers per head that softmax attention adds to its scores.

    A subclass names its `inputs_at_call` and writes at least one of `_matrix` and `_rows`, as a
    mask of `keras_graphattn.masks` does. A row of minus infinities sees nothing.

    A bias with weights belongs to one layer. To share one between layers, build it for the number
    of heads, call it once, and give the result to each layer as `attention_bias`, as below.

    Args:
        **kwargs: `name`, `trainable` and `dtype` of a Keras layer, and
            `coefficient_learning_rate_multiplier`, the property, 1 by default.

    Attributes:
        inputs_at_call: Names of the tensors that every call needs, such as `distances`.
        hides_keys: Whether some b[i, j] may be minus infinity, which hides key j from query i.

    A call checks the values of its inputs if they are known, as a call of a mask does.

    Example:

    >>> class Near(Bias):
    ...     def _rows(self, positions, length, parameters, inputs):
    ...         keys = keras.ops.arange(length, dtype="int32")
    ...         near = keras.ops.abs(positions[:, None] - keys[None, :]) <= 1
    ...         return keras.ops.cast(near, "float32")[None, None]
    >>> keras.ops.convert_to_numpy(Near().dense(3))[0, 0].tolist()
    [[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]
    >>> from keras_graphattn.layers import GraphFilterAttention
    >>> bias, tokens = Near(), keras.random.normal((1, 3, 8))
    >>> bias.build((None, None, 2, None))
    >>> matrix = bias(length=3)
    >>> for layer in [GraphFilterAttention(2, 4), GraphFilterAttention(2, 4)]:
    ...     tokens = layer(tokens, attention_bias=matrix)
    """

    default_multiplier: ClassVar[float] = 1.0
    kind: ClassVar[str] = "bias"
    hides_keys = False

    def __init__(self, *args: object, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.supports_masking = True

    def call(self, length: int | None = None, **inputs: Tensor) -> Rows:
        """The matrix, (1 or B, 1 or N, T, T): `dense`, as a layer in a model."""
        return self.dense(length, **inputs)


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Sum(Composed, Bias):
    """b = b_1 + b_2 + ..., such as Graphormer's biases for distances and for edges on paths.

    Args:
        biases: Two or more biases, or names of biases that need no argument.
        **kwargs: Those of every `Bias`.

    Raises:
        ValueError: For fewer than two biases, and for anything that is not a bias.

    Example:

    >>> from keras_graphattn.biases import Alibi
    >>> bias = Sum([Alibi(0.5), Alibi(0.25)])
    >>> bias.build((None, None, 1, None))
    >>> keras.ops.convert_to_numpy(bias.dense(2))[0, 0].tolist()
    [[0.0, -0.75], [-0.75, 0.0]]
    """

    _parts_name = "biases"

    def __init__(self, biases: Sequence[Bias | str | dict[str, Any]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not is_list(biases) or len(biases) < 2:
            raise ValueError(
                "`biases` must be a list of two or more biases of keras_graphattn.biases. "
                f"Received: biases={biases!r}"
            )
        self.biases: list[Bias] = [get(bias) for bias in biases]
        self._share_multiplier()
        self._take_inputs()
        read = [name for bias in self.biases if bias.reads_tokens for name in bias.inputs_at_call]
        if len(set(read)) < len(read):
            raise ValueError(
                "Two terms of a sum read a tensor of the same name from the tokens. Received: "
                f"biases={[type(bias).__name__ for bias in self.biases]}, which read {read}. Use "
                "one of them."
            )
        self.hides_keys = any(bias.hides_keys for bias in self.biases)

    def _combined(self, rows: list[Rows]) -> Rows:
        dtype = widest_dtype(rows)
        return functools.reduce(operator.add, (ops.cast(term, dtype) for term in rows))


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
        self.mask = get_mask(mask)
        self._share_multiplier()
        self._take_inputs()
        self.hides_keys = True

    def _combined(self, rows: list[Rows]) -> Rows:
        """log M, minus infinity where M is 0; its gradient there is 0."""
        (factors,) = rows
        hidden = ops.equal(factors, 0.0)
        logarithms = ops.log(ops.where(hidden, ops.cast(1.0, factors.dtype), factors))
        return ops.where(hidden, ops.cast(-float("inf"), factors.dtype), logarithms)


def get(bias: Any) -> Bias:
    """The bias for a layer's argument `bias`.

    Args:
        bias: A `Bias`, its configuration, or a name from `BIASES` of one that needs no argument.

    Raises:
        ValueError: For other values.

    Example:

    >>> type(get("alibi")).__name__
    'Alibi'
    """
    if hasattr(bias, "shape"):
        raise ValueError(
            f"`bias` must be a bias of keras_graphattn.biases. Received: a {type(bias).__name__} "
            f"of shape {tuple(bias.shape)}. To add a matrix to the scores, call the layer with "
            "attention_bias=matrix."
        )
    return resolve("bias", bias, Bias, BIASES)
