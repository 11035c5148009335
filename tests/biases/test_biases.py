"""Every bias against its naive twin: whole, by rows and in blocks; its inputs; sharing."""

import keras
import numpy as np
import pytest
import torch
from keras import ops

from keras_graphattn import biases, layers, masks
from keras_graphattn.graphs import Graph, precompute
from keras_graphattn.layers.base import SoftmaxAttention
from tests.biases.registry import BATCH, CASES, INPUTS, LENGTH, inputs_of
from tests.layers.twins import CHANNELS, FORMS, tokens
from tests.layers.twins import built as built_form
from tests.numerics import (
    BACKEND,
    assert_all_close,
    assert_close,
    called_with,
    differentiated,
    randomise,
    short_name,
    to_numpy,
)

HEADS = 2


def built(name):
    bias = CASES[name].make(name="bias")
    bias.build((None, None, HEADS, None))
    randomise(bias)
    return bias


def expected(name, bias, length):
    weights = {
        short_name(bias, w).removeprefix("bias/"): torch.tensor(to_numpy(w)).double()
        for w in bias.weights
    }
    matrix = CASES[name].matrix(weights, length)
    return matrix if matrix.ndim == 4 else matrix[None]


def hidden_as(x, number=-1e3):
    return np.where(np.isneginf(x), number, x)


def test_every_bias_has_a_case():
    named = {type(case.make()).__name__ for case in CASES.values()}
    assert named == set(biases.__all__) - {"Bias"}
    assert set(biases.BIASES.values()) == {getattr(biases, name) for name in named}


@pytest.mark.parametrize("name", CASES)
def test_whole_by_rows_and_in_blocks(name):
    for length in (LENGTH,) if CASES[name].is_bound else (1, 7, 301):
        bias = built(name)
        inputs, right = inputs_of(bias), hidden_as(expected(name, bias, length).numpy())
        assert_close(hidden_as(to_numpy(bias.dense(length, **inputs))), right, 2e-6)
        chosen = np.random.default_rng(0).integers(0, length, 5)
        found = hidden_as(to_numpy(bias.rows(chosen, length, **inputs)))
        assert_close(found, right[:, :, chosen], 2e-6)


WAYS = {
    "dense": (layers.GraphFilterAttention, {}),
    "blockwise": (layers.GraphFilterAttention, {"attention_path": "blockwise", "block_size": 5}),
    "fused": (layers.GraphFilterAttention, {"attention_path": "fused"}),
    "p-Laplacian": (layers.PLaplacianAttention, {"attention_path": "dense"}),
    "p-Laplacian, blockwise": (layers.PLaplacianAttention, {"block_size": 5}),
}


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("dense", "p-Laplacian")])
@pytest.mark.parametrize("name", CASES)
def test_paths_are_equal(name, way):
    """Values and gradients of all weights, with padding and causality, beside the dense path."""
    kind, options = WAYS[way]
    seen = np.arange(LENGTH) < np.array([[LENGTH], [LENGTH - 5]])
    found = []
    for one in ({"attention_path": "dense"}, options):
        keras.utils.set_random_seed(0)
        layer = kind(HEADS, 3, bias=CASES[name].make(), name="layer", **one)
        layer.build((None, None, CHANNELS))
        randomise(layer)
        call = {"query_mask": seen, "value_mask": seen, "use_causal_mask": True}
        if layer.bias.inputs_at_call:
            call["bias_inputs"] = inputs_of(layer.bias)

        def function(x, *weights, layer=layer, call=call):
            return called_with(layer, weights, x, **call)

        arrays = [tokens(), *map(to_numpy, layer.trainable_variables)]
        found.append(differentiated(function)(*arrays))
    (value, slopes), (right, expected_slopes) = found[1], found[0]
    assert_close(value, right, 3e-6)
    assert_all_close(slopes, expected_slopes, 3e-5)


@pytest.mark.parametrize("name", CASES)
def test_bias_and_matrix_of_the_call_are_the_same(name):
    bias = built(name)
    keras.utils.set_random_seed(0)
    layer = layers.GraphFilterAttention(HEADS, 3, filter=None, name="layer")
    layer.build((None, None, CHANNELS))
    with_bias = layers.GraphFilterAttention(HEADS, 3, filter=None, bias=bias, name="layer")
    with_bias.build_around(layer)
    call = {"bias_inputs": inputs_of(bias)} if bias.inputs_at_call else {}
    found = with_bias(tokens(), **call)
    matrix = bias.dense(LENGTH, **inputs_of(bias))
    assert_close(to_numpy(layer(tokens(), attention_bias=matrix)), to_numpy(found), 1e-6)
    assert np.abs(to_numpy(found) - to_numpy(layer(tokens()))).max() > 1e-3


