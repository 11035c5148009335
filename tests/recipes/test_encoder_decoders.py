"""CodeT5 and BART in the recipe of source code: the converted checkpoint, and what is classified.

What trains here is slow, and runs on every backend.
"""

import json
import pickle

import keras
import numpy as np
import pytest

pytest.importorskip("keras_hub")

import keras_hub
import torch
from safetensors.numpy import save_file

import keras_graphattn
from recipes.code_classification.__main__ import RECIPE
from recipes.code_classification.data import byte_pairs, load
from recipes.code_classification.encoder_decoders import codet5, preprocessor_of, weights_of
from recipes.code_classification.model import build
from recipes.common.command.parsing import UsageError
from tests.hub.t5_bias import t5_bias
from tests.numerics import to_numpy
from tests.recipes.command_line import run
from tests.recipes.test_code_classification import options, write_clone, write_defect

CONFIG = {
    **{"model_type": "t5", "vocab_size": 290, "num_layers": 2, "num_decoder_layers": 2},
    **{"d_model": 8, "num_heads": 3, "d_kv": 5, "d_ff": 12, "dropout_rate": 0.1},
    **{"layer_norm_epsilon": 1e-6, "feed_forward_proj": "relu"},
    **{"relative_attention_num_buckets": 32},
}
FILES = ("model.safetensors", "pytorch_model.bin")


def shapes():
    """The weights of a checkpoint of T5 by its settings, as its authors' code names them."""
    width, inner = CONFIG["d_model"], CONFIG["num_heads"] * CONFIG["d_kv"]
    found = {"shared.weight": (CONFIG["vocab_size"], width), "lm_head.weight": (290, width)}
    for tower, kinds in (("encoder", ["Self"]), ("decoder", ["Self", "EncDec"])):
        for block in range(CONFIG["num_layers"]):
            for place, kind in enumerate([*kinds, None]):
                start = f"{tower}.block.{block}.layer.{place}"
                found[f"{start}.layer_norm.weight"] = (width,)
                if kind is None:
                    found[f"{start}.DenseReluDense.wi.weight"] = (CONFIG["d_ff"], width)
                    found[f"{start}.DenseReluDense.wo.weight"] = (width, CONFIG["d_ff"])
                    continue
                attention = f"{start}.{kind}Attention"
                found |= {f"{attention}.{part}.weight": (inner, width) for part in "qkv"}
                found[f"{attention}.o.weight"] = (width, inner)
                if block == 0 and kind == "Self":
                    shape = (CONFIG["relative_attention_num_buckets"], CONFIG["num_heads"])
                    found[f"{attention}.relative_attention_bias.weight"] = shape
        found[f"{tower}.final_layer_norm.weight"] = (width,)
    return found


