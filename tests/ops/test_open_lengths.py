"""Operators that work in blocks, at a length that JAX does not know, as in an export.

Their outputs must be known to have the length of their inputs: a residual connection adds the two.
"""

import numpy as np
import pytest
from keras import ops

from keras_graphattn.operators import BlockwiseOperator, Visibility
from keras_graphattn.ops import p_laplacian_attention
from tests.numerics import BACKEND, to_numpy

BLOCK, HEADS, SIZE = 4, 2, 3


def mask_of(x):
    """A mask with an entry for each pair, which is formed for a block of rows at a time."""
    places = ops.arange(x.shape[1])
    entries = places[:, None] % 3 >= places[None, :] % 3  # every row sees some
    return Visibility(entries=entries[None, None])


def blind_rows(x):
    mask = mask_of(x)._replace(
        entries=ops.logical_and(mask_of(x).entries, x[:, None, :, 0, :1] > 0)
    )
    return mask.zero_other_rows(x, BLOCK)


OPERATORS = {
    "blockwise": lambda x: BlockwiseOperator(x, x, mask_of(x), block_size=BLOCK)(x),
    "blockwise, twice": lambda x: BlockwiseOperator(x, x, mask_of(x), block_size=BLOCK).twice(x)[1],
    "p-Laplacian": lambda x: p_laplacian_attention(
        x, x, x, [1.5] * HEADS, mask=mask_of(x), block_size=BLOCK
    ),
    "rows that see nothing": blind_rows,
}


@pytest.mark.skipif(BACKEND != "jax", reason="other backends do not derive lengths")
@pytest.mark.parametrize("name", OPERATORS)
def test_an_open_length_is_known_to_stay(name):
    import jax

    def function(x):
        return x + OPERATORS[name](x)

    shape = jax.export.symbolic_shape(f"batch, length, {HEADS}, {SIZE}")
    exported = jax.export.export(jax.jit(function))(jax.ShapeDtypeStruct(shape, "float32"))
    generator = np.random.default_rng(0)
    for length in (1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK):
        x = generator.standard_normal((2, length, HEADS, SIZE)).astype("float32")
        np.testing.assert_allclose(exported.call(x), to_numpy(function(x)), rtol=1e-5, atol=1e-6)
