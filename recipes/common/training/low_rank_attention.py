"""Softmax attention of low rank, in linear time, for comparison: Linformer and Nyströmformer."""

from typing import Any

import keras
from keras import layers, ops

from keras_graphattn.checks import check_shape, flag, whole
from keras_graphattn.numerics.precision import at_least_float32, masked_softmax, without_padding
from keras_graphattn.operators.softmax import scores_of
from recipes.common.training.projections import HeadProjections

Tensor = Any

ITERATIONS = 6  # of the pseudo-inverse
KERNEL_SIZE = 33  # tokens of the convolution of the values


class _LowRankAttention(HeadProjections):
    """Base of both layers: every token attends to a few sums or means of tokens.

    Padding becomes 0 before and after the projections. It may hold any number, NaN included. The
    arithmetic between the projections is float32.
    """

    length: int | None = None  # the only T that a built layer takes; None: it takes any

    def __init__(self, num_heads: int, key_dim: int, landmarks: int, **kwargs: Any) -> None:
        super().__init__(num_heads, key_dim, **kwargs)
        self.landmarks = whole(1)("landmarks", landmarks, {})

    def call(self, tokens: Tensor, padding_mask: Tensor) -> Tensor:
        self._check_shapes(tokens, padding_mask)
        mask = ops.cast(padding_mask, "bool")
        tokens = without_padding(tokens, mask)
        query, key, value = (
            at_least_float32(without_padding(dense(tokens), mask))
            for dense in (self.query_dense, self.key_dense, self.value_dense)
        )
        return self.attention_output_dense(self.attended(query, key, value, mask))

    def attended(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """What the heads find, (B, T, N, H), from projected tokens, (B, T, N, H); float32.

        Projected tokens are 0 where the mask (B, T) is `False`.
        """
        raise NotImplementedError

    def compute_output_spec(self, tokens: Any, padding_mask: Any) -> Any:
        self._check_shapes(tokens, padding_mask)
        return super().compute_output_spec(tokens)

    def _check_shapes(self, tokens: Tensor, padding_mask: Tensor) -> None:
        sizes = {} if self.length is None else {"T": (self.length, "build")}
        check_shape("tokens", tokens, ("B T d",), sizes)
        check_shape("padding_mask", padding_mask, ("B T",), sizes)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "landmarks": self.landmarks}


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class LinformerAttention(_LowRankAttention):
    """softmax(Q (E K)^T / sqrt(H)) (F V): k sums over the tokens take the place of all of them.

    E and F, of shape (k, T), are learned, and shared by the heads. They belong to one length T,
    which must be known; a token's place decides its share of each sum.

    Args:
        num_heads: Number of heads, N.
        key_dim: Width of each head, H.
        landmarks: k, the number of sums; T if that is less.
        **kwargs: Those of a Keras layer.

    Call arguments:
        tokens: Tensor of shape (B, T, d).
        padding_mask: Booleans of shape (B, T), `False` at padding, which is 0 in the sums.

    Raises:
        ValueError: If T is not known, or not that of `build`, or if `landmarks` is below 1.

    Source: Wang et al., arXiv 2006.04768, Eq. 7, with headwise sharing (Section 4).
    """

    def build(self, tokens_shape: Any, padding_mask_shape: Any = None) -> None:
        self.length = tokens_shape[1]
        if self.length is None:
            raise ValueError(
                "Linformer's E and F have a column for each token, so that the number of tokens "
                f"must be known. Received: tokens.shape={tuple(tokens_shape)}"
            )
        shape = (min(self.landmarks, self.length), self.length)
        for name in ("key_sums", "value_sums"):
            setattr(self, name, self.add_weight(shape=shape, name=name, autocast=False))
        super().build(tokens_shape)

    def attended(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        key = ops.einsum("kt,btnh->bknh", self.key_sums, key)
        value = ops.einsum("kt,btnh->bknh", self.value_sums, value)
        return _weighted(masked_softmax(scores_of(query, key)), value)


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class NystromformerAttention(_LowRankAttention):
    """The Nyström approximation of softmax attention, by m landmarks.

        F A^+ (B V) + convolution(V),   F = softmax(Q K_m^T / sqrt(H)),
        A = softmax(Q_m K_m^T / sqrt(H)),   B = softmax(Q_m K^T / sqrt(H))

    The landmarks Q_m and K_m are the means of the queries and keys of m segments of the sequence.
    Padding is in no segment, and the lengths of the segments differ by one token at most. A
    sequence of fewer than m tokens has as many landmarks as tokens. The pseudo-inverse A^+ is that
    of 6 iterations.

    Args:
        num_heads: Number of heads, N.
        key_dim: Width of each head, H.
        landmarks: m, the number of landmarks.
        value_convolution: Whether the outputs have the paper's depth-wise convolution of the
            values added, over 33 tokens, with one kernel for each head.
        **kwargs: Those of a Keras layer.

    Call arguments:
        tokens: Tensor of shape (B, T, d).
        padding_mask: Booleans of shape (B, T), `False` at padding.

    Raises:
        ValueError: If `landmarks` is below 1.

    Source: Xiong et al., arXiv 2102.03902, Section 3 and Figure 2, with the kernel size of the
    released code. There all segments have one length, and padding counts as 0 in the means.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        landmarks: int,
        value_convolution: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, key_dim, landmarks, **kwargs)
        self.value_convolution = flag("value_convolution", value_convolution)

    def build(self, tokens_shape: Any, padding_mask_shape: Any = None) -> None:
        if self.value_convolution:
            self.convolution = layers.DepthwiseConv2D(
                (KERNEL_SIZE, 1),
                padding="same",
                use_bias=False,
                data_format="channels_last",
                dtype="float32",
                name="convolution",
            )
            self.convolution.build((*tokens_shape[:2], self.key_dim, self.num_heads))
        super().build(tokens_shape)

    def attended(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        length = value.shape[1]
        known = isinstance(length, int)
        segments = _segments(mask, min(self.landmarks, length) if known else self.landmarks)
        query_means, key_means = (ops.einsum("bmt,btnh->bmnh", segments, x) for x in (query, key))
        seen = ops.any(segments > 0, axis=-1)[:, None, None, :]  # (B, 1, 1, m)
        both = ops.logical_and(seen, ops.swapaxes(seen, -1, -2))
        to_landmarks = masked_softmax(scores_of(query, key_means), seen)
        between = masked_softmax(scores_of(query_means, key_means), both)
        from_landmarks = masked_softmax(scores_of(query_means, key), mask[:, None, None, :])
        of_landmarks = _weighted(_pseudo_inverse(between), _weighted(from_landmarks, value))
        outputs = _weighted(to_landmarks, of_landmarks)
        if self.value_convolution:
            channels_last = self.convolution(ops.swapaxes(value, -1, -2))
            outputs = outputs + ops.swapaxes(channels_last, -1, -2)
        return outputs

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "value_convolution": self.value_convolution}


def _weighted(weights: Tensor, value: Tensor) -> Tensor:
    """Weights (B, N, T, S) times values (B, S, N, H): a tensor (B, T, N, H)."""
    return ops.einsum("bnts,bsnh->btnh", weights, value)


def _segments(mask: Tensor, count: int) -> Tensor:
    """Weights (B, count, T) of the means over segments of the tokens that are not padding.

    With fewer tokens than segments, each token is one, and those between them are empty: 0.
    """
    is_token = ops.cast(mask, "int32")
    total = ops.sum(is_token, axis=1, keepdims=True)
    place = ops.cumsum(is_token, axis=1) - 1
    segment = place * count // ops.maximum(total, 1)
    members = segment[:, None, :] == ops.arange(count, dtype="int32")[:, None]
    members = ops.cast(ops.logical_and(members, mask[:, None, :]), "float32")
    return members / ops.maximum(ops.sum(members, axis=-1, keepdims=True), 1.0)


def _pseudo_inverse(matrix: Tensor) -> Tensor:
    """The pseudo-inverse of A (B, N, m, m), nearly; its rows sum to 1, or are 0 with their columns.

    The start is A^T / (||A||_1 ||A||_inf), and ||A||_inf is 1. Source: arXiv 2102.03902, Lemma 1.
    """
    sums = ops.sum(matrix, axis=-2, keepdims=True)
    norm = ops.max(sums, axis=-1, keepdims=True)
    inverse = ops.swapaxes(matrix, -1, -2) / ops.where(norm > 0, norm, 1.0)
    one = ops.eye(matrix.shape[-1], dtype=matrix.dtype)
    for _ in range(ITERATIONS):
        product = matrix @ inverse
        polynomial = 15.0 * one - product @ (7.0 * one - product)
        inverse = 0.25 * inverse @ (13.0 * one - product @ polynomial)
    return inverse