def test_gkat_is_softmax_with_the_logarithm_of_its_mask():
    walks = np.random.default_rng(0).integers(-1, LENGTH, (LENGTH, 3, 4))
    one = layers.GraphKernelAttention(HEADS, 3, mask=masks.RandomWalk(walks=walks))
    one.build((None, None, CHANNELS))
    bias = biases.LogMask(masks.RandomWalk(walks=walks))
    other = layers.GraphFilterAttention(HEADS, 3, filter=None, bias=bias)
    other.build_around(one)
    assert_close(to_numpy(other(tokens())), to_numpy(one(tokens())), 1e-6)


@pytest.mark.slow_on("jax")
def test_a_row_of_minus_infinity_is_zero_on_every_path():
    matrix = np.zeros((LENGTH, LENGTH), "float32")
    matrix[3] = -np.inf
    matrix[:, 5] = -np.inf
    x = tokens()
    for kind, options in WAYS.values():
        layer = kind(HEADS, 3, use_bias=False, **options)
        outputs = to_numpy(layer(x, attention_bias=matrix))
        assert (outputs[:, 3] == 0).all()
        other = x.copy()
        other[:, 5] = 1e10
        changed = to_numpy(layer(other, attention_bias=matrix))
        keep = np.arange(LENGTH) != 5
        np.testing.assert_array_equal(changed[:, keep], outputs[:, keep])


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", FORMS)
def test_minus_infinity_hides_as_a_mask_does(name):
    form = FORMS[name]
    layer, x = built_form(form.make), tokens()
    is_softmax = isinstance(layer, SoftmaxAttention) and getattr(layer, "feature_map", None) is None
    if not is_softmax or form.masks != "pairs":
        pytest.skip("the layer has no scores of all pairs")
    seen = np.random.default_rng(0).random((2, 4, LENGTH, LENGTH)) > 0.4
    seen[:, :, 3] = False
    found = layer(x, attention_bias=np.where(seen, 0.0, -np.inf), **form.call)
    right = layer(x, attention_mask=seen, **form.call)
    assert_close(to_numpy(found), to_numpy(right), 1e-6)


@pytest.mark.parametrize("path", ["dense", "blockwise"])
@pytest.mark.parametrize("kind", [layers.GraphFilterAttention, layers.PLaplacianAttention])
@pytest.mark.parametrize("name", ["RelativePositions", "Sum", "HopDecay"])
def test_decoding_is_the_full_pass(name, kind, path):
    bias = CASES[name].make()
    layer = kind(HEADS, 3, attention_path=path, bias=bias)
    layer.build((None, None, CHANNELS))
    randomise(layer)
    x = ops.convert_to_tensor(tokens())
    call = {"bias_inputs": inputs_of(bias)} if bias.inputs_at_call else {}
    right = layer(x, use_causal_mask=True, **call)
    cache, outputs = layer.get_initial_cache(BATCH, LENGTH), []
    for start, end in ((0, 7), (7, 8), (8, LENGTH)):
        found, cache = layer.decode(x[:, start:end], cache, start, **call)
        outputs.append(to_numpy(found))
    assert_close(np.concatenate(outputs, axis=1), to_numpy(right), 1e-5)


