"""Masks of low rank: M = L R^T, applied as L (R^T x)."""

import math
from typing import Unpack

import keras
import numpy as np
from keras import ops

from keras_graphattn.checks import flag, seed_of, whole
from keras_graphattn.masks.inputs import Length, Tensors
from keras_graphattn.masks.mask import Mask, MaskOptions, Operands, Positions, Rows, Shape, Signal
from keras_graphattn.numerics.blocks import first_of
from keras_graphattn.numerics.precision import cosine_and_sine, pad, positions_of, take
from keras_graphattn.operators.kernel import unmasked_attention
from keras_graphattn.types import Float, Tensor

Factors = tuple[Float[Tensor, "N? T rank"], Float[Tensor, "N? T rank"]]


class Factored(Mask):
    """Base of the masks M = L R^T. Attention with them is kernel attention with more features.

    (phi(q_i) . phi(k_j)) (L_i . R_j) is the inner product of phi(q_i) (x) L_i and phi(k_j) (x) R_j,
    where (x) is the outer product.
    """

    paths = ("dense", "blockwise", "low_rank")
    hides_keys = False
    length = 0  # the largest one; 0: any

    def factors(self, length: Length, parameters: Tensors) -> Factors:
        """L and R."""
        raise NotImplementedError(f"{type(self).__name__} must write `factors`.")

    def widened(self, tokens: Operands, parameters: Tensors) -> Operands:
        """The features phi(Q) (x) L and phi(K) (x) R, each of shape (B, T, N, m rank)."""
        length = ops.shape(tokens.x)[1]
        # (N, T, rank) -> (T, N, rank)
        left, right = (ops.transpose(f, (1, 0, 2)) for f in self.factors(length, parameters))
        query, key = (
            ops.concatenate([x * f[..., r : r + 1] for r in range(f.shape[-1])], axis=-1)
            for x, f in ((tokens.query, left), (tokens.key, right))
        )
        return tokens._replace(query=query, key=key)

    def _rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
        left, right = self.factors(length, parameters)
        return ops.einsum("nir,njr->nij", take(left, positions, axis=1), right)[None]

    def _attend(self, tokens: Operands, path: str, parameters: Tensors, inputs: Tensors) -> Signal:
        tokens = self.widened(tokens, parameters)
        return unmasked_attention(tokens.query, tokens.key, tokens.x)

    def _check_length(self, length: int) -> None:
        if 0 < self.length < length:
            raise ValueError(
                f"This {type(self).__name__} mask has {self.length} positions. Received: a "
                f"sequence of {length} tokens. Use a larger `length`."
            )


@keras.saving.register_keras_serializable(package="keras_graphattn")
class LowRank(Factored):
    """M[i, j] = sum_r exp(l_ir + r_jr): a learned low-rank table of positions per head.

    Args:
        rank: Rank of the mask, at least 1.
        length: Largest number of tokens. Shorter sequences use the first rows of the table.
        **kwargs: Those of every `Mask`.

    Weights:
        `log_left` and `log_right`, of shape (num_heads, length, rank). They start near M = 1.

    Raises:
        ValueError: For sizes that are not positive, and for sequences longer than `length`.

    Example:

    >>> mask = LowRank(rank=2, length=16)
    >>> tuple(mask.apply(keras.random.normal((4, 10, 2, 8))).shape)
    (4, 10, 2, 8)

    Source: Choromanski et al., arXiv 2107.07999, Section 3.4.
    """

    _settings = ("rank", "length")

    def __init__(self, rank: int, length: int, **kwargs: Unpack[MaskOptions]) -> None:
        super().__init__(**kwargs)
        self.rank = whole()("rank", rank, {})
        self.length = whole()("length", length, {})

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        start = keras.initializers.RandomNormal(-0.5 * math.log(self.rank), 0.1)
        shape = (self.num_heads, self.length, self.rank)
        self.log_left, self.log_right = (
            self._add_parameter(name, start.clone(), shape=shape)
            for name in ("log_left", "log_right")
        )

    def factors(self, length: Length, parameters: Tensors) -> Factors:
        left, right = (first_of(x, length, axis=1) for x in parameters.values())
        return ops.exp(left), ops.exp(right)  # (N, T, rank) each


