"""The base of all biases: a matrix of numbers that are added to the scores of attention.

    A = softmax(Q K^T / sqrt(H) + b),   b[i, j] a number for each pair of positions and head

A bias returns its matrix whole (`dense`) or some rows at a time (`rows`), so attention in blocks
and decoding never form all of it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from keras_graphattn.checks import is_list
from keras_graphattn.keras_internals import move
from keras_graphattn.masks.inputs import Arrays, Flags, Length, Tensors, either
from keras_graphattn.masks.mask import PairMatrix, Positions, Rows, Shape, widest_dtype
from keras_graphattn.serialization import resolve, restored
from keras_graphattn.types import Bool, Float, Tensor

BIASES: dict[str, type["Bias"]] = {}  # by name; filled by `keras_graphattn.biases`


class Bias(PairMatrix):
    """b, a T x T matrix of numbers per head that softmax attention adds to its scores.

    A subclass names its `inputs_at_call` and writes at least one of `_matrix` and `_rows`, as a
    mask of `keras_graphattn.masks` does. A row of minus infinities sees nothing.

    A bias with weights belongs to one layer. To share one between layers, build it for the number
    of heads, call it once, and give the result to each layer as `attention_bias`, as below.

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

    def _add_table(self, name: str, *shape: int) -> None:
        """A weight with numbers for each head that start near 0, as those of Graphormer do."""
        self._parameter_names = (*self._parameter_names, name)
        weight = self.add_weight(
            name=name,
            shape=(*shape, self.num_heads),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            autocast=False,
        )
        setattr(self, name, weight)


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Sum(Bias):
    """b = b_1 + b_2 + ..., such as Graphormer's biases for distances and for edges on paths.

    Args:
        biases: Two or more biases, or names of biases that need no argument.
        **kwargs: `name`, `trainable` and `dtype` of a Keras layer, and
            `coefficient_learning_rate_multiplier`, the property, 1 by default.

    Raises:
        ValueError: For fewer than two biases, and for anything that is not a bias.

    Example:

    >>> from keras_graphattn.biases import Alibi
    >>> bias = Sum([Alibi(0.5), Alibi(0.25)])
    >>> bias.build((None, None, 1, None))
    >>> keras.ops.convert_to_numpy(bias.dense(2))[0, 0].tolist()
    [[0.0, -0.75], [-0.75, 0.0]]
    """

    def __init__(self, biases: Sequence[Bias | str | dict[str, Any]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not is_list(biases) or len(biases) < 2:
            raise ValueError(
                "`biases` must be a list of two or more biases of keras_graphattn.biases. "
                f"Received: biases={biases!r}"
            )
        self.biases: list[Bias] = [get(bias) for bias in biases]
        self._share_multiplier()
        names = [name for bias in self.biases for name in bias.inputs_at_call]
        self.inputs_at_call = tuple(dict.fromkeys(names))
        read = [name for bias in self.biases if bias.reads_tokens for name in bias.inputs_at_call]
        if len(set(read)) < len(read):
            raise ValueError(
                "Two terms of a sum read a tensor of the same name from the tokens. Received: "
                f"biases={[type(bias).__name__ for bias in self.biases]}, which read {read}. Use "
                "one of them."
            )
        self.hides_keys = any(bias.hides_keys for bias in self.biases)
        self.reads_tokens = any(bias.reads_tokens for bias in self.biases)

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        for bias in self.biases:
            if not bias.built:
                bias.build(input_shape)
            elif bias._parent is None:
                move(bias, self)

    @property
    def given_inputs(self) -> tuple[str, ...]:
        names = [name for bias in self.biases for name in bias.given_inputs]
        return tuple(dict.fromkeys(names))

    def build_reader(self, tokens_shape: Shape) -> None:
        for bias in self.biases:
            bias.build_reader(tokens_shape)

    def inputs_of_tokens(
        self, tokens: Float[Tensor, "B T d"], kept: Bool[Tensor, "B T"] | None
    ) -> Tensors:
        read: Tensors = {}
        for bias in self.biases:
            read |= bias.inputs_of_tokens(tokens, kept)
        return read

    def empty_inputs(self, batch_size: int, length: int, num_heads: int) -> Tensors:
        empty: Tensors = {}
        for bias in self.biases:
            empty |= bias.empty_inputs(batch_size, length, num_heads)
        return empty

    def parameters(self) -> Tensors:
        return {
            f"{place} {name}": tensor
            for place, bias in enumerate(self.biases)
            for name, tensor in bias.parameters().items()
        }

    def _each(
        self, parameters: Tensors, inputs: Tensors
    ) -> Iterator[tuple[Bias, Tensors, Tensors]]:
        """The biases, each with its own parameters and inputs."""
        for place, bias in enumerate(self.biases):
            start = f"{place} "
            own = (name for name in parameters if name.startswith(start))
            weights = {name.removeprefix(start): parameters[name] for name in own}
            yield bias, weights, {n: inputs[n] for n in bias.inputs_at_call if n in inputs}

    def _matrix(self, length: Length, parameters: Tensors, inputs: Tensors) -> Rows:
        return _added([b._matrix(length, *own) for b, *own in self._each(parameters, inputs)])

    def _rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
        each = self._each(parameters, inputs)
        return _added([bias._rows(positions, length, *own) for bias, *own in each])

    def _block_rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
        each = self._each(parameters, inputs)
        return _added([bias._block_rows(positions, length, *own) for bias, *own in each])

    def _check_built(self) -> None:
        for bias in self.biases:
            bias._check_built()

    def _check_length(self, length: int) -> None:
        for bias in self.biases:
            bias._check_length(length)

    def _check_values(self, inputs: Arrays, length: int | None) -> bool:
        each = self._each({}, inputs)
        are_usable = [bias._check_values(tensors, length) for bias, _, tensors in each]
        return all(are_usable)

    def _bounded(self, inputs: Tensors, length: Length) -> tuple[Tensors, Flags]:
        bounded: Tensors = {}
        wrong: Flags = None
        for bias, _, own in self._each({}, inputs):
            if own:
                tensors, flags = bias._bounded(own, length)
                bounded, wrong = bounded | tensors, either(wrong, flags)
        return bounded, wrong

    @property
    def _own_length(self) -> int | None:
        return next((b._own_length for b in self.biases if b._own_length is not None), None)

    def get_config(self) -> dict[str, object]:
        biases = [keras.saving.serialize_keras_object(bias) for bias in self.biases]
        return {**super().get_config(), "biases": biases}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Sum":
        biases = config.get("biases")
        if isinstance(biases, (list, tuple)):
            biases = [restored("biases", bias) for bias in biases]
        return cls(**{**config, "biases": biases})


def _added(rows: Sequence[Rows]) -> Rows:
    """The sum of some rows, in their widest dtype."""
    dtype = widest_dtype(rows)
    total = ops.cast(rows[0], dtype)
    for row in rows[1:]:
        total = total + ops.cast(row, dtype)
    return total


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
