"""The base of all masks: a matrix of factors on attention, as a linear operator on tokens.

Masked kernel attention multiplies the kernel phi(q_i) . phi(k_j) by a factor M[i, j] that depends
on the two positions. All it needs of M is the product M x with signals along the token axis, which
a mask can often give in less than quadratic time. Every mask can also show its matrix, whole
(`dense`) or some rows at a time (`rows`), so that short sequences run the plain way, and so that
the two ways check each other.
"""

from typing import Any, ClassVar, cast

import keras
from keras import ops

from keras_graphattn.checks.arguments import (
    Sizes,
    as_tensor,
    check_dtype_policy,
    check_shape,
    integers,
    whole,
)
from keras_graphattn.masks.call_inputs import CallInputs, Prepared
from keras_graphattn.masks.formed import formed_product
from keras_graphattn.masks.input_checks import marked
from keras_graphattn.masks.precision import in_one_dtype, widest_dtype
from keras_graphattn.ops.kernel.attention import sum_over_features

Tensor = Any
Tensors = dict[str, Tensor]

DENSE_LIMIT = 1024  # beyond it, "auto" takes rows in blocks where a mask has no path of its own


class Mask(CallInputs, keras.layers.Layer):  # type: ignore[misc]
    """M, a T x T matrix of non-negative factors per head, as a linear operator.

    A subclass names its `paths` and `inputs_at_call` and writes at least one of `_matrix` and
    `_rows`; for a path of its own also `_signal`, and `_attend` where attention has a better form
    than Algorithm 1. These take the mask's weights and call-time inputs as dictionaries of
    tensors and touch `self` for settings alone: on TensorFlow, rematerialisation drops the
    gradient of captured tensors in silence. M is float64 where the weights or the signal are, so
    what they compute follows the dtype of these tensors.

    Attributes:
        paths: The ways to compute: "dense" forms M, "blockwise" forms it for some query rows at a
            time, the others never form it. The one for long sequences comes last.
        inputs_at_call: Names of the tensors that every call needs, such as segment ids.

    The values of `segment_ids`, `parents`, `edges`, `edge_weights`, `walks` and `entries` are
    checked, as far as they are known when the mask is called. Outside compiled code they are: a
    wrong one raises a `ValueError` that names example and entry. In compiled code (`jax.jit`,
    `tf.function`, `fit`) an error is not possible: there the outputs of an example with a wrong
    entry are NaN, and those of all others are exactly what they are without it. Check batches
    in the data pipeline with `check_inputs`, and no NaN comes up.

    Example:

    >>> class Window(Mask):
    ...     def _rows(self, positions, length, parameters, inputs):
    ...         far = keras.ops.abs(positions[:, None] - keras.ops.arange(length)[None, :]) > 1
    ...         return keras.ops.cast(keras.ops.logical_not(far), "float32")[None, None]
    >>> keras.ops.convert_to_numpy(Window().dense(3))[0, 0].tolist()
    [[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]
    """

    paths: tuple[str, ...] = ("dense", "blockwise")
    block_size: ClassVar[int] = 512

    def __init__(self, **kwargs: Any) -> None:
        check_dtype_policy(kwargs.get("dtype"))
        super().__init__(**kwargs)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        check_dtype_policy(config.get("dtype"))  # Keras looks into it before `__init__`
        return super().from_config(config)

    @property
    def is_causal(self) -> bool:
        """Whether M[i, j] = 0 wherever j > i."""
        return False

    @property
    def hides_keys(self) -> bool:
        """Whether some M[i, j] may be 0. If so, a row must not depend on keys that it cannot see.

        A mask whose factors are all positive says `False`, and may share numbers among all keys.
        """
        return True

    @property
    def has_state(self) -> bool:
        """Whether attention under the mask goes token by token with a state of fixed size."""
        return False

    # What subclasses write

    def parameters(self) -> Tensors:
        """The tensors with a gradient that M is made of, at least float32, by name."""
        return {}

    def _matrix(self, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        """M, of shape (1 or B, 1 or N, T, T)."""
        if type(self)._rows is Mask._rows:
            raise NotImplementedError(f"{type(self).__name__} must write `_matrix` or `_rows`.")
        return self._rows(ops.arange(length), length, parameters, inputs)

    def _rows(self, positions: Tensor, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        """M[positions, :], of shape (1 or B, 1 or N, R, T)."""
        return ops.take(self._matrix(length, parameters, inputs), positions, axis=2)

    def _block_rows(
        self, positions: Tensor, length: Any, parameters: Tensors, inputs: Tensors
    ) -> Tensor:
        """`_rows` for a run of positions from a multiple of R on, where that is faster.

        Positions past the end are put on the last one; nobody reads their rows.
        """
        return self._rows(positions, length, parameters, inputs)

    def _signal(self, x: Tensor, path: str, parameters: Tensors, inputs: Tensors) -> Tensor:
        """M x on one of the mask's own paths; `x` (B, T, N, D) and the result are of one dtype,
        at least float32."""
        raise NotImplementedError(f"{type(self).__name__} must write `_signal` for {path!r}.")

    def _causal_signal(self, x: Tensor, path: str, parameters: Tensors, inputs: Tensors) -> Tensor:
        """(M o causal) x on one of the mask's own paths, for masks that have such a form."""
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
        names = (*parameters, *inputs)

        def apply(signal: Tensor, *tensors: Tensor) -> Tensor:
            found = dict(zip(names, tensors, strict=True))
            return self._signal(
                signal,
                path,
                {name: found[name] for name in parameters},
                {name: found[name] for name in inputs},
            )

        tensors = (*parameters.values(), *inputs.values())
        return sum_over_features(apply, query_features, key_features, x, tensors, feature_chunk)

    def _check_length(self, length: int) -> None:
        """Raises a `ValueError` for a length that the mask's topology does not have."""

    def choose_path(
        self, length: int | None, features: int | None = None, width: int | None = None
    ) -> str:
        """The path that "auto" takes.

        Args:
            length: Number of tokens T; `None` where it is only known at run time.
            features: Number of features m of the attention; `None` for M x alone.
            width: Number of columns D of the signal, where it matters.

        Returns:
            One of `paths`.
        """
        del features, width
        if self.paths[-1] not in ("dense", "blockwise"):
            return self.paths[-1]
        return "dense" if length is not None and length <= DENSE_LIMIT else "blockwise"

    def choose_causal_path(
        self, length: int | None, features: int | None = None, width: int | None = None
    ) -> str:
        """The same for the product with a causal mask, where `_causal_signal` is there."""
        return self.choose_path(length, features, width)

    # What users call

    def build(self, input_shape: Any) -> None:
        """Makes the weights for signals of shape (B, T, N, D)."""
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
        """M x, for every head along the token axis.

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
        inputs, wrong = self._prepared(x, inputs, sizes)
        path = self._checked_path(path, x.shape[1], None, x.shape[3])
        if 0 in tuple(x.shape):
            return x  # no sequences, or sequences of no tokens
        (signal,), parameters, inputs = in_one_dtype((x,), self.parameters(), inputs)
        if path in Mask.paths:
            result = formed_product(self, path, None, None, signal, parameters, inputs)
        else:
            result = self._signal(signal, path, parameters, inputs)
        return ops.cast(marked(result, wrong), x.dtype)

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
        """[(phi(Q) phi(K)^T) o M] x: masked kernel attention before it is normalised.

        With a column of ones in `x`, that column of the result is the normaliser.

        Args:
            query_features: phi(Q), of shape (B, T, N, m).
            key_features: phi(K), of shape (B, T, N, m).
            x: Tensor of shape (B, T, N, D).
            path: One of `paths`, or `"auto"`.
            feature_chunk: Number of features at a time where a path works on an (n, m, D)
                tensor; less memory, the same numbers. All at once by default.
            prepared: What `prepare` returned for the inputs, in their place: for several products
                under one mask.
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
            prepared = self._prepared(x, inputs, sizes)
        inputs, wrong = prepared
        features = query_features.shape[-1]
        path = self._checked_path(path, x.shape[1], features, x.shape[3])
        if 0 in tuple(x.shape):
            return x
        if features == 0:
            return ops.zeros_like(x)  # an empty sum
        (signal, query, key), parameters, inputs = in_one_dtype(
            (x, query_features, key_features), self.parameters(), inputs
        )
        if path in Mask.paths:
            result = formed_product(self, path, query, key, signal, parameters, inputs)
        else:
            result = self._attend(query, key, signal, path, parameters, inputs, feature_chunk)
        return ops.cast(marked(result, wrong), x.dtype)

    def prepare(self, x: Tensor, **inputs: Tensor) -> Prepared:
        """Checks what comes with a call once, for several products with `attend`.

        Args:
            x: A signal of shape (B, T, N, D).
            **inputs: The tensors of `inputs_at_call`.

        Returns:
            What `attend` takes as `prepared`.

        Raises:
            ValueError: As for `apply`.
        """
        x, sizes = as_tensor("x", x), cast("Sizes", {})
        check_shape("x", x, ("B T N D",), sizes)
        return self._prepared(x, inputs, sizes)

    def dense(self, length: int | None = None, **inputs: Tensor) -> Tensor:
        """M itself: for tests, plots and short sequences.

        Args:
            length: Number of tokens T; may be left out where the mask or its inputs know it.
            **inputs: The tensors of `inputs_at_call`.

        Returns:
            A tensor of shape (1 or B, 1 or N, T, T), with gradients for all weights: float32, or
            float64 where the mask's weights or its `dtype` are.
        """
        length, (inputs, wrong) = self._prepared_matrix(length, inputs)
        _, parameters, inputs = in_one_dtype((), self.parameters(), inputs)
        dtype = self._dtype_of(parameters)
        if _is_empty(length, inputs):
            return ops.zeros((_batch(inputs), 1, length, length), dtype)
        return ops.cast(marked(self._matrix(length, parameters, inputs), wrong), dtype)

    def rows(self, positions: Tensor, length: int | None = None, **inputs: Tensor) -> Tensor:
        """M[positions, :]: a few query rows, for masks that can without forming the rest.

        Args:
            positions: Integer tensor of shape (R,).
            length: Number of tokens T; may be left out where the mask or its inputs know it.
            **inputs: The tensors of `inputs_at_call`.

        Returns:
            A tensor of shape (1 or B, 1 or N, R, T), of the dtype of `dense`.
        """
        length, (inputs, wrong) = self._prepared_matrix(length, inputs)
        positions = ops.cast(integers("R")("positions", positions, {}), "int32")
        _, parameters, inputs = in_one_dtype((), self.parameters(), inputs)
        dtype = self._dtype_of(parameters)
        if _is_empty(length, inputs) or positions.shape[0] == 0:
            return ops.zeros((_batch(inputs), 1, ops.shape(positions)[0], length), dtype)
        return ops.cast(marked(self._rows(positions, length, parameters, inputs), wrong), dtype)

    def get_initial_state(self, batch_size: int, num_heads: int, features: int, width: int) -> Any:
        """The state of `step` before the first token: O(features x width) for each head."""
        raise ValueError(self._no_state())

    def step(
        self, state: Any, query_features: Tensor, key_features: Tensor, x: Tensor, **inputs: Tensor
    ) -> tuple[Tensor, Any]:
        """The rows of `attend` for new tokens, one or several, and the state after them.

        Args:
            state: What `get_initial_state` or the step before returned.
            query_features: phi(Q) of the new tokens, of shape (B, t, N, m).
            key_features: phi(K) of the new tokens, of shape (B, t, N, m).
            x: Signal of the new tokens, of shape (B, t, N, D).
            **inputs: The tensors of `inputs_at_call` for the new tokens.

        Raises:
            ValueError: For a mask that has no state of fixed size.
        """
        raise ValueError(self._no_state())

    # What the two share

    def _dtype_of(self, parameters: Tensors) -> str:
        """The dtype of M: that of the weights or, without any, of the mask itself."""
        return widest_dtype(parameters.values(), self.compute_dtype)

    def _no_state(self) -> str:
        reason = "causal, but needs all tokens so far" if self.is_causal else "not causal"
        return (
            f"Token by token, attention needs a causal mask with a state of fixed size. Received: "
            f"the mask {type(self).__name__}, which is {reason}. Use `Causal`, `Exponential("
            "causal=True)` or a product of these."
        )

    def _prepared(self, x: Tensor, inputs: Tensors, sizes: Sizes) -> Prepared:
        shape = x.shape
        if isinstance(shape[1], int):
            self._check_length(shape[1])
        if not self.built:
            self.build(tuple(shape))
        if shape[2] != self.num_heads:
            raise ValueError(
                f"This {type(self).__name__} was built for {self.num_heads} heads. Received: a "
                f"signal `x` of shape (batch, length, heads, width) = {tuple(shape)}"
            )
        found = self._checked_inputs(inputs, sizes)
        return self._judged(inputs, found, ops.shape(x)[1])

    def _prepared_matrix(self, length: int | None, inputs: Tensors) -> tuple[Any, Prepared]:
        """The number of tokens and the inputs of a call that has no signal."""
        found = self._checked_inputs(inputs)
        length = self._length(length, found)
        return length, self._judged(inputs, found, length)

    def _checked_path(
        self, path: str, length: int | None, features: int | None, width: int | None
    ) -> str:
        if path == "auto":
            known = length if isinstance(length, int) else None
            return self.choose_path(known, features, width)
        if path not in self.paths:
            raise ValueError(
                f'`path` of the mask {type(self).__name__} must be "auto" or one of '
                f"{list(self.paths)}. Received: path={path!r}"
            )
        return path

    def _length(self, length: int | None, inputs: Tensors) -> Any:
        self._check_built()
        if isinstance(length, (int, float, str)):
            length = whole(0)("length", length, {})
        if length is None:
            length = self._known_length(inputs)
        if isinstance(length, int):
            self._check_length(length)
        return length

    def _check_built(self) -> None:
        """Raises a `ValueError` for a mask whose weights are still to be made."""
        if not self.built and type(self).build is not Mask.build:
            raise ValueError(
                f"This {type(self).__name__} has no weights yet. Call `build` with the shape of a "
                "signal (batch, length, heads, width) first."
            )

    def _known_length(self, inputs: Tensors) -> Any:
        """The number of tokens, where the mask or its inputs know it."""
        raise ValueError(
            f"{type(self).__name__} exists at any length. Received: length=None. Say which."
        )


def _batch(inputs: Tensors) -> Any:
    """B, as the inputs of the call have it; 1 without any."""
    return ops.shape(next(iter(inputs.values())))[0] if inputs else 1


def _is_empty(length: Any, inputs: Tensors) -> bool:
    """Whether a matrix has no entry: no tokens, or inputs of no example."""
    return (isinstance(length, int) and length == 0) or any(
        x.shape[0] == 0 for x in inputs.values()
    )
