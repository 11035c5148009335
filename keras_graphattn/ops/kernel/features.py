"""Feature maps phi of kernel attention: phi(q) . phi(k) >= 0 replaces exp(q . k).

`relu`, `squared_relu` and `elu` work entry by entry. FAVOR+ draws random features whose product is
an unbiased estimate of exp(q . k / sqrt(H)).

A factor on all features of one query cancels in the normaliser. So each query is scaled to a
largest feature of 1. For keys, only a common factor of all keys cancels. If every query sees every
key, this factor is the largest feature of all keys. If a mask hides keys, the factor must not
depend on the keys: a causal layer would see the future through rounding, and a state of past keys
would have another scale than later keys. Then the factor is fixed: exp(`favor_shift`). It depends
only on the random features and keeps every key below exp(60). This limits the range: keys whose
squared norm is above about 170 sqrt(H) become 0.
"""

import math
from typing import Any

import numpy as np
from keras import ops

from keras_graphattn.checks import checked, flag, optional, seed_of, tensor, whole
from keras_graphattn.checks import mask as mask_of
from keras_graphattn.numerics.precision import at_least_float32, hidden_logit, larger, largest

Tensor = Any

OFFSET = 1e-3  # keeps features positive where a ReLU is 0
LARGEST_EXPONENT = 60.0  # of a key's feature with the fixed factor


@checked(x=tensor())
def relu_features(x: Tensor) -> Tensor:
    """relu(x) + 0.001, in at least float32.

    Example:

    >>> features = keras.ops.convert_to_numpy(relu_features(np.array([-1.0, 1.0])))
    >>> features.astype(float).round(3).tolist()
    [0.001, 1.001]
    """
    return ops.relu(at_least_float32(x)) + OFFSET


@checked(x=tensor())
def squared_relu_features(x: Tensor) -> Tensor:
    """relu(x)^2 + 0.001, in at least float32.

    Example:

    >>> features = keras.ops.convert_to_numpy(squared_relu_features(np.array([-1.0, 2.0])))
    >>> features.astype(float).round(3).tolist()
    [0.001, 4.001]
    """
    return ops.square(ops.relu(at_least_float32(x))) + OFFSET


@checked(x=tensor())
def elu_features(x: Tensor) -> Tensor:
    """elu(x) + 1, in at least float32.

    Example:

    >>> keras.ops.convert_to_numpy(elu_features(np.array([0.0, 1.0]))).tolist()
    [1.0, 2.0]

    Source: Katharopoulos et al., "Transformers are RNNs", arXiv 2006.16236, Eq. 7.
    """
    return ops.elu(at_least_float32(x)) + 1.0


