"""Every layer in half precision: close to float32, finite at its limits, loss scaling in `fit`."""

import keras
import numpy as np
import pytest

import keras_graphattn
from benchmarks.precision import CASES, PRECISIONS, built, compare, outputs_and_gradients, tokens
from keras_graphattn.filters import FirstOrder
from keras_graphattn.layers import AttentiveGraphFilter, GraphFilterAttention, MaskedKernelAttention
from keras_graphattn.masks import Exponential
from tests.fuzz.cases_of_classes import TOKEN_LAYERS
from tests.layers.capabilities import LAYERS, TOKENS
from tests.layers.decoding import decoded
from tests.layers.unseen_cases import CASES as LARGE
from tests.numerics import BACKEND, assert_close, dtype_policy, to_numpy

OURS = [name for name in CASES if "Keras" not in name]
ON_JAX = ("graph filter, dense", "AGF", "kernel, Toeplitz by FFT")  # compiling takes seconds each
# a unit in the last place is 2^-8 and 2^-11; outputs go through two roundings of projections
TOLERANCE = {"mixed_bfloat16": (2e-2, 6e-2), "mixed_float16": (3e-3, 1e-2)}
KINK = 3e-2  # a key's feature near 0 takes the other side of the kink of ReLU in half precision
# TensorFlow sums the gradients of biases, of Keras' own layers too, over all tokens in float16
LONG = 6e-2 if BACKEND == "tensorflow" else TOLERANCE["mixed_float16"][1]
COMPILED = [pytest.mark.slow] if BACKEND == "jax" else []


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in ON_JAX else COMPILED) for n in OURS]
)
def test_outputs_and_gradients_are_close_to_float32(name, precision):
    mask = np.arange(48)[None] < np.array([[40], [48]])
    outputs, gradients = compare(name, 48, precision, query_mask=mask, value_mask=mask)
    assert outputs < TOLERANCE[precision][0]
    if (name, precision) == ("p-Laplacian, p = 1, epsilon = 0.001", "mixed_float16"):
        return  # its gradients reach 1 / epsilon^2 = 1e6, beyond float16: fit scales and skips
    assert gradients < max(TOLERANCE[precision][1], KINK if name.startswith("kernel") else 0.0)


EXTREMES = [
    *("graph filter", "graph filter, blockwise", "graph filter, fused", "graph filter, Jacobi"),
    *("high frequencies", "p-Laplacian, dense", "p-Laplacian, blockwise", "AGF", "AGF, causal"),
    "delta rule",
    *("kernel, no mask, ReLU", "kernel, Causal, chunked", "kernel, Exponential, chunked"),
    *("kernel, Toeplitz, fft", "GKAT, RandomWalk", "GKAT, dynamic walks, RandomWalk"),
    *("GKAT, factored, RandomWalk", "GKAT, additive, RandomWalk"),
]


def with_large_scores(make, largest, x):
    """A float16 layer whose largest score for these tokens is about this number."""
    with dtype_policy("mixed_float16"):
        layer = make()
        layer.build(x.shape)
    kernels = [layer.query_dense.kernel, layer.key_dense.kernel]
    query, key = (np.einsum("btd,dnh->btnh", x, to_numpy(kernel)) for kernel in kernels)
    score = np.abs(np.einsum("btnh,bsnh->bnts", query, key)).max() / query.shape[-1] ** 0.5
    for kernel in kernels:
        kernel.assign(to_numpy(kernel) * np.sqrt(largest / score))
    return layer


@pytest.mark.parametrize("largest", [4e4, 1.6e5, 1e6])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "graph filter" else COMPILED) for n in EXTREMES]
)
def test_scores_beyond_float16_and_rows_without_keys_stay_finite(name, largest):
    layer = with_large_scores(LARGE[name].make, largest, TOKENS)
    mask = np.ones(TOKENS.shape[:2], bool)
    mask[0, 10:], mask[1] = False, False
    call = {"query_mask": mask, "value_mask": mask}
    outputs, gradients = outputs_and_gradients(layer, TOKENS, 2.0**8, **call)
    assert np.isfinite(outputs).all()
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    assert (outputs[~mask] == 0).all()


