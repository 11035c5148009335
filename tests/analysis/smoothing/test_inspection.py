"""What `inspect_smoothing` says of whole models, against the outputs of their own layers."""

import functools

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

import keras_graphattn
from keras_graphattn.analysis import inspect_smoothing
from keras_graphattn.keras_internals import replaced_attributes, walk
from tests.analysis.smoothing import twins
from tests.analysis.smoothing.models import (
    Subclassed,
    attention,
    figures_of,
    stack,
    vision_transformer,
)
from tests.hub.models import as_given, random_backbone, random_inputs
from tests.numerics import randomise, to_numpy

random = np.random.default_rng(1)
PLACES = ("before", "after", "block")


def assert_tokens(measures, sequences):
    """The figures are the means of those of the sequences (n, d), by double loops."""
    sequences = [sequence.astype("float64") for sequence in sequences]
    for name, tolerance in (("cosine", 1e-5), ("dc_share", 1e-5), ("effective_rank", 1e-4)):
        expected = np.mean([getattr(twins, name)(x) for x in sequences])
        assert getattr(measures, name) == pytest.approx(expected, abs=tolerance), name


def assert_heads(heads, attention, operator):
    """The figures of operators are those of the matrices (N, n, n) of each sequence."""
    for name, matrices in (("attention", attention), ("operator", operator)):
        np.testing.assert_allclose(getattr(heads, f"{name}_map"), matrices[0], atol=1e-5)
        response = twins.heads(matrices, twins.fourier)
        np.testing.assert_allclose(getattr(heads, f"{name}_fourier"), response, atol=1e-5)


def matrices_of(layer, tokens, **masks):
    """A and H of a layer, as the layer itself returns them: two lists of (N, n, n)."""
    outputs, scores = layer(tokens, tokens, return_attention_scores=True, **masks)
    operator = layer.filter_matrix(scores) if hasattr(layer, "filter_matrix") else scores
    return to_numpy(outputs), to_numpy(scores), to_numpy(operator)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize(
    ("kind", "epochs"), [("graph_filter", 0), ("plain", 0), ("graph_filter", 3)]
)
def test_each_layer_of_a_deep_vision_transformer(kind, epochs):
    model = vision_transformer(kind)
    images = random.normal(size=(3, 9, 8)).astype("float32")
    if epochs:
        model.compile("adam", "mse", jit_compile=False)
        model.fit(images, random.normal(size=(3, 3)), epochs=epochs, verbose=0)
    report = inspect_smoothing(model, images, batch_size=2)
    assert (report.sequences, report.sampled, len(report.layers)) == (3, 3, 12)
    names = [f"norm_{n}" for n in range(12)] + ["last"]
    outputs = keras.Model(model.input, [model.get_layer(name).output for name in names])(images)
    for number, (layer, tokens) in enumerate(zip(report.layers, outputs[:-1], strict=True)):
        assert layer.path.endswith(f"attention_{number}")
        after, matrix, operator = matrices_of(model.get_layer(f"attention_{number}"), tokens)
        assert_tokens(layer.before, to_numpy(tokens))
        assert_tokens(layer.after, after)
        assert_tokens(layer.block, to_numpy(outputs[number + 1]))
        if number % 4 == 0:
            assert_heads(layer.heads, matrix, operator)


BLOCKS = {
    "bert": ("transformer_layer_{}", "_self_attention_layer", None),
    "gpt2": ("transformer_layer_{}", "_self_attention_layer", "_self_attention_layer_norm"),
    "vit": (None, "mha", "layer_norm_1"),
}


@pytest.mark.parametrize("converted", [True, False])
@pytest.mark.parametrize("name", sorted(BLOCKS))
@pytest.mark.slow_on("jax")
def test_kerashub_models_need_no_change(name, converted):
    model = random_backbone(name)
    if converted:
        keras_graphattn.convert(model, "graph_filter")
        randomise(model)
    inputs = as_given(model, random_inputs(model))
    attributes = [set(vars(layer)) for layer in walk(model)]
    expected = [to_numpy(x) for x in keras.tree.flatten(model(inputs))]
    report = inspect_smoothing(model, inputs)
    assert [set(vars(layer)) for layer in walk(model)] == attributes
    for output, value in zip(keras.tree.flatten(model(inputs)), expected, strict=True):
        np.testing.assert_array_equal(to_numpy(output), value)
    assert [layer.reason for layer in report.layers] == [None, None]
    blocks = _blocks(model, name)
    mask = inputs["padding_mask"].astype(bool) if isinstance(inputs, dict) else None
    tokens = _inputs_of_blocks(blocks, model, inputs)
    _, attention_name, norm_name = BLOCKS[name]
    for layer, block, (before, after) in zip(report.layers, blocks, tokens, strict=True):
        valid = np.ones(before.shape[:2], bool) if mask is None else mask
        normed = before if norm_name is None else to_numpy(getattr(block, norm_name)(before))
        assert_tokens(layer.before, [x[v] for x, v in zip(normed, valid, strict=True)])
        assert_tokens(layer.block, [x[v] for x, v in zip(after, valid, strict=True)])
        entries = np.broadcast_to(valid[:, None], (*valid.shape, valid.shape[1]))
        entries = np.tril(entries) if name == "gpt2" else entries
        sublayer = getattr(block, attention_name)
        _, matrix, operator = matrices_of(sublayer, normed, attention_mask=entries)
        cut = [np.ix_([0, 1], np.flatnonzero(v), np.flatnonzero(v)) for v in valid]
        matrix, operator = ([m[c] for m, c in zip(x, cut, strict=True)] for x in (matrix, operator))
        np.testing.assert_allclose(layer.heads.attention_map, matrix[0], atol=1e-5)
        np.testing.assert_allclose(layer.heads.operator_map, operator[0], atol=1e-5)


