"""The forms of GraphKernelAttention: additive scores, and features instead of the matrix."""

import keras
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_graphattn import ops as our_ops
from keras_graphattn.feature_maps import Favor
from keras_graphattn.layers import GraphKernelAttention, MaskedKernelAttention
from keras_graphattn.masks import Causal, GraphDiffusion, RandomWalk, Tree
from tests import reference_kernel
from tests import reference_topology as reference
from tests.numerics import (
    as_seen,
    assert_all_close,
    assert_close,
    layer_reference,
    layer_value_and_gradients,
    randomise,
    reference_value_and_gradients,
    reference_weights,
    to_numpy,
    value_and_gradients,
)
from tests.reference import project, project_out

HEADS, KEY, FEATURES, LENGTH = 2, 4, 6, 9
EDGES = reference.random_edges(LENGTH, 2.5, 3)
WALKS = np.random.default_rng(0).integers(-1, LENGTH, (2, LENGTH, 3, 3)).astype("int32")
PADDED = np.ones((2, LENGTH), bool)
PADDED[0, [1, 5]] = False
FORMS = {
    "dot product": {},
    "additive": {"score": "additive"},
    "FAVOR+": {"feature_map": Favor(8, seed=0)},
    "ReLU, in chunks": {"feature_map": "relu", "feature_chunk": 3},
}
OF_EXAMPLES = {"mask_inputs": {"walks": WALKS}}


def tokens(seed=0):
    shape = (2, LENGTH, FEATURES)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def built(mask=None, form="dot product", **options):
    mask = RandomWalk(learn_decay=True, decay=0.7, name="mask") if mask is None else mask
    layer = GraphKernelAttention(HEADS, KEY, mask=mask, name="layer", **FORMS[form], **options)
    layer.build((None, LENGTH, FEATURES))
    randomise(layer)
    return layer


def naive_additive(query, key, query_vector, key_vector, slope=0.2):
    """LeakyReLU(a . [q_i || k_j]), with the two ends joined for each pair."""
    batch, rows, heads, size = query.shape
    columns = key.shape[1]
    ends = torch.cat(
        [
            query[:, :, None].expand(batch, rows, columns, heads, size),
            key[:, None].expand(batch, rows, columns, heads, size),
        ],
        dim=-1,
    )
    both = torch.cat([query_vector, key_vector], dim=-1)
    scores = torch.einsum("btsnh,nh->bnts", ends, both)
    return torch.where(scores >= 0, scores, slope * scores)


def naive(x, weights, matrix, form):
    """The layer with everything formed, for factors (B, N, T, T)."""
    if "feature_map" in FORMS[form]:
        name = "favor" if form == "FAVOR+" else "relu"
        return reference_kernel.layer_outputs(x, weights, matrix, name)
    query, key, values = (project(x, weights, name) for name in ("query", "key", "value"))
    if form == "additive":
        scores = naive_additive(query, key, weights["score/query"], weights["score/key"])
    else:
        scores = torch.einsum("btnh,bsnh->bnts", query, key) / KEY**0.5
    attention = torch.exp(scores) * matrix
    total = attention.sum(-1, keepdim=True)
    attention = attention / torch.where(total > 0, total, 1.0)
    return project_out(torch.einsum("bnts,bsnh->btnh", attention, values), weights)


def kernel_of_examples(log_decay):
    decay = torch.exp(log_decay)
    each = [reference.walk_features(walks, decay) for walks in WALKS]
    return torch.stack([reference.walk_matrix(features) for features in each])


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_agrees_with_naive_twin(form, padded):
    layer = built(form=form)
    seen = torch.tensor(PADDED | (not padded))
    call = {"query_mask": PADDED, "value_mask": PADDED} if padded else {}
    frozen = {k: v for k, v in reference_weights(layer).items() if k == "directions"}

    def twin(x, weights):
        matrix = kernel_of_examples(weights["mask/log_decay"])
        matrix = matrix * seen[:, None, None, :] * seen[:, None, :, None]
        return naive(x, {**weights, **frozen}, matrix, form)

    value, gradients = layer_value_and_gradients(layer, tokens(), **call, **OF_EXAMPLES)
    expected, expected_gradients = layer_reference(layer, twin, tokens())
    assert_close(value, expected, 1e-5)
    assert_all_close(gradients, expected_gradients, 1e-4)
    if padded:
        assert (gradients["input"][~PADDED] == 0.0).all()