@checked(num_heads=whole(), key_dim=whole(), num_features=whole(), seed=optional(whole(0, 2**63)))
def orthogonal_features(
    num_heads: int, key_dim: int, num_features: int, seed: int | None = None
) -> np.ndarray:
    """Draws the directions of FAVOR+: Gaussian vectors, orthogonal in blocks of `key_dim`.

    Args:
        num_heads: Number of heads N. Each has its own directions.
        key_dim: Size H of a head.
        num_features: Number m of directions.
        seed: Seed of the draw. By default it is drawn and follows `keras.utils.set_random_seed`.

    Returns:
        A float32 array of shape (N, H, m). Each direction is distributed as N(0, I).

    Example:

    >>> directions = orthogonal_features(num_heads=1, key_dim=4, num_features=4, seed=0)
    >>> products = directions[0].T @ directions[0]
    >>> bool(np.abs(products - np.diag(np.diag(products))).max() < 1e-5)
    True

    Source: Choromanski et al., "Rethinking Attention with Performers", arXiv 2009.14794, Sec. 2.4.
    """
    generator = np.random.default_rng(seed_of(seed))
    blocks = -(-num_features // key_dim)
    gaussian = generator.standard_normal((num_heads, blocks, key_dim, key_dim))
    orthogonal, triangular = np.linalg.qr(gaussian)
    signs = np.sign(np.diagonal(triangular, axis1=-2, axis2=-1))
    orthogonal = orthogonal * signs[..., None, :]  # makes signs uniform: LAPACK prefers some
    orthogonal = np.moveaxis(orthogonal, 1, 2).reshape((num_heads, key_dim, blocks * key_dim))
    lengths = np.linalg.norm(generator.standard_normal((num_heads, num_features, key_dim)), axis=-1)
    return np.asarray(orthogonal[..., :num_features] * lengths[:, None, :], dtype="float32")


def favor_shift(directions: Tensor) -> Tensor:
    """Returns the number that the fixed factor subtracts from the exponents of all keys: (N, 1).

    An exponent w . x - |x|^2 / 2 is at most |w|^2 / 2. The shift reduces this to
    `LARGEST_EXPONENT`, so nothing overflows. It is 0 for heads of up to about 100 channels.
    """
    longest = largest(ops.sum(ops.square(directions), axis=1), axis=1, keepdims=True)
    return larger(0.5 * longest - LARGEST_EXPONENT, 0.0)


@checked(query=tensor("B T N H"), directions=tensor("N H m"))
def favor_query_features(query: Tensor, directions: Tensor) -> Tensor:
    """Returns FAVOR+ features of the queries. The largest feature of each query is 1.

    Args:
        query: Tensor of shape (B, T, N, H).
        directions: Tensor of shape (N, H, m), from `orthogonal_features`.

    Returns:
        A positive tensor of shape (B, T, N, m), at least float32.

    Example:

    >>> directions = orthogonal_features(num_heads=2, key_dim=4, num_features=8, seed=0)
    >>> features = favor_query_features(keras.random.normal((1, 5, 2, 4)), directions)
    >>> tuple(features.shape), float(keras.ops.max(features))
    ((1, 5, 2, 8), 1.0)

    Source: Choromanski et al., arXiv 2009.14794, Lemma 1 and Eq. 8.
    """
    exponents = _exponents(query, directions)
    return ops.exp(exponents - ops.stop_gradient(largest(exponents, axis=-1, keepdims=True)))


@checked(
    key=tensor("B S N H"),
    directions=tensor("N H m"),
    mask=optional(mask_of("B S")),
    fixed_scale=flag,
)
def favor_key_features(
    key: Tensor, directions: Tensor, mask: Tensor | None = None, fixed_scale: bool = False
) -> Tensor:
    """Returns FAVOR+ features of the keys, all with the same scale.

    Args:
        key: Tensor of shape (B, S, N, H).
        directions: Tensor of shape (N, H, m), from `orthogonal_features`.
        mask: Optional boolean tensor of shape (B, S): the keys that count for the scale. Do not
            use the features of the other keys.
        fixed_scale: Whether the scale is `favor_shift`, which does not depend on keys, instead of
            the largest feature of all keys. It is needed if a mask hides some keys.

    Returns:
        A positive tensor of shape (B, S, N, m), at least float32.

    Example:

    >>> directions = orthogonal_features(num_heads=1, key_dim=4, num_features=4096, seed=0)
    >>> x = np.array([0.5, 0.25, 0.0, -0.5], "float32").reshape((1, 1, 1, 4))
    >>> features = favor_key_features(x, directions, fixed_scale=True)
    >>> kernel = keras.ops.mean(features * features)  # of exp(x . x / sqrt(4))
    >>> bool(abs(float(kernel) / np.exp(0.5625 / 2) - 1) < 0.1)
    True
    """
    exponents = _exponents(key, directions)
    if fixed_scale:
        return ops.exp(exponents - favor_shift(ops.cast(directions, exponents.dtype)))
    if mask is not None:
        mask = ops.cast(mask, "bool")[:, :, None, None]
        hidden = ops.cast(hidden_logit(exponents.dtype), exponents.dtype)
        exponents = ops.where(mask, exponents, hidden)
    scale = ops.stop_gradient(largest(exponents, axis=(1, 3), keepdims=True))
    return ops.exp(exponents - scale)


def _exponents(x: Tensor, directions: Tensor) -> Tensor:
    """w . x' - |x'|^2 / 2 with x' = x / H^(1/4), of shape (B, T, N, m)."""
    x = at_least_float32(x) * math.pow(x.shape[-1], -0.25)
    directions = ops.cast(directions, x.dtype)
    half_square = 0.5 * ops.sum(ops.square(x), axis=-1, keepdims=True)
    return ops.einsum("btnh,nhm->btnm", x, directions) - half_square
