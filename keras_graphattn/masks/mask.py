"""The base of all masks: a matrix of factors on attention, as a linear operator on tokens.

Masked kernel attention multiplies the kernel phi(q_i) . phi(k_j) by a factor M[i, j] that depends
on the two positions:

    out_i = sum_j M[i, j] (phi(q_i) . phi(k_j)) x_j = sum_f phi_f(q_i) (M [phi_f(k_j) x_j])_i

The second form needs only the product M x with signals along the token axis, and many masks
compute this product in less than quadratic time. Every mask also returns its matrix, whole
(`dense`) or some rows at a time (`rows`). Short sequences use the matrix, and tests compare the
two ways.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypedDict, Unpack, cast

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_graphattn.checks import (
    Function,
    Sizes,
    check_dtype_policy,
    dtype_name,
    numpy_of,
    tensor,
    whole,
)
from keras_graphattn.coefficient_rate import MASK_MULTIPLIER, CoefficientRate
from keras_graphattn.keras_internals import move, walk
from keras_graphattn.masks.graphs.edges import Graph, graph_config
from keras_graphattn.masks.inputs import (
    Arrays,
    Flags,
    Length,
    Prepared,
    Tensors,
    arrays_of,
    bounded_inputs,
    check_values,
    checked_positions,
    harmless,
    known_arrays,
    marked,
    number_of_tokens,
    tensors_of,
)
from keras_graphattn.numerics.blocks import map_in_turn, map_query_blocks
from keras_graphattn.numerics.precision import constant, pad, positions_of, size_tensor, take
from keras_graphattn.operators.kernel import masked_scores
from keras_graphattn.serialization import resolve
from keras_graphattn.types import Bool, Float, Int, Num, Tensor

Signal = Num[Tensor, "B T N D"]
Features = Num[Tensor, "B T N m"]
Positions = Int[Tensor, " R"]
Rows = Float[Tensor, "B? N? R T"]  # some rows of M, or all of them
Nodes = Float[Tensor, "T N _"]  # all columns of a node and head: (T, N, B D)
PerHead = Float[Tensor, " N"]  # one number for each head
Shape = tuple[int | None, ...]

FORMED_PATHS = ("dense", "blockwise")
DENSE_LIMIT = 1024  # for longer sequences, "auto" forms blocks of rows if a mask has no own path
ROWS_FROM_MATRIX = 1024  # up to this number of nodes, `_rows` of a topology forms the whole matrix

MASKS: dict[str, type["Mask"]] = {}  # by name; filled by `keras_graphattn.masks`


class Operands(NamedTuple):
    """The tensors of one product: M x or, with features, [(phi(Q) phi(K)^T) o M] x."""

    x: Signal
    query: Features = None  # phi(Q), of all rows or of a block of them
    key: Features = None  # phi(K)
    feature_chunk: int | None = None  # features at a time; all at once by default


class MaskOptions(TypedDict, total=False):
    """The arguments that all masks share."""

    name: str | None
    trainable: bool
    dtype: "str | keras.DTypePolicy | None"
    coefficient_learning_rate_multiplier: float | None


class PairMatrix(CoefficientRate, keras.layers.Layer):  # type: ignore[misc]
    """A T x T matrix per head of numbers for pairs of positions; the base of masks and biases.

    A subclass names its `inputs_at_call`, and writes at least one of `_matrix` and `_rows`. These
    methods take the weights and the call-time inputs as dictionaries of tensors. They read only
    settings from `self`: on TensorFlow, rematerialisation silently drops the gradient of captured
    tensors. The matrix is float64 if the weights or the signal are float64, so the methods compute
    in the dtype of these tensors.

    Attributes:
        inputs_at_call: Names of the tensors that every call needs, such as segment ids.
        reads_tokens: Whether a layer computes tensors of `inputs_at_call` from its tokens, with
            weights of this object, which then writes `build_reader` and `inputs_of_tokens`. Nobody
            gives these tensors to the layer.
        hides_keys: Whether the matrix may hide a key from a query.
    """

    # Settings

    kind: ClassVar[str] = "mask"  # in errors; with "_inputs", the argument of a call
    inputs_at_call: tuple[str, ...] = ()
    reads_tokens: bool = False
    hides_keys: bool = True
    _settings: tuple[str, ...] = ()  # arguments that the configuration takes from attributes
    _parameter_names: tuple[str, ...] = ()
    _limit: int | None = None  # that the check of its inputs needs, such as the most ancestors
    _parent: "weakref.ref[keras.layers.Layer] | None" = None  # the layer with the weights

    def __init__(self, *args: object, **kwargs: Unpack[MaskOptions]) -> None:
        of_calls = sorted(set(self.inputs_at_call) & set(kwargs))
        if args or of_calls:
            kind = type(args[0]).__name__ if args else ""
            received = f"a value of type {kind}" if args else f"`{of_calls[0]}`"
            fix = (
                f"Call a layer with {self._call_hint()}" if self.inputs_at_call else "Leave it out"
            )
            raise ValueError(
                f"{type(self).__name__} takes no such argument where it is made. Received: "
                f"{received}. {fix}."
            )
        check_dtype_policy(kwargs.get("dtype"))
        super().__init__(**kwargs)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {name: getattr(self, name) for name in self._settings}

    # For subclasses to write

    def build(self, input_shape: Shape) -> None:
        """Creates the weights for signals of shape (B, T, N, D)."""
        shape: Any = tuple(input_shape) if isinstance(input_shape, Iterable) else input_shape
        if not isinstance(shape, tuple) or len(shape) != 4 or shape[2] is None:
            raise ValueError(
                f"{type(self).__name__} acts on signals of shape (batch, length, heads, width) "
                f"with a known number of heads. Received: shape={shape}. Call `build` with such a "
                "shape first."
            )
        self.num_heads = int(shape[2])

    def build_reader(self, tokens_shape: Shape) -> None:
        """Creates the weights that read a layer's tokens (B, T, d), if there are any."""

    def inputs_of_tokens(
        self, tokens: Float[Tensor, "B T d"], kept: Bool[Tensor, "B T"] | None
    ) -> Tensors:
        """The tensors of `inputs_at_call` that are read from a layer's tokens, by name.

        `kept` marks tokens that are not padding.
        """
        return {}

    def empty_inputs(self, batch_size: int, length: int, num_heads: int) -> Tensors:
        """What `inputs_of_tokens` gives for tokens that are padding, by name."""
        return {}

    def parameters(self) -> Tensors:
        """The differentiable tensors that define M after `build`, by name, in at least float32.

        By default these are the weights that `_add_parameter` has made.
        """
        return self._weights(*self._parameter_names)

    def _matrix(self, length: Length, parameters: Tensors, inputs: Tensors) -> Rows:
        """M, of shape (1 or B, 1 or N, T, T)."""
        if type(self)._rows is Mask._rows:
            raise NotImplementedError(f"{type(self).__name__} must write `_matrix` or `_rows`.")
        order = positions_of(length)
        return self._block_rows(order, length, parameters, inputs)

    def _rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
        """M[positions, :], of shape (1 or B, 1 or N, R, T)."""
        return take(self._matrix(length, parameters, inputs), positions, axis=2)

    def _block_rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
        """`_rows` for consecutive positions that start at a multiple of R, if that is faster.

        Positions past the end are replaced by the last position; their rows are never read.
        """
        return self._rows(positions, length, parameters, inputs)

    def _check_length(self, length: int) -> None:
        """Raises a `ValueError` if the matrix does not exist at this length."""

    @property
    def _own_length(self) -> int | None:
        """The number of tokens that `dense` takes by default, if the matrix has one."""
        return None

    def _known_length(self, inputs: Tensors) -> Length:
        """The number of tokens, if the matrix or its inputs determine it."""
        for length in (number_of_tokens(inputs), self._own_length):
            if length is not None:
                return length
        raise ValueError(
            f"{type(self).__name__} exists at any length. Received: length=None. Give `length`."
        )

    def _check_values(self, inputs: Arrays, length: int | None) -> bool:
        """`check_values` of the object's own inputs."""
        return check_values(inputs, length, self._limit)

    def _bounded(self, inputs: Tensors, length: Length) -> tuple[Tensors, Flags]:
        """`bounded_inputs` of the object's own inputs."""
        return bounded_inputs(inputs, length, self._limit)

    def _of_heads(self, name: str, number: ArrayLike, *shape: int) -> np.ndarray:
        """A start value as an array of this shape; by default, one number per head."""
        shape = shape or (self.num_heads,)
        try:
            return np.broadcast_to(np.asarray(number, "float64"), shape)
        except ValueError:
            raise ValueError(
                f"`{name}` must broadcast to {shape}, with {self.num_heads} heads. Received: "
                f"{name}={number!r}"
            ) from None

    def _add_parameter(
        self, name: str, start: Any, trainable: bool = True, shape: tuple[int, ...] | None = None
    ) -> keras.Variable:
        """A weight with these start values or, with a shape, those of an initializer."""
        self._parameter_names = (*self._parameter_names, name)
        if shape is None:
            return self.add_array(name, start, trainable)
        return self.add_weight(shape, start, name=name, trainable=trainable, autocast=False)

    def _weights(self, *names: str) -> Tensors:
        """Some of the weights as tensors of at least float32."""
        weights = {name: ops.convert_to_tensor(getattr(self, name)) for name in names}
        if self.variable_dtype in ("float32", "float64"):
            return weights
        return {name: ops.cast(weight, "float32") for name, weight in weights.items()}

    # For users to call

    def dense(self, length: int | None = None, **inputs: Tensor) -> Rows:
        """Returns the matrix, for tests, plots and short sequences.

        Args:
            length: Number of tokens T. It is optional if the matrix or its inputs know it.
            **inputs: The tensors of `inputs_at_call`.

        Returns:
            A tensor of shape (1 or B, 1 or N, T, T), with gradients for all weights. It is
            float64 if the weights or the `dtype` of this object are float64, else float32.
        """
        return self._factors(None, length, inputs)

    def rows(
        self, positions: Positions | Sequence[int], length: int | None = None, **inputs: Tensor
    ) -> Rows:
        """Returns a few query rows of the matrix, without its other rows if the class can.

        Args:
            positions: Integer tensor of shape (R,), with numbers from 0 to T - 1.
            length: Number of tokens T. It is optional if the matrix or its inputs know it.
            **inputs: The tensors of `inputs_at_call`.

        Returns:
            A tensor of shape (1 or B, 1 or N, R, T), of the dtype of `dense`.

        Raises:
            ValueError: As for `apply`, and for a known position below 0 or above T - 1. Compiled
                code cannot raise it: there, the row of such a position is NaN.
        """
        return self._factors(positions, length, inputs)

    def check_inputs(self, length: int | None = None, **inputs: Any) -> None:
        """Checks the values of one batch. Use it in data pipelines, before compiled code.

        The check reads the integers once in NumPy. It sorts edges, and it reads parents
        ceil(log2(T)) times. This costs little compared with the product. Calls outside compiled
        code make the same check. On an accelerator they wait for the values; compiled
        code does not.

        Args:
            length: Number of tokens T. Without it, edges are not compared with the number of
                nodes.
            **inputs: The arrays of `inputs_at_call` for a whole batch: NumPy arrays, or tensors
                whose values are known.

        Raises:
            ValueError: For missing or unknown inputs, for wrong shapes, and for a wrong entry. The
                error names the first wrong example and entry.

        Example:

        >>> from keras_graphattn.masks import Tree
        >>> def checked(tokens, parents):  # in a generator or in `PyDataset.__getitem__`
        ...     Tree().check_inputs(tokens.shape[1], parents=parents)
        ...     return tokens, parents
        >>> checked(np.zeros((1, 3, 8)), np.array([[-1, 0, 3]]))
        Traceback (most recent call last):
        ValueError: `parents` of example 0: node 2 has parent 3, but there are 3 nodes. Parents \
are numbered within the example, from 0; -1 marks a root.
        """
        if length is not None:
            length = whole(0)("length", length, {})
        if set(inputs) != set(self.inputs_at_call):
            raise self._wrong_names(inputs)
        sizes: Sizes = {} if length is None else {"T": (length, "length")}
        self._check_values(arrays_of(self.inputs_at_call, inputs, sizes), length)

    # For layers

    @property
    def given_inputs(self) -> tuple[str, ...]:
        """The names of `inputs_at_call` that a layer does not read from its tokens."""
        return () if self.reads_tokens else self.inputs_at_call

    def build_in(self, layer: keras.layers.Layer, signal_shape: Shape, tokens_shape: Shape) -> None:
        """Makes the object a part of a layer. It may be built already, by hand or from a file.

        Raises:
            ValueError: For weights that belong to another layer, or are for other heads.
        """
        parts = [part for part in walk(self) if isinstance(part, PairMatrix)]
        for part in parts:
            parent = None if part._parent is None else part._parent()
            if part.weights and part._parent is not None and parent is not layer:
                raise ValueError(
                    f"A {self.kind} with weights belongs to one layer. Received: the {self.kind} "
                    f"{type(part).__name__} '{part.name}' in '{layer.path}'. It belongs to "
                    f"{'another layer' if parent is None else repr(parent.path)}. Give each layer "
                    f"a {self.kind} of its own, such as "
                    f"{self.kind}.from_config({self.kind}.get_config())."
                )
        if self.built:
            if signal_shape[2] != self.num_heads:
                raise self._wrong_heads(signal_shape)
            move(self, layer)
        else:
            self.build(signal_shape)
        for part in parts:
            part._parent = weakref.ref(layer)
            if self.reads_tokens:
                part.build_reader(tokens_shape)

    def of_call(
        self, inputs: Tensors, sizes: Sizes, length: Length | None
    ) -> tuple[Tensors, Tensors, Flags, Length]:
        """The weights and the inputs of a call in one dtype, and which examples are wrong."""
        tensors, wrong, length = self._prepared(inputs, sizes, length)
        parameters, of_policy = (
            self.parameters(),
            ops.zeros((), widest_dtype((), self.compute_dtype)),
        )
        _, parameters, tensors = in_one_dtype((of_policy,), parameters, tensors)
        return parameters, tensors, wrong, length

    # The steps of a call

    def _wrong_heads(self, shape: Shape) -> ValueError:
        return ValueError(
            f"This {type(self).__name__} was built for {self.num_heads} heads. Received: a signal "
            f"`x` of shape (batch, length, heads, width) = {tuple(shape)}. Use another {self.kind} "
            "for another number of heads."
        )

    def _check_built(self) -> None:
        """Raises a `ValueError` if there are no weights yet."""
        if not self.built and type(self).build is not Mask.build:
            raise ValueError(
                f"This {type(self).__name__} has no weights yet. Call `build` with the shape of a "
                "signal (batch, length, heads, width) first."
            )

    def _wrong_names(self, inputs: Mapping[str, Any]) -> ValueError:
        return ValueError(
            f"{type(self).__name__} needs the tensors {list(self.inputs_at_call)} at each call. "
            f"Received: {sorted(inputs)}. Call a layer with {self._call_hint()}."
        )

    def _call_hint(self) -> str:
        """The way to pass the tensors that every call needs, for an error message."""
        if not self.given_inputs:
            return f"no `{self.kind}_inputs`"
        names = ", ".join(f'"{name}": ...' for name in self.given_inputs)
        return f"{self.kind}_inputs={{{names}}}"

    def _prepared(self, inputs: Tensors, sizes: Sizes, length: Length | None) -> Prepared:
        """The inputs of a call as tensors, without wrong entries.

        Wrong entries that are known are refused, the others replaced and marked by example.
        """
        if set(inputs) != set(self.inputs_at_call):
            raise self._wrong_names(inputs)
        tensors = tensors_of(self.inputs_at_call, inputs, sizes) if inputs else {}
        length = self._known_length(tensors) if length is None else length
        if isinstance(length, int):
            self._check_length(length)
        if not tensors:
            return Prepared(tensors, None, length)
        arrays = known_arrays(inputs)
        are_usable = self._check_values(arrays, length if isinstance(length, int) else None)
        if are_usable and len(arrays) == len(tensors):
            return Prepared(tensors, None, length)
        tensors, wrong = self._bounded(tensors, length)
        return Prepared(tensors if wrong is None else harmless(tensors, wrong), wrong, length)

    def _factors(
        self, positions: Positions | Sequence[int] | None, length: Length | None, inputs: Tensors
    ) -> Rows:
        """Some rows of M, or all of them; NaN for examples and positions that are wrong."""
        self._check_built()
        if isinstance(length, (int, float, str)):
            length = whole(0)("length", length, {})
        parameters, tensors, wrong, length = self.of_call(inputs, {}, length)
        dtype = widest_dtype(parameters.values(), self.compute_dtype)
        right = None
        if positions is not None:
            positions, right = checked_positions(positions, length)
        count = length if positions is None else ops.shape(positions)[0]
        sizes = [x.shape[0] for x in tensors.values()] + [length, count]
        if any(isinstance(size, int) and size == 0 for size in sizes):
            examples = ops.shape(next(iter(tensors.values())))[0] if tensors else 1
            return ops.zeros((examples, 1, count, length), dtype)
        if positions is None:
            factors = self._matrix(length, parameters, tensors)
        else:
            factors = self._rows(positions, length, parameters, tensors)
        if right is not None:
            factors = ops.where(right[:, None], factors, ops.cast(float("nan"), factors.dtype))
        return ops.cast(marked(factors, wrong), dtype)