@pytest.mark.all_cases
@pytest.mark.parametrize("form", ["dot product", "additive"])
def test_gradients_are_differences_in_float64(form):
    """Under fixed walks and padding; the differences are of the twin, which agrees with the layer.

    A difference in float32 is no test of a gradient: a step of 1e-2 may cross a kink of LeakyReLU,
    and at a step of 1e-4 an error of 1e-7 in the values is an error of 1e-3 or more in the slope.
    """
    layer = built(RandomWalk(walks=WALKS[0], learn_decay=True, decay=0.7, name="mask"), form)
    seen = torch.tensor(PADDED)
    seen = seen[:, None, None, :] * seen[:, None, :, None]

    def twin(x, weights):
        features = reference.walk_features(WALKS[0], torch.exp(weights["mask/log_decay"]))
        return naive(x, weights, reference.walk_matrix(features) * seen, form)

    call = {"query_mask": PADDED, "value_mask": PADDED}
    value, gradients = layer_value_and_gradients(layer, tokens(), **call)
    expected, expected_gradients = layer_reference(layer, twin, tokens())
    assert_close(value, expected, 1e-5)
    assert_all_close(gradients, expected_gradients, 1e-4)
    weights = reference_weights(layer)
    torch.autograd.gradcheck(
        lambda x, *given: twin(x, dict(zip(weights, given, strict=True))),
        [torch.as_tensor(x).double().requires_grad_() for x in (tokens(), *weights.values())],
        fast_mode=True,
    )


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("form", FORMS)
def test_half_precision(form, dtype):
    layer = built(form=form, dtype=f"mixed_{dtype}")
    x, weights = as_seen(layer, tokens())
    right = naive(x, weights, kernel_of_examples(weights["mask/log_decay"]), form)
    outputs = layer(tokens(), **OF_EXAMPLES)
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    assert_close(to_numpy(outputs), right.numpy(), 1e-2 if dtype == "bfloat16" else 2e-3)


@pytest.mark.slow_on("jax")
@settings(max_examples=5)
@given(
    sizes=st.tuples(*[st.integers(1, 7)] * 5),
    slope=st.floats(0.0, 1.0),
    seed=st.integers(0, 1000),
)
def test_additive_scores(sizes, slope, seed):
    batch, rows, columns, heads, size = sizes
    generator = np.random.default_rng(seed)
    shapes = (batch, rows, heads, size), (batch, columns, heads, size), (heads, size), (heads, size)
    arrays = [generator.standard_normal(shape).astype("float32") for shape in shapes]
    value, gradients = value_and_gradients(
        lambda *x: our_ops.additive_scores(*x, negative_slope=slope), *arrays
    )
    expected, expected_gradients = reference_value_and_gradients(
        lambda *x: naive_additive(*x, slope=slope), *arrays
    )
    assert_close(value, expected, 1e-5)
    assert_all_close(gradients, expected_gradients, 1e-4)


@pytest.mark.slow_on("jax", "tensorflow")
def test_the_factored_form_is_masked_kernel_attention():
    mask = RandomWalk(EDGES, num_nodes=LENGTH)
    factored = built(mask, "FAVOR+")
    other = MaskedKernelAttention(HEADS, KEY, mask=mask, **FORMS["FAVOR+"])
    other.build((None, LENGTH, FEATURES))
    other.set_weights(factored.get_weights())
    calls = [{}, {"use_causal_mask": True}, {"attention_mask": PADDED[:, None]}]
    for call in (*calls, {"return_attention_scores": True}):
        found = [keras.tree.flatten(layer(tokens(), **call)) for layer in (factored, other)]
        for one, right in zip(*found, strict=True):
            np.testing.assert_array_equal(to_numpy(one), to_numpy(right))


@pytest.mark.slow_on("jax", "tensorflow")
def test_features_estimate_the_dense_form():
    mask = RandomWalk(EDGES, num_nodes=LENGTH)
    dense, x = built(mask), 0.2 * tokens()  # the estimate is good for short queries
    right = to_numpy(dense(x))
    errors = []
    for count in (16, 4096):
        layer = GraphKernelAttention(HEADS, KEY, mask=mask, feature_map=Favor(count, seed=0))
        layer.build((None, LENGTH, FEATURES))
        for weight, old in zip(layer.trainable_weights, dense.trainable_weights, strict=True):
            weight.assign(old)
        errors.append(np.abs(to_numpy(layer(x)) - right).max())
    assert errors[1] < 0.02 * np.abs(right).max()
    assert errors[1] < 0.3 * errors[0]
    before = to_numpy(layer(x))
    layer.redraw_features(seed=1)
    assert 0.0 < np.abs(to_numpy(layer(x)) - before).max() < 0.05 * np.abs(right).max()


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("form", FORMS)
def test_permuting_nodes_permutes_outputs(form):
    order = np.random.default_rng(3).permutation(LENGTH)
    place = np.argsort(order)
    pairs = [
        [RandomWalk(edges, num_nodes=LENGTH, exact=True) for edges in (EDGES, place[EDGES])],
        [GraphDiffusion(edges, num_nodes=LENGTH) for edges in (EDGES, place[EDGES])],
    ]
    for mask, permuted in pairs:
        one, other = built(mask, form), built(permuted, form)
        other.set_weights(one.get_weights())
        found = to_numpy(other(tokens()[:, order]))
        assert_close(found, to_numpy(one(tokens()))[:, order], 1e-5)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("form", FORMS)
