"""The base of masks over trees and graphs: number of nodes, weights per head, layouts."""

from typing import Any

import numpy as np
from keras import ops

from keras_graphattn.checks import numpy_of, whole
from keras_graphattn.masks.inputs import Length, Tensors
from keras_graphattn.masks.mask import Mask, Positions, Rows, Signal, widest_dtype
from keras_graphattn.numerics.precision import at_least_float32, constant
from keras_graphattn.types import Float, Tensor

Nodes = Float[Tensor, "T N _"]  # all columns of a node and head: (T, N, B D)

ROWS_FROM_MATRIX = 1024  # up to this length, `_rows` forms the whole matrix


class TopologyMask(Mask):
    """A mask over the nodes of a topology, given once or with each batch."""

    num_nodes: int | None = None  # known if the topology is given once
    seed: int | None = None  # of the walks that the mask has drawn
    _topology: tuple[str, str] = ("graph", "edges")  # the arguments that give it: once, each call

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        if self.seed is not None:
            store["seed"] = np.asarray(self.seed)

    def load_own_variables(self, store: Any) -> None:
        """Loads the weights, which fit only the walks with which they were saved."""
        weights = dict(store)
        saved = weights.pop("seed", self.seed)
        if saved != self.seed:
            raise ValueError(
                "These weights were saved with other walks. Received: a file of walks with "
                f"seed={int(saved)}, for a {type(self).__name__} with seed={self.seed}. Make the "
                f"mask with seed={int(saved)}."
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
        if length is not None and length <= limit:
            return "dense"
        return self._own_path((width or 64) * (features or 1))

    def _own_path(self, columns: int = 64) -> str:
        """The path that never forms M, for a signal with this number of columns."""
        return self.paths[-1]

    def _rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
        if isinstance(length, int) and length <= ROWS_FROM_MATRIX:
            return super()._rows(positions, length, parameters, inputs)
        dtype = widest_dtype(parameters.values())
        # rows of M are columns of its transpose, which are products with unit vectors (T, R)
        columns = ops.cast(
            ops.equal(ops.arange(length, dtype="int32")[:, None], positions[None]), dtype
        )
        rows = self._transposed_columns(columns, length, parameters, inputs)
        return ops.transpose(rows, (0, 2, 3, 1))

    def _transposed_columns(
        self, columns: Float[Tensor, "T R"], length: Length, parameters: Tensors, inputs: Tensors
    ) -> Float[Tensor, "B? T N R"]:
        """M^T times the same columns for every sequence and head; M is symmetric by default."""
        batch = ops.shape(next(iter(inputs.values())))[0] if inputs else 1
        shape = (batch, length, self.num_heads, ops.shape(columns)[1])
        signal = ops.broadcast_to(columns[None, :, None, :], shape)
        return self._signal(signal, self._own_path(), parameters, inputs)

    def _check_length(self, length: int) -> None:
        if self.num_nodes is not None and length != self.num_nodes:
            once, at_call = self._topology
            raise ValueError(
                f"The `{once}` of this {type(self).__name__} has {self.num_nodes} nodes, one for "
                f"each token. Received: length={length}. Pad `{once}` with isolated nodes, or "
                f"leave it out of the constructor and give `{at_call}` with each call."
            )

    def _known_length(self, inputs: Tensors) -> Length:
        return super()._known_length(inputs) if self.num_nodes is None else self.num_nodes

    def _constant(self, start: np.ndarray) -> Tensor:
        """A start value that is not learned, as a tensor."""
        return constant(start, dtype=widest_dtype((), self.variable_dtype))

    def _of_heads(self, name: str, number: Any, *others: int) -> np.ndarray:
        """Returns a start value as an array of shape (*others, num_heads)."""
        shape = (*others, self.num_heads)
        try:
            return np.broadcast_to(np.asarray(number, "float64"), shape)
        except ValueError:
            raise ValueError(
                f"`{name}` must broadcast to {shape}, where the last axis is heads. Received: "
                f"{name}={number!r}"
            ) from None


def finite(name: str, number: Any, positive: bool = False) -> Any:
    """Returns a finite number, or a nested list of finite numbers, as plain Python.

    Raises:
        ValueError: For any other value.
    """
    array = numpy_of(number)
    array = (
        array.astype("float64") if array.dtype.kind in "iuf" and array.size else np.asarray(np.nan)
    )
    if not np.isfinite(array).all() or (positive and (array <= 0.0).any()):
        kind = "positive finite" if positive else "finite"
        raise ValueError(
            f"`{name}` must be a {kind} number, or a list of them. Received: {name}={number!r}"
        )
    return array.tolist()


def whole_number(name: str, number: Any, least: int) -> int:
    """Returns an integer of at least `least`.

    Raises:
        ValueError: For any other value.
    """
    return int(whole(least)(name, number, {}))


def to_nodes(x: Signal) -> Nodes:
    """(B, T, N, D) -> (T, N, B D): nodes first, all columns of a head next to each other."""
    _, length, heads, _ = ops.shape(x)
    return ops.reshape(ops.transpose(x, (1, 2, 0, 3)), (length, heads, -1))


def from_nodes(nodes: Nodes, x: Signal) -> Signal:
    """The inverse of `to_nodes`: (T, N, B D) -> (B, T, N, D), the shape of `x`."""
    batch, length, heads, width = ops.shape(x)
    return ops.transpose(ops.reshape(nodes, (length, heads, batch, width)), (2, 0, 1, 3))


def in_float32(weights: dict[str, Any]) -> Tensors:
    """Returns weights as tensors of at least float32."""
    return {name: at_least_float32(weight) for name, weight in weights.items()}
