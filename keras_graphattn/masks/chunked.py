"""Masks computed in chunks of tokens: causal, segments, exponentials, and their products."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_graphattn.masks.input_checks import marked
from keras_graphattn.masks.mask import Mask, Tensors
from keras_graphattn.masks.precision import in_one_dtype
from keras_graphattn.numerics.precision import take
from keras_graphattn.ops.kernel.chunks import (
    advanced_state,
    chunked_attention,
    initial_chunked_state,
    segment_runs,
)
from keras_graphattn.ops.kernel.decays import Decay, decay_matrix

Tensor = Any


class Form(NamedTuple):
    """The factor of tokens i and j: [j <= i] [same segment] sum_r c_r exp(-a_r |i - j|)."""

    causal: bool = False
    decay: Decay | None = None
    segment_ids: Tensor | None = None


class ChunkedMask(Mask):
    """Base of the masks with a `Form`: linear in the length, with a state if causal."""

    paths: tuple[str, ...] = ("dense", "blockwise", "chunked")

    @property
    def num_decays(self) -> int:
        """Number R of exponentials. The state has R m x D numbers for each head."""
        return 1

    @property
    def has_state(self) -> bool:
        return self.is_causal

    def form(self, parameters: Tensors, inputs: Tensors) -> Form:
        """Returns the mask's form, from its weights and inputs."""
        raise NotImplementedError(f"{type(self).__name__} must write `form`.")

    def _rows(self, positions: Tensor, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        form = self.form(parameters, inputs)
        order = ops.arange(length, dtype="int32")
        distance = ops.cast(positions, "int32")[:, None] - order[None, :]  # (R, T)
        rows = ops.ones((1, 1, 1, 1), "float32")
        if form.decay is not None:
            rows = decay_matrix(form.decay, ops.abs(distance))[None]  # (1, N, R, T)
        if form.causal:
            rows = ops.where(distance >= 0, rows, ops.cast(0.0, rows.dtype))
        if form.segment_ids is not None:
            runs, kept = segment_runs(form.segment_ids)
            seen = ops.equal(take(runs, positions, axis=1)[:, :, None], runs[:, None, :])
            seen = ops.logical_and(seen, kept[:, None, :])  # (B, R, T)
            rows = ops.where(seen[:, None], rows, ops.cast(0.0, rows.dtype))
        return rows

    def _signal(self, x: Tensor, path: str, parameters: Tensors, inputs: Tensors) -> Tensor:
        ones = ops.ones_like(x[..., :1])  # (B, T, N, 1): one feature that is 1 everywhere
        return self._attend(ones, ones, x, path, parameters, inputs, None)

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
        form = self.form(parameters, inputs)
        return chunked_attention(query_features, key_features, x, **form._asdict())

    def get_initial_state(self, batch_size: int, num_heads: int, features: int, width: int) -> Any:
        if not self.has_state:
            return super().get_initial_state(batch_size, num_heads, features, width)
        return initial_chunked_state(batch_size, num_heads, features, width, self.num_decays)

    def step(
        self, state: Any, query_features: Tensor, key_features: Tensor, x: Tensor, **inputs: Tensor
    ) -> tuple[Tensor, Any]:
        if not self.has_state:
            return super().step(state, query_features, key_features, x, **inputs)
        dtype = x.dtype
        inputs, wrong = self.prepare(x, **inputs)
        (query, key, x), parameters, inputs = in_one_dtype(
            (query_features, key_features, x), self.parameters(), inputs
        )
        state = state._replace(sums=ops.cast(state.sums, x.dtype))
        form = self.form(parameters, inputs)
        outputs = chunked_attention(query, key, x, **form._asdict(), state=state)  # (B, t, N, D)
        state = advanced_state(state, key, x, decay=form.decay, segment_ids=form.segment_ids)
        state = state._replace(sums=marked(state.sums, wrong))
        return ops.cast(marked(outputs, wrong), dtype), state


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Causal(ChunkedMask):
    """M[i, j] = 1 for j <= i, else 0: each token sees itself and the tokens before it.

    Example:

    >>> mask = Causal()
    >>> keras.ops.convert_to_numpy(mask.dense(3))[0, 0].tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    >>> x = np.array([1.0, 10.0, 100.0], "float32").reshape((1, 3, 1, 1))
    >>> keras.ops.convert_to_numpy(mask.apply(x)).ravel().tolist()
    [1.0, 11.0, 111.0]
    """

    @property
    def is_causal(self) -> bool:
        return True

    def form(self, parameters: Tensors, inputs: Tensors) -> Form:
        return Form(causal=True)


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Segments(ChunkedMask):
    """M[i, j] = 1 if i and j are in the same segment, else 0: for packing and padding.

    Several sequences that are packed into one do not see each other, and no token sees padding.
    Each call takes the segments as an integer tensor `segment_ids` of shape (B, T). A segment is a
    run of equal ids. If an id appears again after another id or after padding, it starts a new
    segment, on every path. To let separate runs of one id see each other, sort the tokens by id
    first, or give an `attention_mask` to the layer. A negative id marks padding: it sees no token,
    and no token sees it.

    Example:

    >>> mask = Segments()
    >>> matrix = mask.dense(segment_ids=np.array([[4, 4, 9, -1]]))
    >>> keras.ops.convert_to_numpy(matrix)[0, 0].tolist()
    [[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """

    inputs_at_call = ("segment_ids",)

    def form(self, parameters: Tensors, inputs: Tensors) -> Form:
        return Form(segment_ids=inputs["segment_ids"])

    def _known_length(self, inputs: Tensors) -> Any:
        return ops.shape(inputs["segment_ids"])[1]