WRONG = {
    "ShortestPath": ("distances", -3, "Distances are numbers of edges"),
    "EdgePath": ("paths", 3, "types of edges are numbers from 0 to 2"),
    "WalkProbabilities": ("walk_probabilities", np.nan, "must be finite"),
    "HopDecay": ("distances", -7, "Distances are numbers of edges"),
    "Sum": ("paths", -2, "types of edges are numbers from 0 to 2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_entry_is_refused_or_makes_its_example_nan(name, monkeypatch):
    argument, entry, message = WRONG[name]
    layer = layers.GraphFilterAttention(HEADS, 3, bias=CASES[name].make())
    inputs = {key: x.copy() for key, x in inputs_of(layer.bias).items()}
    right = to_numpy(layer(tokens(), bias_inputs=inputs))
    inputs[argument][(1, 2, 4, *([0] * (inputs[argument].ndim - 3)))] = entry
    with pytest.raises(ValueError, match=f"`{argument}` of example 1: .*{message}"):
        layer(tokens(), bias_inputs=inputs)
    monkeypatch.setattr("keras_graphattn.masks.inputs.known_value", lambda given: None)
    outputs = to_numpy(layer(tokens(), bias_inputs=inputs))
    assert np.isnan(outputs[1]).all()
    np.testing.assert_allclose(outputs[0], right[0], atol=1e-6)


def test_one_bias_in_all_layers_of_a_model(tmp_path):
    bias = CASES["Sum"].make(name="shared")
    bias.build((None, None, HEADS, None))
    nodes = keras.Input((None, CHANNELS))
    given = {
        name: keras.Input(x.shape[1:], dtype=x.dtype.name, name=name)
        for name, x in inputs_of(bias).items()
    }
    matrix = bias(**given)
    outputs = nodes
    for number in range(2):
        layer = layers.GraphFilterAttention(HEADS, 3, name=f"layer_{number}")
        outputs = layer(outputs, attention_bias=matrix)
    model = keras.Model([nodes, *given.values()], outputs)
    randomise(model)
    arrays = [tokens(), *inputs_of(bias).values()]
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(to_numpy(again(arrays)), to_numpy(model(arrays)), atol=1e-6)
    model.compile("sgd", "mse")
    before = to_numpy(bias.weights[0])
    model.fit(arrays, tokens(), epochs=1, verbose=0)
    assert (to_numpy(bias.weights[0]) != before).any()


REFUSED = {
    "bias of AGF": (
        lambda: layers.AttentiveGraphFilter(2, 4, bias="alibi"),
        "AttentiveGraphFilter has no softmax of scores",
    ),
    "attention_bias of a kernel": (
        lambda: layers.MaskedKernelAttention(2, 4)(tokens(), attention_bias=np.zeros((16, 16))),
        "MaskedKernelAttention has no softmax of scores",
    ),
    "factored GKAT": (
        lambda: layers.GraphKernelAttention(
            2, 4, mask="causal", feature_map="favor", bias=biases.Alibi()
        ),
        "`bias` needs the attention matrix",
    ),
    "booleans": (
        lambda: layers.GraphFilterAttention(2, 4)(tokens(), attention_bias=np.ones((16, 16), bool)),
        "Hide pairs of positions with `attention_mask`",
    ),
    "a float mask": (
        lambda: layers.GraphFilterAttention(2, 4)(
            tokens(), attention_mask=np.full((16, 16), -1e9, "float32")
        ),
        "are an `attention_bias`",
    ),
    "inputs without a bias": (
        lambda: layers.GraphFilterAttention(2, 4)(tokens(), bias_inputs={"distances": 1}),
        "this layer has none",
    ),
    "missing inputs": (
        lambda: layers.GraphFilterAttention(2, 4, bias="shortest_path")(tokens()),
        'bias_inputs={"distances": ...}',
    ),
    "a matrix as bias": (
        lambda: layers.GraphFilterAttention(2, 4, bias=np.zeros((3, 3))),
        "attention_bias=matrix",
    ),
    "shape": (
        lambda: layers.GraphFilterAttention(2, 4)(tokens(), attention_bias=np.zeros((16, 15))),
        "`attention_bias` must have shape",
    ),
    "more edges than hops": (
        lambda: layers.GraphFilterAttention(2, 4, bias=biases.EdgePath(3, 2))(
            tokens(), bias_inputs={"paths": INPUTS["paths"]}
        ),
        "numbers for 2 edges",
    ),
    "a shared bias": (
        lambda: [
            layers.GraphFilterAttention(2, 4, bias=bias).build((None, 4, 6))
            for bias in [biases.RelativePositions()] * 2
        ],
        "A bias with weights belongs to one layer",
    ),
    "max_distance": (lambda: biases.RelativePositions(32, 8), "`max_distance`"),
    "dynamic walks": (
        lambda: layers.GraphKernelAttention(
            2, 4, mask=masks.RandomWalk(), dynamic_walks=True, bias="alibi"
        ),
        "cannot be combined",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    function, message = REFUSED[name]
    with pytest.raises(ValueError, match=message.replace("{", r"\{").replace(".", r"\.")):
        function()


def test_relative_positions_are_those_of_t5():
    pytest.importorskip("keras_hub")
    from keras_hub.src.models.t5.t5_multi_head_attention import T5MultiHeadAttention

    for both in (True, False):
        bias = biases.RelativePositions(bidirectional=both)
        offsets = np.arange(-400, 401, dtype="int32")
        theirs = T5MultiHeadAttention._relative_position_bucket(
            ops.convert_to_tensor(offsets), bidirectional=both
        )
        assert [bias.bucket_of(int(offset)) for offset in offsets] == to_numpy(theirs).tolist()


def test_precomputed_walk_probabilities_are_powers():
    graph = Graph([[0, 1], [1, 2], [3, 1]], num_nodes=5, edge_weights=[1.0, 2.0, 3.0])
    (found,) = precompute([graph], "walk_probabilities", num_steps=4, verbose=False)
    weights = graph.adjacency().toarray()
    step = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-30)
    assert found.shape == (5, 5, 4)
    assert found.dtype == "float32"
    for power in range(4):
        right = np.linalg.matrix_power(step, power)
        np.testing.assert_allclose(found[..., power], right, atol=1e-6)


@pytest.mark.skipif(BACKEND == "torch", reason="torch compiles too slowly for a test")
def test_compiled_blocks_with_a_bias():
    from tests.compiling import jit

    layer = layers.GraphFilterAttention(
        HEADS, 3, attention_path="blockwise", block_size=5, bias="relative_positions"
    )
    x = ops.convert_to_tensor(tokens())
    right = to_numpy(layer(x))
    assert_close(to_numpy(jit(layer)(x)), right, 1e-6)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("path", ["dense", "blockwise", "fused"])
def test_a_gated_decay_forgets_and_decodes(path):
    """The logarithm of the gates, read from the tokens, as the bias of softmax attention."""
    bias = biases.LogMask(masks.GatedDecay(2.0))
    layer = layers.GraphFilterAttention(HEADS, 3, attention_path=path, block_size=5, bias=bias)
    layer.build((None, None, CHANNELS))
    randomise(layer)
    seen = np.arange(LENGTH) < np.array([[LENGTH], [LENGTH - 5]])
    x = tokens()
    weights = {
        w.path.rpartition("gates/")[2]: torch.tensor(to_numpy(w)).double() for w in bias.weights
    }
    gates = torch.tensor(x).double() @ weights["kernel"] + weights["bias"]
    gates = torch.nn.functional.logsigmoid(gates) * torch.tensor(seen)[:, :, None]
    sums = torch.cumsum(gates, dim=1).permute(0, 2, 1)
    matrix = torch.tril(sums[..., :, None] - sums[..., None, :])
    plain = layers.GraphFilterAttention(HEADS, 3, attention_path=path, block_size=5)
    plain.build_around(layer)
    plain.linear_coefficient.assign(layer.linear_coefficient)
    plain.power_coefficient.assign(layer.power_coefficient)
    plain.identity_coefficient.assign(layer.identity_coefficient)
    masked = {"query_mask": seen, "value_mask": seen}
    added = matrix.numpy().astype("float32")
    right = plain(x, attention_bias=added, use_causal_mask=True, **masked)
    assert_close(to_numpy(layer(x, **masked)), to_numpy(right), 1e-5)
    cache, outputs = layer.get_initial_cache(BATCH, LENGTH), []
    for start, end in ((0, 7), (7, 8), (8, LENGTH)):
        part, mask = ops.convert_to_tensor(x[:, start:end]), seen[:, start:end]
        found, cache = layer.decode(part, cache, start, ops.convert_to_tensor(mask))
        outputs.append(to_numpy(found))
    assert_close(np.concatenate(outputs, axis=1), to_numpy(right), 1e-5)
    pairs = np.ones((LENGTH, LENGTH), bool)
    with pytest.raises(ValueError, match="hides their tokens"):
        layer(x, attention_mask=pairs)


def test_a_bias_that_is_added_twice_is_one_bias_after_loading_too():
    bias = biases.RelativePositions(num_buckets=8, max_distance=20)
    twice = biases.Sum([bias, bias])
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(twice))
    for each in (twice, again):
        each.build((None, None, 2, None))
    again.set_weights(twice.get_weights())
    assert again.biases[0] is again.biases[1]
    expected = 2.0 * to_numpy(bias.dense(5))
    np.testing.assert_allclose(to_numpy(twice.dense(5)), expected, rtol=1e-6)
    np.testing.assert_allclose(to_numpy(again.dense(5)), expected, rtol=1e-6)


@pytest.mark.skipif(BACKEND != "torch", reason="torch's own form")
@pytest.mark.parametrize("heads", [1, 2])
def test_the_weights_under_a_bias_take_the_memory_of_the_scores(heads):
    from keras_graphattn.operators.torch_biased_softmax import biased_softmax

    generator = torch.Generator().manual_seed(0)
    leaf, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 2, 3, 5), (1, heads, 3, 5))
    )
    visible = torch.rand((2, 1, 3, 5), generator=generator) > 0.3
    visible[0, 0, 1] = False  # a row that sees nothing

    def function(scores, bias):
        return biased_softmax(1.0 * scores, bias, visible, overwrite=True)

    assert torch.autograd.gradcheck(function, (leaf, bias))
    assert torch.autograd.gradgradcheck(function, (leaf, bias))
    scores, kept = 1.0 * leaf, []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda one: one):
        weights = biased_softmax(scores, bias, visible, overwrite=True)
    assert weights.data_ptr() == scores.data_ptr()
    assert [one.data_ptr() for one in kept] == [weights.data_ptr()]