def _blocks(model, name):
    if name == "vit":
        (encoder,) = (x for x in walk(model) if type(x).__name__ == "ViTEncoder")
        return encoder.encoder_layers
    return [model.get_layer(BLOCKS[name][0].format(number)) for number in range(2)]


def _inputs_of_blocks(blocks, model, inputs):
    """What goes into each block and what comes out, (B, T, d)."""
    pairs = []

    def watched(call, x, *args, **kwargs):
        result = call(x, *args, **kwargs)
        pairs.append((to_numpy(x), to_numpy(result)))
        return result

    hooks = [(block, "call", functools.partial(watched, block.call)) for block in blocks]
    with replaced_attributes(hooks):
        model(inputs)
    return pairs


def test_a_task_of_kerashub_reports_its_backbone():
    backbone = random_backbone("bert")
    task = keras_hub.models.BertTextClassifier(backbone, num_classes=2)
    report = inspect_smoothing(task, random_inputs(backbone))
    assert [layer.reason for layer in report.layers] == [None, None]
    assert report.layers[1].block.cosine == pytest.approx(
        inspect_smoothing(backbone, random_inputs(backbone)).layers[1].block.cosine
    )


@pytest.mark.slow_on("jax")
def test_a_subclassed_model_is_built_and_measured():
    model = Subclassed()
    tokens = random.normal(size=(3, 6, 6)).astype("float32")  # an even number of tokens
    report = inspect_smoothing(model, tokens)
    assert len(report.layers) == 2
    dense = model.first["dense"](tokens)
    after, matrix, operator = matrices_of(model.blocks[0], dense)
    assert_tokens(report.layers[0].before, to_numpy(dense))
    assert_tokens(report.layers[0].after, after)
    assert_heads(report.layers[0].heads, matrix, operator)
    assert_tokens(report.layers[1].block, to_numpy(model(tokens)))


class Residual(keras.Model):
    """Sums that no layer computes."""

    def __init__(self, pools):
        super().__init__()
        self.attention, self.dense = attention("graph_filter"), keras.layers.Dense(6)
        self.pool = keras.layers.GlobalAveragePooling1D() if pools else None

    def tokens(self, x):
        x = x + self.attention(x)
        return x + self.dense(x)

    def call(self, x):
        x = self.tokens(x)
        return x if self.pool is None else self.pool(x)


@pytest.mark.parametrize("pools", [False, True])
def test_the_last_block_ends_after_its_residual_connection(pools):
    model, tokens = Residual(pools), random.normal(size=(3, 6, 6)).astype("float32")
    (layer,) = inspect_smoothing(model, tokens).layers
    assert_tokens(layer.block, to_numpy(model.tokens(ops.convert_to_tensor(tokens))))


def test_a_sum_may_be_the_output_of_a_functional_model():
    inputs = keras.Input((6, 6))
    model = keras.Model(inputs, inputs + attention("graph_filter")(inputs))
    tokens = random.normal(size=(3, 6, 6)).astype("float32")
    (layer,) = inspect_smoothing(model, tokens).layers
    assert_tokens(layer.block, to_numpy(model(tokens)))


