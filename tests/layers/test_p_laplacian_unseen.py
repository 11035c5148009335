"""What a row of p-Laplacian attention may not see has no influence on it, whatever its size.

One call for all sizes: each is an example of one batch, in which the unseen tokens are those of
the first example times a factor, or NaN or infinite.
"""

import keras
import numpy as np
import pytest
import torch
from keras import ops

from keras_graphattn.layers import PLaplacianAttention
from keras_graphattn.operators import Visibility
from keras_graphattn.ops import p_laplacian_attention
from tests import reference_dense
from tests.numerics import (
    BACKEND,
    assert_all_close,
    layer_reference,
    randomise,
    short_name,
    to_numpy,
    value_and_gradients,
)
from tests.random_masks import joined_mask

pytestmark = pytest.mark.slow_on("jax")

HEADS, KEY, FEATURES, LENGTH = 2, 3, 6, 7
PADDED = np.arange(LENGTH) < LENGTH - 2
ENTRIES = np.random.default_rng(4).random((LENGTH, LENGTH)) < 0.7
ENTRIES[np.ix_([0, 2, 3], [1, 5])] = False
ENTRIES[np.ix_([0, 2, 3], [0, 2, 3])] = True

# by name: the masks of a call, the unseen tokens, the rows that may not see them
UNSEEN = {
    "padding": ({"query_mask": PADDED, "value_mask": PADDED}, [5, 6], [0, 1, 2, 3, 4]),
    "padding and causal": (
        {"query_mask": PADDED[::-1], "value_mask": PADDED[::-1], "use_causal_mask": True},
        [0, 1, 6],
        [2, 3, 4, 5],
    ),
    "causal": ({"use_causal_mask": True}, [4, 5, 6], [0, 1, 2, 3]),
    "window": ({"sliding_window": 2, "use_causal_mask": True}, [0, 1, 5, 6], [3, 4]),
    "attention mask": ({"attention_mask": ENTRIES}, [1, 5], [0, 2, 3]),
}
PATHS = {"dense": "dense", "blockwise": "blockwise", "decode": None}
CASES = [(path, reason) for path in PATHS for reason in UNSEEN]
QUICK = ("padding", "padding and causal", "attention mask")  # the others are alike
CASES.remove(("decode", "attention mask"))
CASES.remove(("decode", "padding"))  # padding and causal


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        pytest.param(*case, marks=[] if case[1] in QUICK else pytest.mark.slow, id=" ".join(case))
        for case in CASES
    ],
)
def test_unseen_tokens_change_nothing(path, reason):
    check(path, reason)


