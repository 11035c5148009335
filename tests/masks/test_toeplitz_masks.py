"""Toeplitz and block-Toeplitz masks equal their matrices on every path, also in gradients."""

import keras
import numpy as np
import pytest
import torch
from keras_graphattn.ops.kernel.features import (
    favor_key_features,
    favor_query_features,
    orthogonal_features,
)

from keras_graphattn.layers import MaskedKernelAttention
from keras_graphattn.masks import BlockToeplitz, Causal, Product, Toeplitz
from tests import reference_kernel
from tests import reference_toeplitz as reference
from tests.numerics import (
    assert_all_close,
    assert_close,
    randomise,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

HEADS, FEATURES, WIDTH = 2, 3, 4


def sequence(length, causal=False, **options):
    mask = Toeplitz(length + 3, causal, **options)

    def matrix(log_factors):
        factors = torch.exp(log_factors)
        if causal:
            factors = torch.nn.functional.pad(factors, (length + 2, 0))
        return reference.toeplitz_matrix(factors, (length + 3,))[:, :length, :length]

    return mask, length, matrix


def grid(grid_shape, prefix=0, form="offsets"):
    mask = BlockToeplitz(grid_shape, prefix, form)

    def matrix(log_factors):
        factors = torch.exp(log_factors)
        if form == "distance":
            axes = [np.abs(np.arange(1 - size, size)) for size in grid_shape]
            factors = factors[:, torch.as_tensor(sum(np.meshgrid(*axes, indexing="ij")))]
        return reference.with_prefix(reference.toeplitz_matrix(factors, grid_shape), prefix)

    return mask, mask.length, matrix


CASES = {
    "sequence": lambda: sequence(37),
    "one token": lambda: sequence(1),
    "decaying": lambda: sequence(150, initial_slopes=0.1),
    "causal": lambda: sequence(150, causal=True),
    "line": lambda: grid((7,)),
    "image": lambda: grid((5, 7)),
    "image with prefix": lambda: grid((6, 5), 2),
    "image by distance": lambda: grid((3, 9), 1, "distance"),
    "video": lambda: grid((2, 3, 4), 1),
}


def built(name):
    mask, length, matrix = CASES[name]()
    mask.build((None, length, HEADS, WIDTH))
    randomise(mask)
    return mask, length, matrix


def signals(length, seed=0):
    generator = np.random.default_rng(seed)
    shape = (2, length, HEADS)
    query, key = (generator.random((*shape, FEATURES)).astype("float32") for _ in range(2))
    return query, key, generator.standard_normal((*shape, WIDTH)).astype("float32")


@pytest.mark.parametrize("path", ["dense", "blockwise", "fft"])
@pytest.mark.parametrize("name", CASES)
def test_paths(name, path):
    mask, length, matrix = built(name)
    mask.block_size = 8 if mask.block_size % 7 else 14
    arrays = (*signals(length), to_numpy(mask.log_factors))

    def attend(query, key, x, log_factors):
        with keras.StatelessScope(state_mapping=[(mask.log_factors, log_factors)]):
            return mask.attend(query, key, x, path) + mask.apply(x, path)

    def naive(query, key, x, log_factors):
        full = matrix(log_factors)[None]
        applied = torch.einsum("bnts,bsnd->btnd", full.expand(2, -1, -1, -1), x)
        return reference_kernel.unnormalised(query, key, x, full.expand(2, -1, -1, -1)) + applied

    value, gradients = value_and_gradients(attend, *arrays)
    expected, expected_gradients = reference_value_and_gradients(naive, *arrays)
    assert_close(value, expected, 1e-5)
    assert_all_close(gradients, expected_gradients, 1e-5)


@pytest.mark.parametrize("name", CASES)
def test_rows_and_config(name):
    mask, length, matrix = built(name)
    expected = matrix(torch.tensor(to_numpy(mask.log_factors))).numpy()
    np.testing.assert_allclose(to_numpy(mask.dense(length))[0], expected, rtol=1e-5)
    positions = np.array([length - 1, 0, length // 2])
    rows = to_numpy(mask.rows(positions, length))[0]
    np.testing.assert_allclose(rows, expected[:, positions], rtol=1e-5)
    again = type(mask).from_config(mask.get_config())
    assert again.get_config() == mask.get_config()


def test_product_with_causal_is_one_sided_and_sees_no_future():
    mask, length = Product([Causal(), Toeplitz(90)]), 90
    mask.build((None, length, HEADS, WIDTH))
    randomise(mask)
    query, key, x = signals(length)
    expected = to_numpy(mask.attend(query, key, x, "dense"))
    assert_close(to_numpy(mask.attend(query, key, x, "fft")), expected, 1e-5)
    key[:, 70:], x[:, 70:] = 1e6, -1e6
    for path in ("fft", "blockwise"):
        changed = to_numpy(mask.attend(query, key, x, path))[:, :70]
        assert_close(changed, expected[:, :70], 1e-5)


def favor_error(mask, path, length=1024, size=64, features=32):
    """Relative error of FAVOR+ attention with q and k of scale 3."""
    generator = np.random.default_rng(3)
    q, k, v = (generator.standard_normal((1, length, HEADS, size)) for _ in range(3))
    q, k, v = (a.astype("float32") for a in (3.0 * q, 3.0 * k, v))
    directions = orthogonal_features(HEADS, size, features, seed=0)
    x = np.concatenate([v, np.ones_like(v[..., :1])], axis=-1)
    query = favor_query_features(q, directions)
    key = favor_key_features(k, directions, fixed_scale=mask.hides_keys)
    joint = to_numpy(mask.attend(query, key, x, path))
    q, k, directions = (torch.tensor(a, dtype=torch.float64) for a in (q, k, directions))
    weights = torch.einsum(
        "btnm,bsnm->bnts",
        *(reference_kernel.features(a, "favor", directions) for a in (q, k)),
    ) * torch.tensor(to_numpy(mask.dense(length)))
    weights = weights / weights.sum(-1, keepdim=True)
    expected = torch.einsum("bnts,bsnd->btnd", weights, torch.tensor(v, dtype=torch.float64))
    assert np.isfinite(joint).all()
    assert (joint[..., -1] > 0.0).all()
    outputs = joint[..., :-1] / joint[..., -1:]
    return np.abs(outputs - expected.numpy()).max() / np.abs(expected.numpy()).max()


@pytest.mark.parametrize("path", ["auto", "fft"])
@pytest.mark.parametrize("kind", ["two-sided", "random", "causal", "alibi", "grid"])
def test_wild_favor_features(kind, path):
    masks = {
        "two-sided": lambda: Toeplitz(1024),
        "random": lambda: Toeplitz(1024),
        "causal": lambda: Toeplitz(1024, causal=True),
        "alibi": lambda: Toeplitz.alibi(1024, causal=False),
        "grid": lambda: BlockToeplitz((32, 32)),
    }
    mask = masks[kind]()
    mask.build((None, 1024, HEADS, 64))
    if kind in ("random", "grid"):
        randomise(mask, scale=1.0)
    assert favor_error(mask, path) < 1e-3


@pytest.mark.parametrize("path", ["dense", "fft"])
@pytest.mark.parametrize("name", ["sequence", "causal", "image with prefix"])
def test_layer(name, path):
    mask, length, matrix = CASES[name]()
    layer = MaskedKernelAttention(HEADS, 4, mask=mask, path=path)
    x = np.random.default_rng(0).standard_normal((2, length, 6)).astype("float32")
    layer.build(x.shape, x.shape)
    randomise(layer)
    weights = {v.path.removeprefix(layer.name + "/"): v for v in layer.weights}
    weights = {k: torch.tensor(to_numpy(v)) for k, v in weights.items()}
    full = matrix(torch.tensor(to_numpy(mask.log_factors)))[None]
    expected = reference_kernel.layer_outputs(torch.tensor(x).double(), weights, full)
    assert_close(to_numpy(layer(x)), expected.numpy(), 1e-5)


def test_save_and_load(tmp_path):
    inputs = keras.Input((7, 6))
    masks = [Toeplitz.alibi(9), BlockToeplitz((2, 3), 1, "distance")]
    x = inputs
    for mask in masks:
        x = MaskedKernelAttention(HEADS, 4, mask=mask)(x)
    model = keras.Model(inputs, x)
    for mask in masks:
        randomise(mask)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    tokens = np.random.default_rng(0).standard_normal((2, 7, 6)).astype("float32")
    np.testing.assert_array_equal(
        model.predict(tokens, verbose=0), again.predict(tokens, verbose=0)
    )


def test_alibi_starts_at_its_slopes():
    mask = Toeplitz.alibi(5, causal=False)
    mask.build((None, None, 2, 4))
    expected = np.exp(-(2.0**-4) * np.abs(np.arange(3) - np.arange(3)[:, None]))
    np.testing.assert_allclose(to_numpy(mask.dense(3))[0, 0], expected, rtol=1e-6)


def test_auto_goes_from_dense_to_blocks_to_fft():
    mask = Toeplitz(1 << 20)
    paths = [mask.choose_path(1 << power, 32, 33) for power in range(4, 21)]
    assert list(dict.fromkeys(paths)) == ["dense", "blockwise", "fft"]
    expected = "dense" if keras.backend.backend() == "jax" else "blockwise"
    assert mask.choose_path(None, 32, 33) == expected


def test_auto_of_a_causal_product_goes_by_the_cost_of_tiles():
    one_sided, product = Toeplitz(1 << 20, causal=True), Product([Causal(), Toeplitz(1 << 20)])
    for power in range(4, 21):
        chosen = product.choose_path(1 << power, 32, 33)
        assert chosen == one_sided.choose_path(1 << power, 32, 33)
    assert chosen == "fft"


def test_bad_arguments():
    for build, name in (
        (lambda: Toeplitz(0), "max_length"),
        (lambda: Toeplitz(4, causal="no"), "causal"),
        (lambda: Toeplitz(4, initial_slopes=-1.0), "initial_slopes"),
        (lambda: BlockToeplitz((3, 0)), "grid_shape"),
        (lambda: BlockToeplitz((3,), -1), "num_prefix_tokens"),
        (lambda: BlockToeplitz((3,), form="square"), "form"),
    ):
        with pytest.raises(ValueError, match=name):
            build()
    x = np.ones((1, 6, 2, 3), "float32")
    with pytest.raises(ValueError, match="at most 5 tokens"):
        Toeplitz(5).apply(x)
    with pytest.raises(ValueError, match="5 tokens"):
        BlockToeplitz((2, 2), 1).apply(x)