@pytest.mark.slow_on("jax")
def test_paths_and_decoding_agree_on_large_scores():
    padded, outputs = np.arange(32)[None] < np.array([[20], [32]]), {}
    filter = FirstOrder(initial_coefficients={"power": 0.5})
    for path in GraphFilterAttention.paths:
        options = {"attention_path": path, "block_size": 5, "filter": filter}
        keras.utils.set_random_seed(1)
        x = tokens(32)
        layer = with_large_scores(lambda o=options: GraphFilterAttention(2, 16, **o), 1.6e5, x)
        outputs[path] = to_numpy(layer(x, use_causal_mask=True, value_mask=padded))
        outputs[path, "decoding"] = to_numpy(decoded(layer, x, (9, 23), padded)[0])
    for found in outputs.values():
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found[padded], outputs["dense"][padded], rtol=0, atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("graph filter, blockwise", "p-Laplacian, blockwise", "AGF", "AGF, causal"),
        *("kernel, FAVOR+", "kernel, exponential", "kernel, Toeplitz by FFT"),
    ],
)
def test_4096_tokens_in_float16(name):
    outputs, gradients = compare(name, 4096, "mixed_float16")
    assert outputs < TOLERANCE["mixed_float16"][0]
    assert gradients < max(LONG, KINK if name.startswith("kernel") else 0.0)


@pytest.mark.slow_on("jax")
def test_loss_scaling_is_set_up_by_compile_and_training_moves_every_weight():
    with dtype_policy("mixed_float16"):
        inputs = keras.Input((12, 16))
        x = GraphFilterAttention(2, 8, order=3, name="filter")(inputs)
        x = AttentiveGraphFilter(2, 8, order=2, name="singular_filter")(x)
        x = MaskedKernelAttention(2, 8, mask=Exponential(), name="kernel")(x)
        pooled = keras.layers.GlobalAveragePooling1D()(x)
        outputs = keras.layers.Dense(2, activation="softmax", dtype="float32")(pooled)
        model = keras.Model(inputs, outputs)
        model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    before = [to_numpy(v) for v in model.trainable_variables]
    history = model.fit(tokens(12, 8)[:, :, :16], np.arange(8) % 2, epochs=3, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    after = [to_numpy(v) for v in model.trainable_variables]
    for variable, old, new in zip(model.trainable_variables, before, after, strict=True):
        assert np.isfinite(new).all(), variable.path
        assert "key/bias" in variable.path or np.abs(new - old).max() > 0, variable.path


@pytest.mark.parametrize("precision", [pytest.param(p, marks=COMPILED) for p in PRECISIONS])
@pytest.mark.parametrize("attention", ["graph_filter", "attentive_graph_filter", "masked_kernel"])
def test_converted_keras_hub_model(attention, precision):
    keras_hub = pytest.importorskip("keras_hub")

    def converted(dtype):
        backbone = keras_hub.models.BertBackbone(
            vocabulary_size=32,
            num_layers=1,
            num_heads=2,
            hidden_dim=16,
            intermediate_dim=16,
            dtype=dtype,
        )
        return keras_graphattn.convert(backbone, attention)

    plain, half = converted("float32"), converted(precision)
    half.set_weights(plain.get_weights())
    ids = np.random.default_rng(0).integers(1, 32, (2, 12))
    mask = (np.arange(12)[None] < np.array([[7], [0]])).astype("int32")  # one row of padding alone
    data = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": mask}
    expected, found = (to_numpy(m(data)["sequence_output"]) for m in (plain, half))
    assert np.isfinite(found).all()
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < TOLERANCE[precision][0]


def test_the_cases_reach_all_layers():
    made = {type(built(name, 8)) for name in OURS}
    made |= {getattr(keras_graphattn.layers, name) for name in TOKEN_LAYERS}  # all in float32
    assert made == {getattr(keras_graphattn.layers, n) for n in keras_graphattn.layers.__all__}


@pytest.mark.parametrize(("dtype", "own"), [("float32", "bfloat16"), ("bfloat16", "float32")])
@pytest.mark.parametrize("name", LAYERS)
def test_a_projection_with_a_dtype_of_its_own(name, dtype, own):
    layer, call = LAYERS[name].built()
    if not hasattr(layer, "query_dense"):
        pytest.skip("has no projections")
    expected = to_numpy(layer(TOKENS, **call))
    for part in ("query", "key", "value"):
        policy = keras.dtype_policies.DTypePolicyMap(default_policy=dtype)
        policy[f"{layer.name}/{part}"] = keras.DTypePolicy(own)
        mixed = type(layer).from_config({**layer.get_config(), "dtype": policy})
        mixed.build(TOKENS.shape)
        mixed.set_weights(layer.get_weights())
        assert getattr(mixed, f"{part}_dense").compute_dtype == own
        assert_close(to_numpy(mixed(TOKENS, **call)), expected, 5e-2, what=part)
        if hasattr(layer, "get_initial_cache"):
            found, right = (
                to_numpy(decoded(x, TOKENS, [TOKENS.shape[1]])[0]) for x in (mixed, layer)
            )
            assert_close(found, right, 5e-2, what=part)
