"""ContraNorm against its naive twin, and what it is for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from keras_graphattn.analysis import token_similarity
from keras_graphattn.layers import ContraNorm
from tests import reference
from tests.layers.twins import tokens
from tests.numerics import (
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)


def contra_norm(x, scale, mask):
    similarity = torch.einsum("btd,bsd->bts", x, x)
    weights = reference.softmax(similarity, mask[:, None, :])
    return ((1 + scale) * x - scale * weights @ x) * mask[:, :, None]


@pytest.mark.slow_on("jax")
@given(mask=hnp.arrays(bool, (2, 7)), scale=st.sampled_from([0.0, 0.1, 2.0]))
def test_agrees_with_its_naive_twin(mask, scale):
    x, layer = tokens(7), ContraNorm(scale)
    value, gradients = value_and_gradients(lambda x: layer(x, mask=mask), x)
    expected, slopes = reference_value_and_gradients(
        lambda x: contra_norm(x, scale, torch.tensor(mask).double()), x
    )
    assert_close(value, expected, 1e-6)
    assert_all_close(gradients, slopes, 1e-5)


def test_pushes_tokens_apart():
    x = tokens(7) * 0.3 + 1.0
    before, after = (to_numpy(token_similarity(y)) for y in (x, ContraNorm(2.0)(x)))
    assert (after < before - 0.05).all()