def write_codet5(folder, file=FILES[0], **changed):
    """A made-up checkpoint in a folder; its weights by name."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changed}))
    vocabulary, merges = byte_pairs(["int f(int x) { return x; }"], 270)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    random = np.random.default_rng(0)
    weights = {
        name: random.normal(0.3 * ("norm" in name), 0.7, shape).astype("float32")
        for name, shape in shapes().items()
    }
    if file == FILES[0]:
        save_file(weights, folder / file)
    else:
        torch.save({name: torch.tensor(value) for name, value in weights.items()}, folder / file)
    return weights


def t5(weights, source, target):
    """The states of both towers of T5 for one row of tokens each, (T, d), in float64."""
    weights = {name: torch.tensor(value).double() for name, value in weights.items()}

    def norm(name, x):
        return weights[f"{name}.weight"] * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    def attend(name, x, y, bias):
        def heads(part, tokens):
            found = tokens @ weights[f"{name}.{part}.weight"].T
            return found.reshape(len(tokens), CONFIG["num_heads"], -1)

        scores = torch.einsum("qnd,knd->nqk", heads("q", x), heads("k", y)) + bias
        out = torch.einsum("nqk,knd->qnd", scores.softmax(-1), heads("v", y))
        return out.reshape(len(x), -1) @ weights[f"{name}.o.weight"].T

    def tower(name, tokens, encoded=None):
        first = f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        bias = t5_bias(weights[first], len(tokens), encoded is not None)
        if encoded is not None:  # no later token is seen
            bias = bias.masked_fill(torch.ones(bias.shape[1:]).triu(1).bool(), -torch.inf)
        x = weights["shared.weight"][torch.tensor(tokens)]
        for block in range(CONFIG["num_layers"]):
            layer = f"{name}.block.{block}.layer"
            normed = norm(f"{layer}.0.layer_norm", x)
            x = x + attend(f"{layer}.0.SelfAttention", normed, normed, bias)
            place = 1
            if encoded is not None:
                normed = norm(f"{layer}.1.layer_norm", x)
                x = x + attend(f"{layer}.1.EncDecAttention", normed, encoded, 0.0)
                place = 2
            normed = norm(f"{layer}.{place}.layer_norm", x)
            hidden = normed @ weights[f"{layer}.{place}.DenseReluDense.wi.weight"].T
            x = x + hidden.relu() @ weights[f"{layer}.{place}.DenseReluDense.wo.weight"].T
        return norm(f"{name}.final_layer_norm", x)

    encoded = tower("encoder", source)
    return encoded, tower("decoder", target, encoded)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("file", FILES)
def test_the_converted_checkpoint_is_its_t5(file, tmp_path):
    """In both towers, with a source and a target of their own lengths, and padding behind."""
    weights = write_codet5(tmp_path, file)
    backbone = codet5(tmp_path, "encoder")
    assert len(list(weights_of(backbone))) == len(backbone.weights) == len(weights) - 1
    random = np.random.default_rng(1)
    sizes = {"encoder": (9, 30), "decoder": (7, 6)}
    inputs = {}
    for tower, lengths in sizes.items():
        tokens = random.integers(1, CONFIG["vocab_size"], (2, max(lengths)))
        mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
        inputs[f"{tower}_token_ids"] = tokens.astype("int32")
        inputs[f"{tower}_padding_mask"] = mask.astype("int32")
    outputs = {name: to_numpy(value) for name, value in backbone(inputs).items()}
    for row in range(2):
        rows = [inputs[f"{name}_token_ids"][row, : sizes[name][row]].tolist() for name in sizes]
        for tower, expected in zip(sizes, t5(weights, *rows), strict=True):
            found = outputs[f"{tower}_sequence_output"][row, : len(expected)]
            np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow_on("jax", "tensorflow")
def test_the_decoders_vector_at_the_last_token_is_classified(tmp_path):
    """The head by hand, from the naive T5; also with attention that has just been converted."""
    folder = tmp_path / "codet5"
    weights = write_codet5(folder)
    write_defect(tmp_path)
    asked = options("defect", tmp_path, "--preset", folder, "--max-length", 24)
    problem = load(asked)
    rows = problem.test.functions
    model = build(RECIPE.trial(problem, "gfsa", asked))
    kinds = [row.class_name for row in keras_graphattn.inspect(model)]
    assert kinds == ["T5MultiHeadGraphFilterAttention"] * 4
    kernel, bias = map(to_numpy, model.get_layer("probabilities").weights)
    found = to_numpy(model(problem.test.inputs(np.arange(4), problem.length)))
    for number, place in enumerate(problem.test.places[:4, 0]):
        tokens = rows.values[slice(*rows.offsets[place : place + 2])].tolist()
        assert tokens[0] == problem.preprocessor.tokenizer.start_token_id
        assert tokens[-1] == problem.preprocessor.tokenizer.end_token_id
        states = t5(weights, tokens, [0, *tokens[:-1]])[1].numpy()
        scores = np.exp(states[-1] @ kernel + bias)
        np.testing.assert_allclose(found[number], scores / scores.sum(), atol=1e-5)


def test_the_tokenizer_is_that_of_the_checkpoint(tmp_path):
    write_codet5(tmp_path)
    preprocessor = preprocessor_of(str(tmp_path), 16)
    vocabulary, merges = byte_pairs(["int f(int x) { return x; }"], 270)
    tokenizer = keras_hub.models.RobertaTokenizer(vocabulary=vocabulary, merges=merges)
    packed = to_numpy(preprocessor("int f(int x)")["token_ids"])
    expected = [1, *tokenizer("int f(int x)"), 2]
    assert packed.tolist() == expected + [0] * (16 - len(expected))


class Code:
    """An object whose pickle writes a file where it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize(
    ("changed", "removed", "words"),
    [
        ({"feed_forward_proj": "gated-gelu"}, None, ["feed_forward_proj 'relu'", "'gated-gelu'"]),
        ({"num_decoder_layers": 1}, None, ["num_decoder_layers 2", "received 1"]),
        ({"relative_attention_max_distance": 64}, None, ["distance 128", "received 64"]),
        ({"d_kv": 4}, None, ["SelfAttention.q.weight", "(12, 8)", "(15, 8)"]),
        ({"num_layers": 3, "num_decoder_layers": 3}, None, ["block.2.layer", "no such weight"]),
        ({}, "vocab.json", ["vocab.json"]),
        ({}, "model.safetensors", ["model.safetensors or pytorch_model.bin"]),
        ({"model_type": "plbart"}, None, ["PLBART", "CodeT5"]),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_one_line(changed, removed, words, tmp_path):
    folder = tmp_path / "codet5"
    write_codet5(folder, **changed)
    write_defect(tmp_path)
    if removed:
        (folder / removed).unlink()
    asked = options("defect", tmp_path, "--preset", folder)
    with pytest.raises(UsageError) as raised:
        build(RECIPE.trial(load(asked), "softmax", asked))
    assert [word for word in [str(folder), *words] if word not in str(raised.value)] == []
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_is_one_line_and_runs_no_code(file, tmp_path):
    write_codet5(tmp_path)
    (tmp_path / FILES[0]).unlink()
    written = tmp_path / "written"
    (tmp_path / file).write_bytes(pickle.dumps({"shared.weight": Code(written)}))
    with pytest.raises(UsageError, match=f"{file} cannot be read"):
        codet5(tmp_path, "encoder")
    assert not written.exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["codet5", "bart"])
def test_a_run_with_an_encoder_decoder_ends(kind, tmp_path):
    """Its files can be read again: the model, the encoder-decoder and its tokenizer."""
    files, preset, output = (tmp_path / name for name in ("files", "preset", "output"))
    files.mkdir()
    if kind == "codet5":
        write_codet5(preset)
        write_clone(files)
    else:
        write_defect(files)
        vocabulary, merges = byte_pairs(["int f(int x) { return x; }"], 270)
        tokenizer = keras_hub.models.BartTokenizer(vocabulary=vocabulary, merges=merges)
        sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8}
        keras_hub.models.BartBackbone(270, **sizes).save_to_preset(str(preset))
        tokenizer.save_to_preset(str(preset))
    task = "clone" if kind == "codet5" else "defect"
    arguments = f"--task {task} --data-dir {files} --preset {preset} --max-length 24"
    arguments += " --attention softmax,gfsa --epochs 1 --batch-size 8 --verbose 0 --warm-up 2"
    results = run(RECIPE, output, arguments)
    assert [one["attention"] for one in results["runs"]] == ["softmax", "gfsa"]
    for one in results["runs"]:
        assert len(one["token_similarity"]) == 1 + 2 + 4
    assert (output / "case_study" / "index.html").is_file()
    asked = RECIPE.parse(arguments.split())
    problem = load(asked)
    model = keras.saving.load_model(output / "model.keras")
    inputs = problem.test.inputs(np.arange(3), problem.length)
    assert to_numpy(model(inputs)).shape == (3, 2)
    folder, text = str(output / "preset"), ["int f(int x)"]
    loaded = keras_hub.models.TextClassifierPreprocessor.from_preset(folder)
    np.testing.assert_array_equal(
        to_numpy(loaded(text)["token_ids"]), to_numpy(problem.preprocessor(text)["token_ids"])
    )
    encoder = keras_hub.models.Backbone.from_preset(folder)
    for mine, theirs in zip(encoder.weights, model.get_layer("encoder").weights, strict=True):
        np.testing.assert_array_equal(to_numpy(mine), to_numpy(theirs))
    assert (output / "saved_model" / "1" / "saved_model.pb").is_file()
