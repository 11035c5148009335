"""A mask whose factors are a learned function of the distance of two nodes of any graph."""

from typing import Unpack

import keras
import numpy as np
from keras import ops

from keras_graphattn.checks import whole
from keras_graphattn.masks.inputs import Length, Tensors
from keras_graphattn.masks.mask import Mask, MaskOptions, Positions, Rows, Shape
from keras_graphattn.numerics.precision import take
from keras_graphattn.types import Float, Int, Tensor


@keras.saving.register_keras_serializable(package="keras_graphattn")
class DistanceTable(Mask):
    """M[i, j] = f(distance of i and j), with a learned table f of distances per head.

    Each call takes `distances`, integers of shape (B, T, T): numbers of edges of shortest paths,
    as `graphs.precompute(graphs, "distances")` has them. A pair without a path, -1, has the factor
    0. A pair with a virtual node, -2, has a factor of its own. The only paths are "dense" and
    "blockwise", as the distances are a matrix already. On a tree, `Tree` needs no matrix. For
    softmax attention, `biases.ShortestPath` adds a number to the score.

    Args:
        max_distance: Distances above it count as it.
        **kwargs: Those of every `Mask`.

    Weights:
        `log_table` of shape (max_distance + 2, num_heads), the logarithms of f at 0 to
        `max_distance` and at a virtual node. They start at 0, so every factor starts at 1.

    Raises:
        ValueError: For a `max_distance` below 1, and for wrong distances.

    Example:

    >>> mask = DistanceTable(max_distance=5)
    >>> x = np.array([1.0, 10.0, 100.0], "float32").reshape((1, 3, 1, 1))
    >>> distances = np.array([[[0, 1, -1], [1, 0, -1], [-1, -1, 0]]])
    >>> outputs = mask.apply(x, distances=distances)
    >>> keras.ops.convert_to_numpy(outputs).ravel().tolist()
    [11.0, 11.0, 100.0]

    Source: Choromanski et al., arXiv 2107.07999, Section 3: masks f(dist(i, j)) of a graph.
    """

    inputs_at_call = ("distances",)
    _settings = ("max_distance",)

    def __init__(self, max_distance: int = 20, **kwargs: Unpack[MaskOptions]) -> None:
        super().__init__(**kwargs)
        self.max_distance: int = whole()("max_distance", max_distance, {})

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        start = np.zeros((self.max_distance + 2, self.num_heads))
        self.log_table = self._add_parameter("log_table", start)

    def parameters(self) -> Tensors:
        table = ops.exp(self._weights("log_table")["log_table"])
        known = self.max_distance + 1
        no_path = ops.zeros_like(table[:1])
        return {"table": ops.concatenate([table[:known], no_path, table[known:]], axis=0)}

    def _rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
        distances = take(inputs["distances"], positions, axis=1)
        return at_distances(parameters["table"], distances, self.max_distance)


def at_distances(
    table: Float[Tensor, "rows N"], distances: Int[Tensor, "B R T"], max_distance: int
) -> Rows:
    """The row of a table for each distance, (B, N, R, T).

    The rows are those of the distances 0 to `max_distance`, which larger ones count as, of no path
    (-1), and of a virtual node (-2).
    """
    distances = ops.cast(distances, "int32")
    rows = ops.where(distances < 0, max_distance - distances, distances)
    rows = ops.where(distances > max_distance, max_distance, rows)
    return ops.transpose(take(table, rows, axis=0), (0, 3, 1, 2))
