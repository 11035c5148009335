"""The base of all masks: a matrix of factors on attention, as a linear operator on tokens.

Masked kernel attention multiplies the kernel phi(q_i) . phi(k_j) by a factor M[i, j] that depends
on the two positions. It needs only the product M x with signals along the token axis, and many
masks compute this product in less than quadratic time. Every mask also returns its matrix, whole
(`dense`) or some rows at a time (`rows`). Short sequences use the matrix, and tests compare the
two ways.
"""

from typing import Any, ClassVar, cast

import keras
from keras import ops

from keras_graphattn.checks import (
    Sizes,
    as_tensor,
    check_dtype_policy,
    check_shape,
    whole,
)
from keras_graphattn.coefficient_rate import MASK_MULTIPLIER, CoefficientRate
from keras_graphattn.masks.call_inputs import CallInputs, Prepared
from keras_graphattn.masks.calls import (
    matrix_of_call,
    no_state_error,
    prepared_matrix,
    prepared_signal,
    product_of_call,
)
from keras_graphattn.masks.feature_sums import attend_by_products
from keras_graphattn.masks.formed import FORMED_PATHS
from keras_graphattn.numerics.precision import take

Tensor = Any
Tensors = dict[str, Tensor]

DENSE_LIMIT = 1024  # for longer sequences, "auto" forms blocks of rows if a mask has no own path