def test_a_rematerialised_model_is_measured():
    with keras.RematScope(mode="full"):
        model = stack(attention("graph_filter"), keras.layers.LayerNormalization())
    tokens = random.normal(size=(2, 4, 8)).astype("float32")
    report = inspect_smoothing(model, tokens)
    assert report.layers[0].reason is None
    assert_tokens(report.layers[0].before, tokens)
    assert_tokens(report.layers[0].block, to_numpy(model(tokens)))


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("garbage", [np.nan, 1e4])
def test_padding_changes_nothing(garbage):
    keras.utils.set_random_seed(1)
    tokens = keras.Input((None, 8), name="tokens")
    mask = keras.Input((None,), dtype="bool", name="mask")
    x = tokens
    for number in range(2):
        x = keras.layers.Add()(
            [x, attention("graph_filter", name=f"a{number}")(x, query_mask=mask)]
        )
    model = keras.Model({"tokens": tokens, "mask": mask}, x)
    values = random.normal(size=(3, 5, 8)).astype("float32")
    seen = np.arange(5)[None] < np.array([[5], [3], [2]])
    clean = {"tokens": np.where(seen[..., None], values, 0.0), "mask": seen}
    dirty = {"tokens": np.where(seen[..., None], values, garbage), "mask": seen}
    expected = figures_of(inspect_smoothing(model, clean))
    short = [
        inspect_smoothing(model, {k: x[n : n + 1, :s] for k, x in clean.items()})
        for n, s in enumerate((5, 3, 2))
    ]
    for report in (inspect_smoothing(model, dirty), inspect_smoothing(model, dirty, batch_size=1)):
        for name, value in figures_of(report).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)
    for place in PLACES:  # the mean over sequences that have no padding at all
        alone = [getattr(x.layers[1], place).cosine for x in short]
        assert expected[f"1 {place}_cosine"] == pytest.approx(np.mean(alone), abs=1e-5)


def test_sequences_of_several_lengths_are_interpolated_between_frequencies():
    model = stack(attention("plain"), length=None)
    parts = [random.normal(size=(1, length, 8)).astype("float32") for length in (8, 8, 5)]
    report = inspect_smoothing(model, iter(parts))
    alone = [inspect_smoothing(model, part).layers[0].heads for part in parts]
    heads = report.layers[0].heads
    np.testing.assert_allclose(heads.frequencies, np.arange(5) / 8)
    stretched = [
        np.interp(np.arange(5) / 8, np.arange(3) / 5, x) for x in alone[2].attention_fourier
    ]
    expected = (alone[0].attention_fourier + alone[1].attention_fourier + stretched) / 3
    np.testing.assert_allclose(heads.attention_fourier, expected, atol=1e-6)


def test_operators_of_long_sequences_are_left_out():
    model = stack(attention("plain", name="long"), length=9)
    tokens = random.normal(size=(2, 9, 8)).astype("float32")
    report = inspect_smoothing(model, tokens, max_tokens=8)
    assert_tokens(report.layers[0].before, tokens)
    assert report.layers[0].heads is None
    assert "not measured at 'long': its sequences have 9 tokens, more than 8" in str(report)


def test_only_the_first_sequences_are_decomposed():
    model = stack(attention("plain"), length=4)
    tokens = random.normal(size=(5, 4, 8)).astype("float32")
    report = inspect_smoothing(model, tokens, batch_size=2, max_sequences=3)
    few = inspect_smoothing(model, tokens[:3], batch_size=2)
    every = inspect_smoothing(model, tokens)
    assert (report.sequences, report.sampled) == (5, 3)
    assert report.layers[0].before.cosine == pytest.approx(every.layers[0].before.cosine)
    assert report.layers[0].before.effective_rank == few.layers[0].before.effective_rank
    pair = (x.layers[0].heads.operator_fourier for x in (report, few))
    np.testing.assert_allclose(*pair)


def test_tokens_of_zeros_have_no_share_and_no_rank():
    before = inspect_smoothing(stack(attention("plain")), np.zeros((1, 4, 8))).layers[0].before
    assert np.isnan([before.dc_share, before.effective_rank]).all()


def test_sequences_that_are_not_finite_are_counted_and_left_out():
    model = stack(attention("plain"), keras.layers.LayerNormalization())
    tokens = random.normal(size=(4, 4, 8)).astype("float32")
    not_finite = tokens.copy()
    not_finite[1, 2, 3], not_finite[3] = np.nan, np.inf
    layer = inspect_smoothing(model, not_finite).layers[0]
    assert layer.not_finite == 2
    finite = inspect_smoothing(model, tokens[[0, 2]]).layers[0]
    assert finite.not_finite == 0
    for place in PLACES:
        for name in ("cosine", "dc_share", "effective_rank"):
            value, expected = (getattr(getattr(x, place), name) for x in (layer, finite))
            assert value == pytest.approx(expected, abs=1e-6)
    assert layer.summary()["not_finite"] == 2
    left_out = "tokens not finite, sequences: 2"
    assert left_out in str(inspect_smoothing(model, not_finite))
    assert left_out not in str(inspect_smoothing(model, tokens))