@keras.saving.register_keras_serializable(package="keras_graphattn")
class ExponentialPositions(Factored):
    """M[i, j] = exp(mu_i . nu_j), estimated by positive random features of position vectors.

    Each head learns two vectors of each position, mu and nu. With Gaussian directions w_r that are
    drawn once, M[i, j] is the mean over r of

        exp(w_r . mu_i - |mu_i|^2 / 2) exp(w_r . nu_j - |nu_j|^2 / 2)

    which is positive, and exp(mu_i . nu_j) in expectation. All paths give this estimate. Its error
    grows with the vectors, and falls with the number of features.

    Args:
        length: Largest number of tokens. Shorter sequences use the first vectors.
        position_dim: Size of the vectors, at least 1.
        num_features: Number of directions, at least 1: the rank of the mask.
        seed: Seed of the directions and of the start of the vectors. By default it is drawn. The
            draw follows `keras.utils.set_random_seed` and is kept in the configuration.
        **kwargs: Those of every `Mask`.

    Weights:
        `left_positions` (mu) and `right_positions` (nu), of shape (num_heads, length,
        position_dim). They start small, so M starts near 1. `directions`, of shape (num_heads,
        position_dim, num_features), is not trained.

    Raises:
        ValueError: For sizes that are not positive, and for sequences longer than `length`.

    Example:

    >>> mask = ExponentialPositions(length=16, position_dim=4, num_features=8, seed=0)
    >>> tuple(mask.apply(keras.random.normal((4, 10, 2, 8))).shape)
    (4, 10, 2, 8)

    Source: Choromanski et al., arXiv 2107.07999, Section 3.4, with the positive features of
    Choromanski et al., arXiv 2009.14794, Lemma 1.
    """

    _settings = ("length", "position_dim", "num_features", "seed")

    def __init__(
        self,
        length: int,
        position_dim: int = 4,
        num_features: int = 16,
        seed: int | None = None,
        **kwargs: Unpack[MaskOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.length = whole()("length", length, {})
        self.position_dim = whole()("position_dim", position_dim, {})
        self.num_features = whole()("num_features", num_features, {})
        self.seed = seed_of(seed)

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        heads, dim = self.num_heads, self.position_dim
        generator = np.random.default_rng(self.seed)
        start = generator.normal(0.0, 0.3, (2, heads, self.length, dim))
        self.left_positions = self._add_parameter("left_positions", start[0])
        self.right_positions = self._add_parameter("right_positions", start[1])
        directions = generator.standard_normal((heads, dim, self.num_features))
        self.directions = self._add_parameter("directions", directions, trainable=False)

    def factors(self, length: Length, parameters: Tensors) -> Factors:
        left, right, directions = parameters.values()
        scale = 0.5 * math.log(self.num_features)
        features = []
        for vectors in (first_of(left, length, axis=1), first_of(right, length, axis=1)):
            halves = 0.5 * ops.sum(ops.square(vectors), axis=-1, keepdims=True)
            features.append(ops.exp(vectors @ directions - halves - scale))
        return features[0], features[1]  # (N, T, m) each


@keras.saving.register_keras_serializable(package="keras_graphattn")
class StochasticPositions(Factored):
    """M[i, j] = 1 + sum_k g_k cos(2 pi f_k (i - j) + theta_k), at random frequencies f_k.

    The mask gives relative positions in linear time, at any length. The frequencies are drawn once
    per head; gains and phases are learned. As sum_k g_k <= 1, no factor is negative. The papers
    draw random positions mu_i and nu_j with E[mu_i . nu_j] = M[i, j] at each step. This mask
    computes the expectation exactly, as it has rank 2 K + 1.

    Args:
        num_frequencies: Number K of frequencies, at least 1.
        trainable_frequencies: Whether the frequencies are learned; the draw is their start value.
        seed: Seed of the frequencies. By default it is drawn. The draw follows
            `keras.utils.set_random_seed` and is kept in the configuration.
        **kwargs: Those of every `Mask`.

    Weights:
        `frequencies` (per token, log-uniform between 1/2 and 1/4096), `gain_logits` and `phases`,
        of shape (num_heads, num_frequencies). The gains are the softmax of their logits and of one
        more logit, which is 0.

    Raises:
        ValueError: For an invalid number of frequencies.

    Example:

    >>> mask = StochasticPositions(num_frequencies=4, seed=0)
    >>> tuple(mask.apply(keras.random.normal((4, 10, 2, 8))).shape)
    (4, 10, 2, 8)

    Source: Liutkus et al., "Relative Positional Encoding for Transformers with Linear Complexity",
    arXiv 2105.08399, Eq. 18-20, as a mask by Choromanski et al., arXiv 2107.07999, Section 3.4.
    Our additions: the exact expectation and the bound on the gains.
    """

    _settings = ("num_frequencies", "trainable_frequencies", "seed")

    def __init__(
        self,
        num_frequencies: int = 8,
        trainable_frequencies: bool = False,
        seed: int | None = None,
        **kwargs: Unpack[MaskOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.num_frequencies = whole()("num_frequencies", num_frequencies, {})
        self.trainable_frequencies = flag("trainable_frequencies", trainable_frequencies)
        self.seed = seed_of(seed)

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        shape = (self.num_heads, self.num_frequencies)
        drawn = 2.0 ** -np.random.default_rng(self.seed).uniform(1.0, 12.0, shape)
        self.frequencies = self._add_parameter("frequencies", drawn, self.trainable_frequencies)
        self.gain_logits = self._add_parameter("gain_logits", np.zeros(shape))
        self.phases = self._add_parameter("phases", np.zeros(shape))

    def factors(self, length: Length, parameters: Tensors) -> Factors:
        frequencies, logits = parameters["frequencies"], parameters["gain_logits"]
        gains = ops.softmax(pad(logits, ((0, 0), (0, 1))), axis=-1)[:, None, :-1]  # (N, 1, K)
        positions = ops.cast(positions_of(length), frequencies.dtype)[None, :, None]
        within = positions - 4096.0 * _truncated(positions / 4096.0)
        # The leading 12 bits of a frequency make whole turns in 4096 positions. Their product with
        # a position within these is exact, and so is its fraction. Without this, a large position
        # would lose the digits of the angle.
        leading = ops.stop_gradient(_truncated(frequencies * 4096.0) / 4096.0)
        turns = within * leading[:, None, :]
        rest = positions * (frequencies - leading)[:, None, :]
        turns = turns - _truncated(turns) + rest  # (N, T, K)
        angles = 2.0 * math.pi * turns
        phased = angles + parameters["phases"][:, None, :]
        ones = ops.ones_like(angles[..., :1])
        cosines, sines = cosine_and_sine(phased)
        left = ops.concatenate([ones, gains * cosines, gains * sines], axis=-1)
        right = ops.concatenate([ones, *cosine_and_sine(angles)], axis=-1)
        return left, right  # (N, T, 2 K + 1) each


def _truncated(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The integer part, in the dtype of `x` (on torch, `ops.floor` of float64 gives float32)."""
    return ops.stop_gradient(ops.cast(ops.cast(x, "int32"), x.dtype))