def test_disconnected_parts_do_not_mix(form):
    parts = [[0, 1], [1, 2], [2, 3], [5, 6], [6, 7], [7, 8]]  # node 4 has no edge
    layer = built(RandomWalk(parts, num_nodes=LENGTH), form)
    x, other = tokens(), tokens()
    other[:, :4] *= 1e4
    one, two = to_numpy(layer(x)), to_numpy(layer(other))
    np.testing.assert_array_equal(one[:, 4:], two[:, 4:])
    assert np.abs(one[:, :4] - two[:, :4]).min() > 0.0


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("form", FORMS)
def test_walks_of_each_call_train_and_load_at_other_sizes(form, tmp_path):
    inputs = keras.Input((None, FEATURES)), keras.Input((None, 3, 3), dtype="int32")
    layer = GraphKernelAttention(HEADS, KEY, mask=RandomWalk(), **FORMS[form])
    model = keras.Model(inputs, layer(inputs[0], mask_inputs={"walks": inputs[1]}))
    model.compile("sgd", "mse")
    before = [to_numpy(w) for w in layer.trainable_variables]
    model.fit((tokens(), WALKS), tokens(1), verbose=0)
    for old, weight in zip(before, layer.trainable_variables, strict=True):
        assert "key/bias" in weight.path or np.abs(to_numpy(weight) - old).max() > 0
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    small = tokens()[:, :5], np.minimum(WALKS[:, :5], 4)
    assert_close(again.predict(small, verbose=0), model.predict(small, verbose=0), 1e-6)


REFUSED = {
    "score": {"score": "cosine"},
    "dropout": {"feature_map": "favor", "dropout": 0.1},
    "`score` needs the attention matrix": {"feature_map": "favor", "score": "additive"},
    "sliding_window": {"feature_map": "relu", "sliding_window": 2},
    "feature_chunk": {"feature_chunk": 2},
    "feature_map": {"feature_map": "gaussian"},
}


@pytest.mark.parametrize("match", REFUSED)
def test_what_is_refused(match):
    with pytest.raises(ValueError, match=match):
        GraphKernelAttention(HEADS, KEY, mask=Tree([-1, 0]), **REFUSED[match])


def test_only_random_features_are_drawn_again():
    with pytest.raises(ValueError, match="favor"):
        built(Causal()).redraw_features()


@pytest.mark.slow_on("jax", "tensorflow")
def test_a_hundred_thousand_nodes_train_without_a_matrix():
    """The matrix would take 40 GB. Far from its ends, a part of the ring has the same outputs."""
    count, part = 100_000, 200
    around = np.stack([np.arange(count), (np.arange(count) + 1) % count], axis=1)
    walks = our_ops.random_walks(our_ops.read_graph(around), 2, 3, seed=0)
    few = walks[:part]
    x = np.random.default_rng(0).standard_normal((1, count, FEATURES)).astype("float32")
    found = []
    for drawn, nodes in ((walks, x), (np.where(few < part, few, -1), x[:, :part])):
        mask = RandomWalk(walks=drawn, learn_decay=True, decay=0.7)
        layer = GraphKernelAttention(1, 4, mask=mask, feature_map=Favor(2, seed=0), name="layer")
        layer.build(nodes.shape)
        layer.set_weights(found[0][2] if found else layer.get_weights())
        value, gradients = layer_value_and_gradients(layer, nodes)
        found.append((value, gradients, layer.get_weights()))
    inner = slice(10, part - 10)
    np.testing.assert_allclose(found[0][0][0, inner], found[1][0][0, inner], atol=1e-5)
    assert all(np.isfinite(g).all() and np.abs(g).max() > 0 for g in found[0][1].values())
