"""Masks of sequences and grids equal their matrices on every path, also in gradients."""

import keras
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_graphattn.feature_maps.favor import Favor, orthogonal_features
from keras_graphattn.layers import MaskedKernelAttention
from keras_graphattn.masks import (
    BlockToeplitz,
    Causal,
    Entries,
    Exponential,
    ExponentialPositions,
    GatedDecay,
    LowRank,
    Product,
    Segments,
    StochasticPositions,
    Toeplitz,
)
from tests import reference_kernel
from tests.masks.sequence_cases import (
    CASES,
    HEADS,
    SEQUENCES,
    WIDTH,
    built,
    length_of,
    matrix_of,
    random_ids,
    signals,
    with_weights,
)
from tests.numerics import (
    BACKEND,
    assert_all_close,
    assert_close,
    randomise,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

# JAX compiles every shape: the fast tests run only a few of them, the slow tests the others.
FEW = BACKEND == "jax"
LENGTHS = st.sampled_from([1, 63, 1000]) if FEW else st.integers(1, 1000)
SHAPES = st.one_of(
    st.tuples(st.integers(1, 400)),
    st.tuples(st.integers(1, 25), st.integers(1, 25)),
    st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8)),
)
FEW_SHAPES = st.sampled_from([(9,), (1, 6), (2, 3, 4)])
GRIDS = {
    "grid": lambda shape: BlockToeplitz(shape, 1),
    "grid by distance": lambda shape: BlockToeplitz(shape, form="distance"),
    "grid of low rank": lambda shape: Product(
        [BlockToeplitz(shape), LowRank(2, int(np.prod(shape)))]
    ),
}
LONG = ("causal", "segments", "exponential", "one-sided exponential")


def made(name, length, block_size=None):
    length = length_of(name, length)
    mask, inputs = built(CASES[name][0](length), length)
    if block_size is not None:  # whole lines of a grid
        mask.block_size = block_size if mask.block_size % 7 else 14
    return mask, inputs, length


@pytest.mark.parametrize(
    ("name", "length", "path"),
    [(name, 70, path) for name in CASES for path in CASES[name][0](9).paths]
    + [(name, length, "chunked") for name in LONG for length in (1, 63, 64, 65, 200)]
    + [("toeplitz", length, path) for length in (1, 150) for path in ("dense", "fft")]
    + [("one-sided toeplitz", 150, "fft")],
)
def test_paths(name, length, path):
    """Attention and M x answer to the matrix: values, and gradients of all tensors and weights."""
    mask, inputs, length = made(name, length, 16)
    assert mask.paths[-1] == CASES[name][2]
    matrix, chunks = matrix_of(name, mask, length), (None, 2, 5) if path == "sum" else (None,)
    arrays = (*signals(length), *(to_numpy(w) for w in mask.trainable_variables))

    def fast(query, key, x):
        attended = [mask.attend(query, key, x, path, chunk, **inputs) for chunk in chunks]
        return keras.ops.concatenate([*attended, mask.apply(x, path, **inputs)], axis=-1)

    def naive(query, key, x, *weights):
        full = matrix(*weights)
        attended = reference_kernel.unnormalised(query, key, x, full)
        applied = torch.einsum("bnts,bsnd->btnd", full, x)
        return torch.cat([*[attended] * len(chunks), applied], -1)

    value, gradients = value_and_gradients(with_weights(mask, fast), *arrays)
    expected, expected_gradients = reference_value_and_gradients(naive, *arrays)
    assert_close(value, expected, 1e-5)
    assert_all_close(gradients, expected_gradients, 1e-5 if "fft" in mask.paths else 3e-5)