def test_padding_changes_nothing_in_half_precision():
    check("dense", "padding", "mixed_bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize(("path", "reason"), CASES)
def test_unseen_tokens_change_nothing_in_half_precision(path, reason, dtype):
    check(path, reason, dtype)


def check(path, reason, dtype="float32"):
    masks, unseen, rows = UNSEEN[reason]
    masks = dict(masks)
    window = masks.pop("sliding_window", None)
    layer = PLaplacianAttention(
        HEADS,
        KEY,
        p=[1.5, 2.5],
        attention_path=PATHS[path],
        sliding_window=window,
        block_size=3,
        dtype=dtype,
    )
    layer.build((None, LENGTH, FEATURES))
    randomise(layer)
    causal = masks.get("use_causal_mask") or path == "decode"
    examples = tokens_of(unseen, masks.get("value_mask", np.ones(LENGTH, bool)), dtype)
    if path == "decode" and BACKEND == "tensorflow":  # which has no gradient of `slice_update`
        outputs = ops.take(decode(layer, examples, masks), np.array(rows), axis=1)
        assert_same_as_the_first(to_numpy(outputs), 1e-6)
        return
    value, of_tokens, gradients = outputs_and_gradients(layer, path, examples, masks, rows)
    assert_same_as_the_first(value, 1e-6)
    assert (of_tokens[:, unseen] == 0).all()
    assert np.abs(of_tokens[0, rows]).max(-1).min() > 0
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    assert_same_as_the_first(of_tokens[:, rows], tolerance)
    expected = exact_gradients(layer, examples, {**masks, "use_causal_mask": causal}, window, rows)
    assert_all_close(gradients, expected, 2e-5 if dtype == "float32" else 0.1)


def tokens_of(unseen, seen, dtype):
    """(examples, T, features): the unseen tokens times each factor, and bad where not `seen`."""
    tokens = np.random.default_rng(0).standard_normal((LENGTH, FEATURES)).astype("float32")
    factors = (1.0, 1e2) if dtype == "mixed_float16" else (1.0, 1e4, 1e15)
    bad = () if seen.all() else (np.nan, np.inf)
    examples = np.repeat(tokens[None], len(factors) + len(bad), axis=0)
    for example, factor in zip(examples, (*factors, *bad), strict=True):
        example[unseen] *= np.float32(factor if np.isfinite(factor) else factors[-1])
        example[~seen] *= 1 if np.isfinite(factor) else np.float32(factor)
    return examples


def masks_of_batch(masks, batch):
    return {
        name: np.repeat(mask[None], batch, axis=0) if name in ("query_mask", "value_mask") else mask
        for name, mask in masks.items()
    }


def outputs_and_gradients(layer, path, examples, masks, rows):
    """Of each example the rows' outputs, and gradients of a sum of them, the same in all."""
    batch = len(examples)

    def outputs_of(x):
        if path == "decode":
            return decode(layer, x, masks)
        return layer(x, x, **masks_of_batch(masks, batch))

    def sums(x, *values):
        pairs = zip(layer.trainable_variables, values, strict=True)
        with keras.StatelessScope(state_mapping=list(pairs)):
            outputs = ops.cast(ops.take(outputs_of(x), np.array(rows), axis=1), "float32")
        outputs = ops.reshape(outputs, (batch, len(rows) * FEATURES))
        weights = np.cos(np.arange(len(rows) * FEATURES)).astype("float32")
        total = ops.sum(outputs * ops.convert_to_tensor(weights), axis=1, keepdims=True)
        return ops.concatenate([total, ops.stop_gradient(outputs)], axis=1)

    variables = [to_numpy(v) for v in layer.trainable_variables]
    value, gradients = value_and_gradients(sums, examples, *variables)
    _, cotangents = value_and_gradients(lambda x: x, np.zeros_like(value))
    of_tokens = gradients.pop(0) / cotangents[0][:, :1, None]
    names = [short_name(layer, v) for v in layer.trainable_variables]
    return value, of_tokens, dict(zip(names, gradients.values(), strict=True))


def decode(layer, x, masks):
    """The prompt `x` decoded, with a cache of which nothing may be looked at."""
    cache = layer.get_initial_cache(len(x), LENGTH + 2)
    cache["signals"] = ops.full_like(cache["signals"], np.nan)
    padding_mask = masks_of_batch(masks, len(x)).get("query_mask")
    return layer.decode(ops.convert_to_tensor(x), cache, 0, padding_mask)[0]


def exact_gradients(layer, examples, masks, window, rows):
    """Gradients of the weights in float64, every example like the first."""
    batch = len(examples)
    mask = joined_mask(masks_of_batch(masks, batch), batch=batch, length=LENGTH, heads=HEADS)
    positions = np.arange(LENGTH)
    if window is not None:
        mask &= np.abs(np.subtract.outer(positions, positions)) < window
    mask = torch.tensor(mask, dtype=torch.float64)

    def sums(x, weights):
        x = x[:1].expand(batch, -1, -1)
        options = (layer.exponents, layer.epsilon, mask)
        outputs, _ = reference_dense.p_laplacian_layer(x, weights, *options)
        outputs = outputs[:, rows].reshape(batch, -1)
        total = (outputs * torch.cos(torch.arange(outputs.shape[1]))).sum(1, keepdim=True)
        return torch.cat([total, outputs.detach()], 1)

    _, gradients = layer_reference(layer, sums, examples)
    gradients.pop("input")
    return gradients


def assert_same_as_the_first(x, tolerance):
    size = np.abs(x[0]).max()
    np.testing.assert_allclose(x, np.broadcast_to(x[:1], x.shape), atol=tolerance * size, rtol=0)


@pytest.mark.parametrize("block_size", [3, 8])
def test_the_operation_alone_takes_padding_of_any_kind(block_size):
    """Without a mask of queries: the padding's own rows are finite too."""
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal((3, LENGTH, 2, KEY)).astype("float32") for _ in range(3)]
    for x in arrays:
        x[:] = x[:1]
    arrays[1][1:, 5:], arrays[2][1:, 5:] = 1e15, 1e15
    arrays[1][2, 5:], arrays[2][2, 5:] = np.inf, np.nan
    mask = Visibility(keys=ops.convert_to_tensor(np.repeat(PADDED[None], 3, axis=0)))

    def function(query, key, values):
        outputs = p_laplacian_attention(query, key, values, [1.5, 4.0], mask, block_size=block_size)
        return ops.sum(outputs, axis=0)[None] * (1 / 3) + 0 * outputs

    value, gradients = value_and_gradients(function, *arrays)
    assert np.isfinite(value).all()
    for gradient in gradients.values():
        assert_same_as_the_first(gradient, 1e-6)
    assert (gradients[1][:, 5:] == 0).all()
    assert (gradients[2][:, 5:] == 0).all()