class Mask(CoefficientRate, CallInputs, keras.layers.Layer):  # type: ignore[misc]
    """M, a T x T matrix of non-negative factors per head, as a linear operator.

    A subclass names its `paths` and `inputs_at_call`, and writes at least one of `_matrix` and
    `_rows`. For its own path it also writes `_signal`, and `_attend` if attention has a better
    form than Algorithm 1. These methods take the mask's weights and call-time inputs as
    dictionaries of tensors. They read only settings from `self`: on TensorFlow, rematerialisation
    silently drops the gradient of captured tensors. M is float64 if the weights or the signal are
    float64, so the methods compute in the dtype of these tensors.

    Attributes:
        paths: The ways to compute: "dense" forms M, "blockwise" forms some query rows of M at a
            time, the others never form M. The path for long sequences is the last.
        inputs_at_call: Names of the tensors that every call needs, such as segment ids.

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
    """

    default_multiplier: ClassVar[float] = MASK_MULTIPLIER
    paths: tuple[str, ...] = FORMED_PATHS
    block_size: ClassVar[int] = 512
    _holder: Any = None  # a weak reference to the layer that the mask's weights belong to

    def __init__(self, **kwargs: Any) -> None:
        check_dtype_policy(kwargs.get("dtype"))
        super().__init__(**kwargs)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        check_dtype_policy(config.get("dtype"))  # Keras reads it before it calls `__init__`
        return super().from_config(config)

    @property
    def is_causal(self) -> bool:
        """Whether M[i, j] = 0 wherever j > i."""
        return False

    @property
    def hides_keys(self) -> bool:
        """Whether some M[i, j] may be 0. If so, a row must not depend on keys it cannot see.

        `False` for a mask whose factors are all positive: its rows may share numbers of all keys.
        """
        return True

    @property
    def has_state(self) -> bool:
        """Whether attention can run token by token with a state of fixed size."""
        return False

    # For subclasses to write

    def parameters(self) -> Tensors:
        """The differentiable tensors that define M, at least float32, by name; after `build`."""
        return {}

    def _matrix(self, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        """M, of shape (1 or B, 1 or N, T, T)."""
        if type(self)._rows is Mask._rows:
            raise NotImplementedError(f"{type(self).__name__} must write `_matrix` or `_rows`.")
        return self._rows(ops.arange(length, dtype="int32"), length, parameters, inputs)

    def _rows(self, positions: Tensor, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        """M[positions, :], of shape (1 or B, 1 or N, R, T)."""
        return take(self._matrix(length, parameters, inputs), positions, axis=2)

    def _block_rows(
        self, positions: Tensor, length: Any, parameters: Tensors, inputs: Tensors
    ) -> Tensor:
        """`_rows` for consecutive positions that start at a multiple of R, if that is faster.

        Positions past the end are replaced by the last position; their rows are never read.
        """
        return self._rows(positions, length, parameters, inputs)

    def _signal(self, x: Tensor, path: str, parameters: Tensors, inputs: Tensors) -> Tensor:
        """M x on one of the mask's own paths.

        `x` has shape (B, T, N, D). The result has its shape and dtype, which is at least float32.
        """
        raise NotImplementedError(f"{type(self).__name__} must write `_signal` for {path!r}.")

    def _causal_signal(self, x: Tensor, path: str, parameters: Tensors, inputs: Tensors) -> Tensor:
        """(M o causal) x on one of the mask's own paths, if the mask has such a form."""
        raise NotImplementedError(f"{type(self).__name__} has no causal form.")

    def _attend(
        self,
        query_features: Tensor,
        key_features: Tensor,
        x: Tensor,
        path: str,
        parameters: Tensors,
        inputs: Tensors,
        feature_chunk: int | None,
    ) -> Tensor:
        """[(phi(Q) phi(K)^T) o M] x on one of the mask's own paths: Algorithm 1."""

        def product(signal: Tensor, parameters: Tensors, inputs: Tensors) -> Tensor:
            return self._signal(signal, path, parameters, inputs)

        return attend_by_products(
            product, query_features, key_features, x, parameters, inputs, feature_chunk
        )

    def _check_length(self, length: int) -> None:
        """Raises a `ValueError` if the mask does not exist at this length."""

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
        """The same for the product with a causal mask, for masks with `_causal_signal`."""
        return self.choose_path(length, features, width)

    # For users to call

    def build(self, input_shape: Any) -> None:
        """Creates the weights for signals of shape (B, T, N, D)."""
        if len(input_shape) != 4 or input_shape[2] is None:
            raise ValueError(
                f"{type(self).__name__} acts on signals of shape (batch, length, heads, width) "
                f"with a known number of heads. Received: shape={tuple(input_shape)}"
            )
        self.num_heads = int(input_shape[2])

    def call(self, x: Tensor, **inputs: Tensor) -> Tensor:
        return self.apply(x, **inputs)

    def compute_output_shape(self, input_shape: Any, **inputs: Any) -> Any:
        return input_shape

    def apply(self, x: Tensor, path: str = "auto", **inputs: Tensor) -> Tensor:
        """Returns M x: for every head, a product along the token axis.

        Args:
            x: Tensor of shape (B, T, N, D).
            path: One of `paths`, or `"auto"`.
            **inputs: The tensors of `inputs_at_call`.

        Returns:
            A tensor of the shape and dtype of `x`; sums are at least float32.

        Raises:
            ValueError: For an unknown path, missing or unknown inputs, or a length that the mask
                does not have.
        """
        x, sizes = as_tensor("x", x), cast("Sizes", {})
        check_shape("x", x, ("B T N D",), sizes)
        prepared = prepared_signal(self, x, inputs, sizes)
        return product_of_call(self, path, None, None, x, prepared)

    def attend(
        self,
        query_features: Tensor,
        key_features: Tensor,
        x: Tensor,
        path: str = "auto",
        feature_chunk: int | None = None,
        prepared: Prepared | None = None,
        **inputs: Tensor,
    ) -> Tensor:
        """Returns [(phi(Q) phi(K)^T) o M] x: masked kernel attention before it is normalised.

        If `x` has a column of ones, this column of the result is the normaliser.

        Args:
            query_features: phi(Q), of shape (B, T, N, m).
            key_features: phi(K), of shape (B, T, N, m).
            x: Tensor of shape (B, T, N, D).
            path: One of `paths`, or `"auto"`.
            feature_chunk: Number of features at a time, for paths that work on an (n, m, D)
                tensor. It saves memory and gives the same numbers. All at once by default.
            prepared: The result of `prepare`. It replaces `inputs`, for several products with one
                mask.
            **inputs: The tensors of `inputs_at_call`.

        Returns:
            A tensor of the shape and dtype of `x`; sums are at least float32.

        Raises:
            ValueError: As for `apply`.

        Source: Choromanski et al., arXiv 2107.07999, Algorithm 1 and Lemma 3.1.
        """
        given = (("x", x), ("query_features", query_features), ("key_features", key_features))
        x, query_features, key_features = (as_tensor(name, tensor) for name, tensor in given)
        sizes: Sizes = {}
        check_shape("x", x, ("B T N D",), sizes)
        check_shape("query_features", query_features, ("B T N m",), sizes)
        check_shape("key_features", key_features, ("B T N m",), sizes)
        if feature_chunk is not None:
            whole()("feature_chunk", feature_chunk, sizes)
        if prepared is None:
            prepared = prepared_signal(self, x, inputs, sizes)
        return product_of_call(self, path, query_features, key_features, x, prepared, feature_chunk)

    def prepare(self, x: Tensor, **inputs: Tensor) -> Prepared:
        """Checks the inputs of a call once, for several products with `attend`.

        Args:
            x: A signal of shape (B, T, N, D).
            **inputs: The tensors of `inputs_at_call`.

        Returns:
            The value that `attend` takes as `prepared`.

        Raises:
            ValueError: As for `apply`.
        """
        x, sizes = as_tensor("x", x), cast("Sizes", {})
        check_shape("x", x, ("B T N D",), sizes)
        return prepared_signal(self, x, inputs, sizes)

    def dense(self, length: int | None = None, **inputs: Tensor) -> Tensor:
        """Returns the matrix M, for tests, plots and short sequences.

        Args:
            length: Number of tokens T. It is optional if the mask or its inputs know it.
            **inputs: The tensors of `inputs_at_call`.

        Returns:
            A tensor of shape (1 or B, 1 or N, T, T), with gradients for all weights. It is
            float64 if the mask's weights or its `dtype` are float64, else float32.
        """
        length, prepared = prepared_matrix(self, length, inputs)
        return matrix_of_call(self, None, length, prepared)

    def rows(self, positions: Tensor, length: int | None = None, **inputs: Tensor) -> Tensor:
        """Returns M[positions, :]: a few query rows, without the rest of M if the mask can.

        Args:
            positions: Integer tensor of shape (R,), with numbers from 0 to T - 1.
            length: Number of tokens T. It is optional if the mask or its inputs know it.
            **inputs: The tensors of `inputs_at_call`.

        Returns:
            A tensor of shape (1 or B, 1 or N, R, T), of the dtype of `dense`.

        Raises:
            ValueError: As for `apply`, and for a known position below 0 or above T - 1. Compiled
                code cannot raise it: there, the row of such a position is NaN.
        """
        length, prepared = prepared_matrix(self, length, inputs)
        return matrix_of_call(self, positions, length, prepared)

    def get_initial_state(self, batch_size: int, num_heads: int, features: int, width: int) -> Any:
        """Returns the state of `step` before the first token: O(features x width) per head."""
        raise no_state_error(self)

    def step(
        self, state: Any, query_features: Tensor, key_features: Tensor, x: Tensor, **inputs: Tensor
    ) -> tuple[Tensor, Any]:
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
        raise no_state_error(self)

    # Hooks of `keras_graphattn.masks.calls`

    def _check_built(self) -> None:
        """Raises a `ValueError` if the mask has no weights yet."""
        if not self.built and type(self).build is not Mask.build:
            raise ValueError(
                f"This {type(self).__name__} has no weights yet. Call `build` with the shape of a "
                "signal (batch, length, heads, width) first."
            )

    def _known_length(self, inputs: Tensors) -> Any:
        """The number of tokens, if the mask or its inputs know it."""
        raise ValueError(
            f"{type(self).__name__} exists at any length. Received: length=None. Give `length`."
        )