@pytest.mark.parametrize("name", CASES)
def test_matrix_rows_and_config(name):
    mask, inputs, length = made(name, 70)
    weights = [torch.tensor(to_numpy(w)) for w in mask.trainable_variables]
    expected = matrix_of(name, mask, length)(*weights).numpy()
    found = to_numpy(mask.dense(length, **inputs))
    np.testing.assert_allclose(np.broadcast_to(found, expected.shape), expected, 2e-5, 1e-9)
    positions = np.array([length - 1, 0, length // 2])
    rows = to_numpy(mask.rows(positions, length, **inputs))
    np.testing.assert_allclose(rows, found[:, :, positions], rtol=1e-6)
    if "positive" not in str(mask.get_config()):  # its class is not registered
        config = keras.saving.serialize_keras_object(mask)
        again = keras.saving.deserialize_keras_object(config)
        assert type(again) is type(mask)
        assert again.get_config() == mask.get_config()


def compiled_value_and_gradients(function, *arrays):
    """`value_and_gradients`, on TensorFlow compiled by XLA."""
    return value_and_gradients(function, *arrays, way="xla" if BACKEND == "tensorflow" else None)


def check_signals(mask, length, path="auto", compiled=False):
    """Compares `apply` with `dense() @ x`: values, and gradients of x and of every weight."""
    mask, inputs = built(mask, length)
    arrays = (signals(length)[2], *(to_numpy(w) for w in mask.trainable_variables))

    def by_matrix(x):
        matrix = mask.dense(length, **inputs)
        matrix = keras.ops.broadcast_to(matrix, (len(x), HEADS, length, length))
        return keras.ops.einsum("bnts,bsnd->btnd", matrix, x)

    expected = value_and_gradients(with_weights(mask, by_matrix), *arrays)
    fast = with_weights(mask, lambda x: mask.apply(x, path, **inputs))
    found = (compiled_value_and_gradients if compiled else value_and_gradients)(fast, *arrays)
    assert_close(found[0], expected[0], 1e-5, floor=1e-3)
    assert_all_close(found[1], expected[1], 1e-5)


def drawn_mask(name, data, lengths=LENGTHS, shapes=FEW_SHAPES if FEW else SHAPES):
    """A mask of a sequence or a grid of any size, and its number of tokens."""
    if name in SEQUENCES:
        length = data.draw(lengths)
        return SEQUENCES[name][0](length), length
    mask = GRIDS[name](data.draw(shapes))
    return mask, mask._known_length({})


@pytest.mark.parametrize("name", [*SEQUENCES, *GRIDS])
@settings(max_examples=2 if FEW else 4)
@given(data=st.data())
def test_signals_at_any_length(name, data):
    mask, length = drawn_mask(name, data)
    check_signals(mask, length, data.draw(st.sampled_from([mask.paths[-1], "auto"])))


@pytest.mark.parametrize("path", ["dense", "blockwise"])
def test_one_matrix_of_300_rows_for_all_examples(path):
    """In TensorFlow 2.21, XLA's sum over examples after a product is wrong above 256 rows."""
    check_signals(Exponential(2), 300, path, compiled=True)


@pytest.mark.slow
@settings(max_examples=50)
@given(data=st.data(), name=st.sampled_from([*SEQUENCES, *GRIDS]), compiled=st.booleans())
def test_signals_at_many_lengths(name, compiled, data):
    mask, length = drawn_mask(name, data, st.integers(1, 1000), SHAPES)
    check_signals(mask, length, data.draw(st.sampled_from(mask.paths)), compiled)


@pytest.mark.parametrize("name", CASES)
def test_attention_compiled(name):
    """Every path by XLA on TensorFlow; on JAX, which compiles by default, also eagerly."""
    mask, inputs, length = made(name, 140)
    mask.block_size = 20
    arrays = (*signals(length), *(to_numpy(w) for w in mask.trainable_variables))

    def attend(path):
        return with_weights(mask, lambda q, k, x: mask.attend(q, k, x, path, **inputs))

    expected = value_and_gradients(attend("dense"), *arrays)
    for path in mask.paths[1:]:
        if BACKEND == "jax":
            found = to_numpy(attend(path)(*map(np.float32, arrays)))
            assert_close(found, expected[0], 1e-5)
            continue
        found = compiled_value_and_gradients(attend(path), *arrays)
        assert_close(found[0], expected[0], 1e-5)
        assert_all_close(found[1], expected[1], 1e-5)


def changes(mask, path, keep, **inputs):
    """Which rows of attention change when all other tokens do, and the new rows."""
    query, key, x = signals(300)
    kept = keep[:, None, None]
    changed = [np.where(kept, a, -1e6 * a).astype("float32") for a in (query, key, x)]
    one, two = (
        to_numpy(mask.attend(*arrays, path, **inputs)) for arrays in ((query, key, x), changed)
    )
    return (one != two).any(axis=(0, 2, 3)), two


@pytest.mark.parametrize("name", [name for name in SEQUENCES if SEQUENCES[name][0](9).is_causal])
def test_no_path_sees_the_future(name):
    """Outputs stay equal bit for bit, at a position inside a chunk, a tile and a block."""
    mask, inputs, _ = made(name, 300, 128)
    before = np.arange(300) < 201
    for path in mask.paths:
        rows, _ = changes(mask, path, before, **inputs)
        assert not rows[before].any(), path
        assert rows[~before].any()


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize(
    "name", [name for name in SEQUENCES if "segment_ids" in SEQUENCES[name][0](9).inputs_at_call]
)
def test_no_path_sees_a_neighbour(name):
    """Outputs stay equal bit for bit; an id that occurs again begins a new segment."""
    mask, inputs, _ = made(name, 300, 128)
    ids = np.repeat([[1, 2, -1, 1]], [100, 101, 9, 90], axis=1).repeat(2, axis=0).astype("int32")
    for kept in ((np.arange(300) >= 100) & (np.arange(300) < 201), np.arange(300) >= 210):
        for path in mask.paths:
            rows, outputs = changes(mask, path, kept, **inputs | {"segment_ids": ids})
            assert not rows[kept].any(), path
            assert rows[~kept].any()
            assert (outputs[:, 201:210] == 0.0).all()


@pytest.mark.slow_on("jax")
def test_gates_of_65536_tokens():
    """In float64 token by token; gates of 0 and of 1, and steps of a state."""
    generator = np.random.default_rng(0)
    log_gates = -generator.exponential(1e-3, (1, 2**16, 1)).astype("float32")
    log_gates[0, [1000, 40000, 50000]] = [[-1e4], [-np.inf], [0.0]]
    x = generator.random((1, 2**16, 1, 2)).astype("float32")
    expected, gates = x[0].astype("float64"), np.exp(log_gates.astype("float64"))[0]
    for token in range(1, 2**16):
        expected[token] += gates[token] * expected[token - 1]
    ones, mask = np.ones_like(x[..., :1]), GatedDecay()
    found = to_numpy(mask.attend(ones, ones, x, log_gates=log_gates))
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)
    state, parts = mask.get_initial_state(1, 1, 1, 2), []
    for part in np.split(np.arange(2**16), [30000]):
        of_part = (array[:, part] for array in (ones, ones, x))
        outputs, state = mask.step(state, *of_part, log_gates=log_gates[:, part])
        parts.append(to_numpy(outputs))
    np.testing.assert_allclose(np.concatenate(parts, axis=1)[0], expected, rtol=1e-6)


def test_products_of_products_and_causality():
    mask = Product([Product([Causal(), Segments()]), Exponential(2)])
    assert [type(m).__name__ for m in mask.masks] == ["Causal", "Segments", "Exponential"]
    assert mask.is_causal
    assert mask.has_state
    assert mask.num_decays == 2
    assert not Product([Causal(), LowRank(1, 4)]).has_state
    assert not Product([Segments(), Exponential()]).is_causal


def test_joined_masks_are_kept_and_share_weights():
    mask = Exponential()
    layer = MaskedKernelAttention(HEADS, 4, mask=mask)
    causal = layer.joined_mask(causal=True)
    assert causal is layer.joined_mask(causal=True)
    assert layer.joined_mask(causal=False) is mask
    assert causal.is_causal
    both = layer.joined_mask(causal=True, entries=True)
    assert both.inputs_at_call == ("entries",)
    both.build((None, 5, HEADS, WIDTH))
    assert [id(w) for w in both.weights] == [id(w) for w in mask.weights]


def test_exponential_positions_are_an_unbiased_estimate():
    mask = ExponentialPositions(6, 3, 6000, seed=1)
    mask.build((None, None, HEADS, WIDTH))
    vectors = (to_numpy(x) for x in (mask.left_positions, mask.right_positions))
    expected = np.exp(np.einsum("nid,njd->nij", *vectors))
    assert expected.max() > 1.2
    np.testing.assert_allclose(to_numpy(mask.dense(6))[0], expected, rtol=0.05)


def test_stochastic_positions_are_not_negative_and_reach_any_length():
    mask = StochasticPositions(8, seed=1)
    mask.build((None, None, HEADS, WIDTH))
    randomise(mask, scale=3.0)
    matrix = to_numpy(mask.dense(500))
    assert (matrix >= -1e-5).all()
    lags = matrix[0, :, 100:200, 50:150]
    np.testing.assert_allclose(lags, matrix[0, :, 300:400, 250:350], atol=1e-3)
    near = to_numpy(mask.rows([200, 300], 500))[0, :, :, 0]  # 200 and 300 tokens apart
    far = to_numpy(mask.rows([100_200, 100_300], 2**17))[0, :, :, 100_000]
    np.testing.assert_allclose(far, near, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "scale"),
    [
        (Causal, 0.0),
        (Exponential, 0.0),
        (lambda: Toeplitz(1024), 0.0),
        (lambda: Toeplitz(1024), 1.0),
        (lambda: Toeplitz(1024, causal=True), 0.0),
        (lambda: Toeplitz.alibi(1024, causal=False), 0.0),
        (lambda: BlockToeplitz((32, 32)), 1.0),
    ],
)
def test_wild_favor_features(make, scale):
    """Queries and keys of scale 3 and 32 features: no negative normaliser, and 1e-3 of a twin."""
    mask, length, size = make(), 1024, 64
    mask.build((None, length, HEADS, size))
    randomise(mask, scale=scale)
    generator = np.random.default_rng(3)
    q, k, v = (generator.standard_normal((1, length, HEADS, size)) for _ in range(3))
    q, k, v = (a.astype("float32") for a in (3.0 * q, 3.0 * k, v))
    directions = orthogonal_features(HEADS, size, 32, seed=0)
    x = np.concatenate([v, np.ones_like(v[..., :1])], axis=-1)
    query = Favor().query_features(q, {"directions": directions})
    key = Favor().key_features(k, {"directions": directions}, None, mask.hides_keys)
    wide = [torch.tensor(a, dtype=torch.float64) for a in (q, k, directions, v)]
    features = (reference_kernel.features(a, "favor", wide[2]) for a in wide[:2])
    matrix = torch.tensor(to_numpy(mask.dense(length)))
    expected = reference_kernel.masked_kernel_attention(*features, wide[3], matrix).numpy()
    for path in {"auto", "fft"} & {"auto", *mask.paths}:
        joint = to_numpy(mask.attend(query, key, x, path))
        assert np.isfinite(joint).all()
        assert (joint[..., -1] > 0.0).all()
        error = np.abs(joint[..., :-1] / joint[..., -1:] - expected).max()
        assert error < 1e-3 * np.abs(expected).max(), path


