"""Diffusion on the hypercube: tokens i and j are neighbours if they differ in one bit.

exp(-t L) is a Kronecker power of the 2 x 2 matrix [[c, s], [s, c]] with c = (1 + e^-2t) / 2 and
s = (1 - e^-2t) / 2. So M[i, j] = c^d tanh(t)^Hamming(i, j) for n = 2^d tokens. The product is
computed one bit at a time, in d butterfly steps: O(n log n).

Source: Choromanski et al., arXiv 2107.07999, Section 4.1.
"""

from typing import Any

from keras import ops

from keras_graphattn.checks import checked, tensor

Tensor = Any


def hypercube_dimension(length: int) -> int:
    """Returns d for n = 2^d tokens.

    Raises:
        ValueError: For a length that is not a power of 2.
    """
    if length < 1 or length & (length - 1):
        raise ValueError(
            "A hypercube has 2^d nodes, one for each token of `x`. Received: length="
            f"{length}. Pad the sequence to a power of 2."
        )
    return length.bit_length() - 1


@checked(x=tensor("B T N D"), time=tensor("N", "d N"))
def hypercube_product(x: Tensor, time: Tensor) -> Tensor:
    """Returns exp(-t L) x on the hypercube, with gradients for x and t.

    Args:
        x: float32 tensor of shape (B, T, N, D), where T is a power of 2.
        time: Tensor of shape (N,): t of each head. Or of shape (d, N): a time per bit, lowest bit
            first.

    Returns:
        A tensor of the shape of `x`.

    Example:

    >>> x = np.array([1.0, 0.0], "float32").reshape((1, 2, 1, 1))
    >>> y = hypercube_product(x, np.ones(1, "float32"))
    >>> keras.ops.convert_to_numpy(y).ravel().astype(float).round(4).tolist()
    [0.5677, 0.4323]
    """
    time = ops.cast(time, x.dtype)
    shape = ops.shape(x)
    for bit in range(hypercube_dimension(x.shape[1])):
        of_bit = time if len(time.shape) == 1 else time[bit]
        stay, move = (factor[:, None] for factor in _factors(of_bit))
        # Axis 2 is the value of the bit: (B, T / 2^(bit + 1), 2, 2^bit, N, D).
        pairs = ops.reshape(x, (shape[0], -1, 2, 2**bit, *shape[2:]))
        zero, one = pairs[:, :, 0], pairs[:, :, 1]
        pairs = ops.stack([stay * zero + move * one, move * zero + stay * one], axis=2)
        x = ops.reshape(pairs, shape)
    return x


def hypercube_rows(positions: Tensor, length: int, time: Tensor) -> Tensor:
    """Returns rows of exp(-t L), from the bits in which two positions differ.

    Args:
        positions: Integer tensor of shape (R,).
        length: T, a power of 2.
        time: As for `hypercube_product`.

    Returns:
        A tensor of shape (N, R, T).
    """
    time = ops.convert_to_tensor(time)
    positions = ops.cast(positions, "int32")
    columns = ops.arange(length, dtype="int32")
    rows = ops.ones((time.shape[-1], ops.shape(positions)[0], length), time.dtype)
    for bit in range(hypercube_dimension(length)):
        of_bit = time if len(time.shape) == 1 else time[bit]
        stay, move = (factor[:, None, None] for factor in _factors(of_bit))
        same = ops.equal(positions[:, None] // 2**bit % 2, columns // 2**bit % 2)
        rows = rows * ops.where(same[None], stay, move)
    return rows


def _factors(time: Tensor) -> tuple[Tensor, Tensor]:
    """c = (1 + e^-2t) / 2 and s = (1 - e^-2t) / 2, exact for small t."""
    return (1.0 + ops.exp(-2.0 * time)) / 2.0, -ops.expm1(-2.0 * time) / 2.0