class Mask(PairMatrix):
    """M, a T x T matrix of non-negative factors per head, as a linear operator.

    A subclass names its `paths` and `inputs_at_call`, and writes at least one of `_matrix` and
    `_rows`. For its own path it also writes `_signal`, and `_attend` if attention has a better
    form than Algorithm 1. These methods take tensors as those of `PairMatrix` do.

    Args:
        **kwargs: `name`, `trainable` and `dtype` of a Keras layer, and
            `coefficient_learning_rate_multiplier`, the property, 30 by default.

    Attributes:
        paths: The ways to compute: "dense" forms M, "blockwise" forms some query rows of M at a
            time, the others never form M. The path for long sequences is the last.
        inputs_at_call: Names of the tensors that every call needs, such as segment ids.
        is_causal: Whether M[i, j] = 0 wherever j > i.
        hides_keys: Whether some M[i, j] may be 0. If so, a row must not depend on keys it cannot
            see. `False` for a mask whose factors are all positive: its rows may share numbers of
            all keys.
        has_state: Whether attention can run token by token with a state of fixed size.

    A call checks the values of `segment_ids`, `parents`, `edges`, `edge_weights`, `walks` and
    `entries`, if they are known. They are known outside compiled code: a wrong value raises a
    `ValueError` that names the example and the entry. Compiled code (`jax.jit`, `tf.function`,
    `fit`) cannot raise an error. Instead, the outputs of an example with a wrong entry are NaN, and
    the outputs of all other examples do not change. To avoid NaN, check batches in the data
    pipeline with `check_inputs`.

    Example:

    >>> class Window(Mask):
    ...     def _rows(self, positions, length, parameters, inputs):
    ...         keys = keras.ops.arange(length, dtype="int32")
    ...         far = keras.ops.abs(positions[:, None] - keys[None, :]) > 1
    ...         return keras.ops.cast(keras.ops.logical_not(far), "float32")[None, None]
    >>> keras.ops.convert_to_numpy(Window().dense(3))[0, 0].tolist()
    [[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]

    Source: Choromanski et al., arXiv 2107.07999, Algorithm 1 and Lemma 3.1.
    """

    # Settings

    default_multiplier: ClassVar[float] = MASK_MULTIPLIER
    paths: tuple[str, ...] = FORMED_PATHS
    block_size: ClassVar[int] = 512

    is_causal: bool = False
    has_state: bool = False

    # For subclasses to write

    def _signal(self, x: Signal, path: str, parameters: Tensors, inputs: Tensors) -> Signal:
        """M x on one of the mask's own paths, in the dtype of `x`, which is at least float32.

        By default it is attention with one feature that is 1 everywhere.
        """
        if type(self)._attend is Mask._attend:
            raise NotImplementedError(f"{type(self).__name__} must write `_signal` for {path!r}.")
        ones = ops.ones_like(x[..., :1])  # (B, T, N, 1)
        return self._attend(Operands(x, ones, ones), path, parameters, inputs)

    def _causal_signal(self, x: Signal, path: str, parameters: Tensors, inputs: Tensors) -> Signal:
        """(M o causal) x on one of the mask's own paths, if the mask has such a form."""
        raise NotImplementedError(f"{type(self).__name__} has no causal form.")

    def _attend(self, tokens: Operands, path: str, parameters: Tensors, inputs: Tensors) -> Signal:
        """[(phi(Q) phi(K)^T) o M] x on one of the mask's own paths: Algorithm 1."""
        return sum_over_features(self._signal, tokens, path, parameters, inputs)

    def choose_path(
        self, length: int | None, features: int | None = None, width: int | None = None
    ) -> str:
        """The path that "auto" takes.

        Args:
            length: Number of tokens T; `None` if it is only known at run time.
            features: Number of features m of the attention; `None` for only M x.
            width: Number of columns D of the signal, if it is known.

        Returns:
            One of `paths`.
        """
        del features, width
        if self.paths[-1] not in FORMED_PATHS:
            return self.paths[-1]
        return "dense" if length is not None and length <= DENSE_LIMIT else "blockwise"

    def choose_causal_path(
        self, length: int | None, features: int | None = None, width: int | None = None
    ) -> str:
        """The path of the product with a causal mask, for masks with `_causal_signal`."""
        return self.choose_path(length, features, width)

    # For users to call

    def call(self, x: Tensor, **inputs: Tensor) -> Signal:
        return self.apply(x, **inputs)

    def compute_output_shape(self, input_shape: Shape, **inputs: Shape) -> Shape:
        return input_shape

    def apply(
        self, x: Signal | Callable[[Any], object], path: str = "auto", **inputs: Tensor
    ) -> Signal | keras.layers.Layer:
        """Returns M x: for every head, a product along the token axis.

        Args:
            x: Tensor of shape (B, T, N, D). On torch, a function is applied to the mask and all its
                submodules instead, by `torch.nn.Module.apply`, which returns the mask.
            path: One of `paths`, or `"auto"`.
            **inputs: The tensors of `inputs_at_call`.

        Returns:
            A tensor of the shape and dtype of `x`; sums are at least float32.

        Raises:
            ValueError: For an unknown path, missing or unknown inputs, or a length that the mask
                does not have.
        """
        if callable(x) and keras.backend.backend() == "torch":  # `Module.apply` of a model
            return super().apply(x)
        x = tensor("B T N D")("x", x, {})
        return self._product(path, Operands(x), self.prepare(x, **inputs))

    def attend(
        self,
        query_features: Tensor,
        key_features: Tensor,
        x: Tensor,
        path: str = "auto",
        feature_chunk: int | None = None,
        prepared: Prepared | None = None,
        **inputs: Tensor,
    ) -> Signal:
        """Returns [(phi(Q) phi(K)^T) o M] x: masked kernel attention before it is normalised.

        If `x` has a column of ones, this column of the result is the normaliser.

        Args:
            query_features: phi(Q), of shape (B, T, N, m).
            key_features: phi(K), of shape (B, T, N, m).
            x: Tensor of shape (B, T, N, D).
            path: One of `paths`, or `"auto"`.
            feature_chunk: Number of features at a time, for paths that work on an (n, m, D)
                tensor. It saves memory and gives the same numbers. All at once by default.
            prepared: The result of `prepare`, for several products with one mask. It replaces
                `inputs` and the checks of shapes.
            **inputs: The tensors of `inputs_at_call`.

        Returns:
            A tensor of the shape and dtype of `x`; sums are at least float32.

        Raises:
            ValueError: As for `apply`.

        Source: Choromanski et al., arXiv 2107.07999, Algorithm 1 and Lemma 3.1.
        """
        if prepared is None:
            sizes: Sizes = {}
            x = tensor("B T N D")("x", x, sizes)
            query_features = tensor("B T N m")("query_features", query_features, sizes)
            key_features = tensor("B T N m")("key_features", key_features, sizes)
            if feature_chunk is not None:
                whole()("feature_chunk", feature_chunk, {})
            prepared = self.prepare(x, **inputs)
        tokens = Operands(x, query_features, key_features, feature_chunk)
        return self._product(path, tokens, prepared)

    def prepare(self, x: Signal, **inputs: Tensor) -> Prepared:
        """Checks the inputs of a call once, for several products with `attend`.

        It builds the mask if it has no weights yet.

        Args:
            x: A tensor of shape (B, T, N, D), the signal of the products or another.
            **inputs: The tensors of `inputs_at_call`.

        Returns:
            The value that `attend` takes as `prepared`.

        Raises:
            ValueError: For a wrong number of heads, a wrong length, and wrong inputs.
        """
        sizes: Sizes = {}
        for letter, size in zip("BTN", x.shape[:3], strict=True):
            if isinstance(size, int):
                sizes[letter] = size, "x"
        prepared = self._prepared(inputs, sizes, ops.shape(x)[1])
        if not self.built:
            self.build(tuple(x.shape))
        if x.shape[2] != self.num_heads:
            raise self._wrong_heads(x.shape)
        return prepared

    def get_initial_state(self, batch_size: int, num_heads: int, features: int, width: int) -> Any:
        """Returns the state of `step` before the first token: O(features x width) per head."""
        raise self._no_state()

    def step(
        self, state: Any, query_features: Tensor, key_features: Tensor, x: Tensor, **inputs: Tensor
    ) -> tuple[Signal, Any]:
        """Returns the rows of `attend` for one or more new tokens, and the state after them.

        Args:
            state: The state that `get_initial_state` or the previous step returned.
            query_features: phi(Q) of the new tokens, of shape (B, t, N, m).
            key_features: phi(K) of the new tokens, of shape (B, t, N, m).
            x: Signal of the new tokens, of shape (B, t, N, D).
            **inputs: The tensors of `inputs_at_call` for the new tokens.

        Raises:
            ValueError: For a mask that has no state of fixed size.
        """
        raise self._no_state()

    # The steps of a call

    def _product(self, path: str, tokens: Operands, prepared: Prepared) -> Signal:
        """The product by a path; NaN for examples with a wrong entry."""
        x, query, key, feature_chunk = tokens
        features = None if query is None else query.shape[-1]
        length = x.shape[1] if isinstance(x.shape[1], int) else None
        if path == "auto":
            path = self.choose_path(length, features, x.shape[3])
        elif path not in self.paths:
            raise ValueError(
                f'`path` of the mask {type(self).__name__} must be "auto" or one of '
                f"{list(self.paths)}. Received: path={path!r}"
            )
        if 0 in tuple(x.shape):
            return x  # no sequences, or sequences of no tokens
        if features == 0:
            return ops.zeros_like(x)  # the sum over no features
        signals = (x,) if query is None else (x, query, key)
        signals, *own = in_one_dtype(signals, self.parameters(), prepared.tensors)
        tokens = Operands(*signals)._replace(feature_chunk=feature_chunk)
        if path in FORMED_PATHS:
            result = self._formed_product(path, tokens, *own)
        elif query is None:
            result = self._signal(tokens.x, path, *own)
        else:
            result = self._attend(tokens, path, *own)
        if prepared.wrong is not None:
            result = marked(result, prepared.wrong)
        return result if result.dtype == x.dtype else ops.cast(result, x.dtype)

    def _formed_product(
        self, path: str, tokens: Operands, parameters: Tensors, inputs: Tensors
    ) -> Signal:
        """The product by rows of M: by all of them, or by `block_size` rows at a time."""
        length = ops.shape(tokens.x)[1]
        if path == "dense":
            return _matrix_product(self._matrix(length, parameters, inputs), tokens)
        whole = {f"parameter {name}": x for name, x in parameters.items()}
        whole |= {f"input {name}": x for name, x in inputs.items()}
        whole |= {"x": tokens.x} if tokens.key is None else {"x": tokens.x, "key": tokens.key}

        def rows_of_block(rows: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
            rows = ops.minimum(rows, size_tensor(length - 1, "int32"))  # (R,); not past the end
            own = {name: tensors[f"parameter {name}"] for name in parameters}
            of_call = {name: tensors[f"input {name}"] for name in inputs}
            some = Operands(tensors["x"], tensors.get("query"), tensors.get("key"))
            return _matrix_product(self._block_rows(rows, length, own, of_call), some)

        by_row = {} if tokens.query is None else {"query": tokens.query}
        return map_query_blocks(rows_of_block, by_row, whole, length, self.block_size)

    def _no_state(self) -> ValueError:
        reason = "causal, but needs all earlier tokens" if self.is_causal else "not causal"
        return ValueError(
            "Token by token, attention needs a causal mask with a state of fixed size. Received: "
            f"the mask {type(self).__name__}, which is {reason}. Use `Causal`, `GatedDecay`, "
            "`Exponential(causal=True)` or a product of these."
        )


def reads_topology(method: Function) -> Function:
    """A method of a `TopologyMask` that may read NumPy arrays of the mask.

    torch.compile takes it as one operation. Else its first pass would make tensors of the arrays,
    and no length or index in them would be known. A weight must come as an argument.
    """
    if keras.backend.backend() != "torch":
        return method
    import torch

    return cast("Function", torch._dynamo.nonstrict_trace(method))


class TopologyMask(Mask):
    """Base of masks over the nodes of a topology, given once or with each batch."""

    num_nodes: int | None = None  # known if the topology is given once
    seed: int | None = None  # of the walks that the mask has drawn
    _topology: tuple[str, str] = ("graph", "edges")  # the arguments that give it: once, each call
    _adjacency: Graph | None = None  # of a graph that is given once

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        if self._adjacency is not None:
            return config | graph_config(self._adjacency)
        return config | ({"edge_weights": True} if "edge_weights" in self.inputs_at_call else {})

    def save_own_variables(self, store: MutableMapping[str, np.ndarray]) -> None:
        super().save_own_variables(store)
        if self.seed is not None:
            store["seed"] = np.asarray(self.seed)

    def load_own_variables(self, store: Mapping[str, np.ndarray]) -> None:
        """Loads the weights, which fit only the walks with which they were saved."""
        weights = dict(store)
        seed = weights.pop("seed", None)
        if seed is not None and seed != self.seed:
            raise ValueError(
                "These weights were saved with other walks. Received: a file of walks with "
                f"seed={int(seed)}, for a {type(self).__name__} with seed={self.seed}. Make the "
                f"mask with seed={int(seed)}."
            )
        super().load_own_variables(weights)

    def choose_path(
        self, length: int | None, features: int | None = None, width: int | None = None
    ) -> str:
        """The path that "auto" takes: the matrix for few nodes, else the mask's own path.

        As measured on a CPU, a sweep costs about as much as 200 rows of the matrix, for each column
        of the signal. Attention by sweeps works on m D columns, by the matrix on m + D.
        """
        limit = 128.0
        if features is not None and width is not None:
            limit = min(128.0 * features * width / (features + width), 1024.0)
        return "dense" if length is not None and length <= limit else self._own_path()

    def _own_path(self) -> str:
        """The path that never forms M."""
        return self.paths[-1]

    def _rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
        if isinstance(length, int) and length <= ROWS_FROM_MATRIX:
            return super()._rows(positions, length, parameters, inputs)
        # rows of M are columns of its transpose, which are products with unit vectors (T, R)
        nodes = positions_of(length)[:, None]
        columns = ops.cast(ops.equal(nodes, positions[None]), widest_dtype(parameters.values()))
        batch = ops.shape(next(iter(inputs.values())))[0] if inputs else 1
        shape = (batch, length, self.num_heads, ops.shape(columns)[1])
        signal = ops.broadcast_to(columns[None, :, None, :], shape)
        rows = self._transposed_signal(signal, parameters, inputs)  # (B, T, N, R)
        return ops.transpose(rows, (0, 2, 3, 1))

    def _transposed_signal(self, x: Signal, parameters: Tensors, inputs: Tensors) -> Signal:
        """M^T x. By default, M is symmetric."""
        return self._signal(x, self._own_path(), parameters, inputs)

    def _check_length(self, length: int) -> None:
        if self.num_nodes is not None and length != self.num_nodes:
            once, at_call = self._topology
            raise ValueError(
                f"The `{once}` of this {type(self).__name__} has {self.num_nodes} nodes, one for "
                f"each token. Received: length={length}. Pad `{once}` with isolated nodes, or "
                f"leave it out of the constructor and give `{at_call}` with each call."
            )

    @property
    def _own_length(self) -> int | None:
        return self.num_nodes

    def _read_edge_weights(self, edge_weights: Any) -> tuple[str, ...]:
        """The names of the tensors of a call: the topology and, with `True`, its weights."""
        once, at_call = self._topology
        if edge_weights is not None and not isinstance(edge_weights, bool):
            raise ValueError(
                f"Without a {once}, `edge_weights` must be True if the calls take edge weights, "
                f"else None. Received: edge_weights={edge_weights!r}. Use True or None."
            )
        return (at_call, "edge_weights") if edge_weights else (at_call,)

    def _constant(self, start: np.ndarray) -> Float[Tensor, "..."]:
        """A start value that is not learned, as a tensor."""
        return constant(start, dtype=widest_dtype((), self.variable_dtype))


def to_nodes(x: Signal) -> Nodes:
    """(B, T, N, D) -> (T, N, B D): nodes first, all columns of a head next to each other."""
    _, length, heads, _ = ops.shape(x)
    return ops.reshape(ops.transpose(x, (1, 2, 0, 3)), (length, heads, -1))


def from_nodes(nodes: Nodes, x: Signal) -> Signal:
    """The inverse of `to_nodes`: (T, N, B D) -> (B, T, N, D), the shape of `x`."""
    batch, length, heads, width = ops.shape(x)
    return ops.transpose(ops.reshape(nodes, (length, heads, batch, width)), (2, 0, 1, 3))


def finite(name: str, number: ArrayLike, positive: bool = False) -> Any:
    """A finite number, or a nested list of finite numbers, as plain Python."""
    array = numpy_of(number)
    is_numbers = array.dtype.kind in "iuf" and array.size
    array = array.astype("float64") if is_numbers else np.asarray(np.nan)
    if not np.isfinite(array).all() or (positive and (array <= 0.0).any()):
        kind = "positive finite" if positive else "finite"
        raise ValueError(
            f"`{name}` must be a {kind} number, or a list of them. Received: {name}={number!r}"
        )
    return array.tolist()


def get(mask: Any) -> Mask:
    """The mask for a layer's argument `mask`.

    Args:
        mask: A `Mask`, its configuration, or a name from `MASKS` of one that needs no argument.

    Raises:
        ValueError: For other values.

    Example:

    >>> type(get("causal")).__name__
    'Causal'
    """
    if hasattr(mask, "shape"):
        raise ValueError(
            f"`mask` must be a mask of keras_graphattn.masks. Received: a {type(mask).__name__} of "
            f"shape {tuple(mask.shape)}. For a matrix of factors, make the layer with "
            'mask="entries" and call it with mask_inputs={"entries": matrix}. For booleans that '
            "hide pairs, call the layer with attention_mask=matrix."
        )
    if isinstance(mask, (list, tuple)):
        raise ValueError(
            f"`mask` must be one mask. Received: {len(mask)} in a {type(mask).__name__}. For their "
            "product, give mask=keras_graphattn.masks.Product([...])."
        )
    return resolve("mask", mask, Mask, MASKS)


def widest_dtype(tensors: Iterable[Tensor], policy: str = "float32") -> str:
    """`"float64"` if one of the tensors or the policy's dtype is float64, else `"float32"`."""
    dtypes = {dtype_name(dtype) for dtype in {x.dtype for x in tensors}} | {policy}
    return "float64" if "float64" in dtypes and _has_float64() else "float32"


def in_one_dtype(
    signals: tuple[Num[Tensor, "..."], ...], parameters: Tensors, inputs: Tensors
) -> tuple[tuple[Num[Tensor, "..."], ...], Tensors, Tensors]:
    """Casts signals, weights and floating-point inputs of a call to float32, or all to float64."""
    dtypes = {x.dtype for x in (*signals, *parameters.values())}
    if parameters and not inputs and len(dtypes) == 1:  # weights are at least float32
        return signals, parameters, inputs
    floating = {name: x for name, x in inputs.items() if "float" in dtype_name(x.dtype)}
    dtypes = {dtype_name(dtype) for dtype in dtypes | {x.dtype for x in floating.values()}}
    dtype = "float64" if "float64" in dtypes and _has_float64() else "float32"
    if dtypes <= {dtype}:
        return signals, parameters, inputs
    return (
        tuple(ops.cast(x, dtype) for x in signals),
        {name: ops.cast(x, dtype) for name, x in parameters.items()},
        inputs | {name: ops.cast(x, dtype) for name, x in floating.items()},
    )


def _has_float64() -> bool:
    """Whether the backend has float64. JAX has it only with `jax_enable_x64`."""
    if keras.backend.backend() != "jax":
        return True
    import jax

    return bool(jax.config.jax_enable_x64)


def _matrix_product(matrix: Rows, tokens: Operands) -> Float[Tensor, "B R N D"]:
    """The product of some rows of M, or of the kernel times these rows, with a signal."""
    matrix = ops.cast(matrix, tokens.x.dtype)
    if tokens.query is not None:
        return masked_scores(tokens.query, tokens.key, tokens.x, matrix)
    # Axes of size 1 take no part in the contraction. Otherwise the gradient is summed over them
    # afterwards, and XLA of TensorFlow 2.21 gets this sum wrong on a CPU for more than 256 rows and
    # columns (XLA of JAX 0.10 does not).
    shared = [axis for axis in (0, 1) if matrix.shape[axis] == 1]
    letters = "".join(letter for axis, letter in enumerate("bn") if axis not in shared)
    matrix = ops.squeeze(matrix, axis=tuple(shared)) if shared else matrix  # (B?, N?, R, T)
    return ops.einsum(f"{letters}ts,bsnd->btnd", matrix, tokens.x)


def sum_over_features(
    product: Callable[..., Signal],
    tokens: Operands,
    path: str,
    parameters: Tensors,
    inputs: Tensors,
) -> Signal:
    """Algorithm 1: sum_f phi_f(q_i) (M [phi_f(k_j) x_j])_i, for a product x -> M x.

    With `feature_chunk` features f at a time, they are computed again in the backward pass, so
    the memory is O(n (f D + m D / f)) instead of O(n m D).

    Source: Choromanski et al., arXiv 2107.07999, Algorithm 1 and Lemma 3.1.
    """
    x, query, key, feature_chunk = tokens
    count = len(parameters)

    # The mask's tensors are arguments: if they were captured, rematerialisation on TensorFlow
    # would drop their gradients.
    def of_some_features(query: Tensor, key: Tensor, x: Tensor, *tensors: Tensor) -> Tensor:
        batch, length, heads, width = ops.shape(x)
        signal = key[..., None] * x[..., None, :]  # (B, T, N, f, D)
        signal = product(
            ops.reshape(signal, (batch, length, heads, -1)),
            path,
            dict(zip(parameters, tensors[:count], strict=True)),
            dict(zip(inputs, tensors[count:], strict=True)),
        )
        signal = ops.reshape(signal, (batch, length, heads, key.shape[-1], width))
        return ops.einsum("btnf,btnfd->btnd", query, signal)

    tensors = (*parameters.values(), *inputs.values())
    if feature_chunk is None or feature_chunk >= key.shape[-1]:
        return of_some_features(query, key, x, *tensors)
    chunks = tuple(_feature_chunks(part, feature_chunk) for part in (query, key))
    rematerialised = keras.remat(of_some_features)
    parts = map_in_turn(lambda chunk: rematerialised(*chunk, x, *tensors), chunks)
    return ops.sum(parts, axis=0)


def _feature_chunks(features: Features, size: int) -> Float[Tensor, "count B T N size"]:
    """Features cut into parts of `size`, filled up with zeros."""
    missing = -features.shape[-1] % size
    features = pad(features, ((0, 0), (0, 0), (0, 0), (0, missing)))
    batch, length, heads, count = ops.shape(features)
    features = ops.reshape(features, (batch, length, heads, count // size, size))
    return ops.transpose(features, (3, 0, 1, 2, 4))