def test_alibi_starts_at_its_slopes():
    mask = Toeplitz.alibi(5, causal=False)
    mask.build((None, None, 2, 4))
    expected = np.exp(-(2.0**-4) * np.abs(np.arange(3) - np.arange(3)[:, None]))
    np.testing.assert_allclose(to_numpy(mask.dense(3))[0, 0], expected, rtol=1e-6)


def test_auto_goes_from_dense_to_blocks_to_fft():
    """Of a product with a causal mask, by the cost of tiles."""
    one_sided, product = Toeplitz(1 << 20, causal=True), Product([Causal(), Toeplitz(1 << 20)])
    for mask in (Toeplitz(1 << 20), one_sided):
        paths = [mask.choose_path(1 << power, 32, 33) for power in range(4, 21)]
        assert list(dict.fromkeys(paths)) == ["dense", "blockwise", "fft"]
        assert mask.choose_path(None, 32, 33) == ("dense" if BACKEND == "jax" else "blockwise")
    assert [product.choose_path(1 << power, 32, 33) for power in range(4, 21)] == paths


X, IDS = signals(6)[2], random_ids(6)
REFUSED = [
    (lambda: Product([Causal()]), "two or more masks"),
    (lambda: Product([Causal(), "casual"]), "Did you mean 'causal'"),
    (lambda: Product([Segments(), Segments()]), "same name"),
    (lambda: Exponential(0), "`num_decays`"),
    (lambda: Exponential(initial_rates=-1.0), "`initial_rates`"),
    (lambda: Exponential(2, initial_rates=[1.0, 2.0, 3.0]).apply(X), "must broadcast"),
    (lambda: GatedDecay(1.0), "`initial_memory` must be above 1"),
    (lambda: GatedDecay([2.0, 3.0, 4.0]).build(X.shape), "must broadcast"),
    (lambda: GatedDecay().attend(X, X, X, log_gates=X[..., :1, 0]), "`log_gates` must have shape"),
    (lambda: Product([GatedDecay(), Entries()]), "GatedDecay and Entries"),
    (lambda: Product([GatedDecay(), GatedDecay()]), "same name"),
    (lambda: LowRank(0, 3), "`rank`"),
    (lambda: ExponentialPositions(0), "`length`"),
    (lambda: ExponentialPositions(3, 0), "`position_dim`"),
    (
        lambda: ExponentialPositions(4).apply(X),
        r"ExponentialPositions mask has 4 positions.*Received",
    ),
    (lambda: LowRank(2, 4).apply(X), r"4 positions.*Received"),
    (lambda: StochasticPositions(0), "`num_frequencies`"),
    (lambda: Causal().apply(X, "fft"), r"`path`.*Received"),
    (lambda: Causal().apply(X, segment_ids=IDS), r"needs the tensors \[\]"),
    (lambda: Segments().apply(X), r"needs the tensors \['segment_ids'\]"),
    (lambda: Causal().apply(X[0]), r"`x` must have shape \(B, T, N, D\)"),
    (lambda: Causal().attend(X[:1], X, X), r"`query_features` must have shape"),
    (lambda: Causal().dense(), "any length"),
    (lambda: Exponential().dense(3), "no weights yet"),
    (lambda: Exponential().get_initial_state(1, 2, 3, 4), "not causal"),
    (lambda: Causal().get_initial_state(1, 0, 3, 4), "`num_heads`"),
    (lambda: Causal().step(Causal().get_initial_state(2, 2, 99, 3), X, X, X), "`state.sums` must"),
    (lambda: Entries().dense(entries=np.ones(3)), "must have shape"),
    (lambda: Toeplitz(0), "max_length"),
    (lambda: Toeplitz(4, causal="no"), "causal"),
    (lambda: Toeplitz(4, initial_slopes=-1.0), "initial_slopes"),
    (lambda: BlockToeplitz((3, 0)), "grid_shape"),
    (lambda: BlockToeplitz((3,), -1), "num_prefix_tokens"),
    (lambda: BlockToeplitz((3,), form="square"), "form"),
    (lambda: Toeplitz(5).apply(X), "at most 5 tokens"),
    (lambda: BlockToeplitz((2, 2), 1).apply(X), "5 tokens"),
]


@pytest.mark.all_cases
@pytest.mark.parametrize(("function", "message"), REFUSED)
def test_refusals(function, message):
    with pytest.raises(ValueError, match=message):
        function()
