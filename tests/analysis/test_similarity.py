import keras
import numpy as np
import pytest
from keras import ops

from keras_graphattn.analysis import token_similarity
from tests.analysis.smoothing import twins


def naive(tokens, mask):
    sequences = [x[kept] for x, kept in zip(tokens, mask, strict=True)]
    return np.array([twins.cosine(x) if len(x) > 1 else 0.0 for x in sequences])


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
def test_equals_the_mean_over_all_pairs(scale):
    random = np.random.default_rng(0)
    tokens = (random.normal(size=(5, 7, 4)) + 0.5).astype("float32")
    mask = random.random((5, 7)) < 0.6
    mask[3], mask[4] = False, np.arange(7) == 2  # no token, one token
    expected = naive(tokens.astype("float64"), mask)
    garbage = np.where(mask[..., None], tokens * scale, np.nan).astype("float32")
    np.testing.assert_allclose(
        ops.convert_to_numpy(token_similarity(garbage, mask)), expected, atol=1e-6
    )
    np.testing.assert_allclose(
        ops.convert_to_numpy(token_similarity(tokens)),
        naive(tokens.astype("float64"), np.ones_like(mask)),
        atol=1e-6,
    )


def test_tokens_of_one_direction_are_alike_and_half_precision_is_measured_in_float32():
    tokens = ops.cast(np.array([[[3.0, 4.0], [6.0, 8.0], [0.3, 0.4]]]), "float16")
    similarity = token_similarity(tokens)
    assert keras.backend.standardize_dtype(similarity.dtype) == "float32"
    np.testing.assert_allclose(ops.convert_to_numpy(similarity), [1.0], atol=1e-3)


def test_wrong_rank_is_refused():
    with pytest.raises(ValueError, match="shape"):
        token_similarity(np.zeros((3, 4), "float32"))
