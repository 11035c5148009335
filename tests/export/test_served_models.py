"""Each recipe's model and converted KerasHub models, served: equal to Keras at 1e-5."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn.export import PredictRequests, export_saved_model
from keras_graphattn.export.signature import model_signature
from recipes.causal_lm import arguments as causal_arguments
from recipes.common.filters import ATTENTIONS
from recipes.common.ragged import Problem, Ragged, Split
from recipes.long_range_arena import arguments as arena_arguments
from recipes.long_range_arena import model as arena
from recipes.text_classification import arguments as text_arguments
from recipes.text_classification.tasks import TASKS
from recipes.time_series import arguments as series_arguments
from recipes.time_series import model as time_series
from recipes.time_series.data import Problem as SeriesProblem
from recipes.time_series.data import Split as SeriesSplit
from tests.export.c_api import assert_served
from tests.numerics import BACKEND, randomise

BATCHES = (1, 3, 8)
LENGTHS = (1, 9, 20)
LONGEST, CHANNELS, VOCABULARY = 20, 3, 30
WIDTHS = ["--d-model", "8", "--heads", "2", "--key-dim", "4", "--feed-forward", "8"]
WIDTHS += ["--layers", "2"]


def series_model(attention):
    generator = np.random.default_rng(0)
    series = generator.standard_normal((6, LONGEST, CHANNELS)).astype("float32")
    mask = np.arange(LONGEST) < generator.integers(1, LONGEST + 1, (6, 1))
    split = SeriesSplit(series, mask, np.arange(6, dtype="int32") % 2)
    problem = SeriesProblem("made", ["low", "high"], split, split)
    options = series_arguments.parse(["--dataset", "made", *WIDTHS])
    return time_series.build(problem, problem.train, attention, options)


def arena_model(attention, inputs=("tokens",)):
    tokens = Ragged.of([np.arange(1, n + 1, dtype="uint8") for n in (3, LONGEST)])
    split = Split(dict.fromkeys(inputs, tokens), np.arange(2, dtype="int32"))
    problem = Problem("listops", ["no", "yes"], VOCABULARY, split, split, split)
    options = arena_arguments.parse(["--task", "listops", *WIDTHS])
    return arena.build(problem, attention, options)


def text_model(attention, task="cola"):
    pytest.importorskip("keras_hub")
    from recipes.text_classification import model as text

    widths = ["--d-model", "8", "--heads", "2", "--feed-forward", "16", "--layers", "2"]
    options = text_arguments.parse(["--task", task, *widths, "--max-length", str(LONGEST)])
    tokenizer = SimpleNamespace(vocabulary_size=lambda: VOCABULARY)
    problem = SimpleNamespace(
        task=TASKS[task], preprocessor=SimpleNamespace(tokenizer=tokenizer), train=None
    )
    return text.served(text.build(problem, attention, options), options)


def causal_model(attention):
    pytest.importorskip("keras_hub")
    from recipes.causal_lm import model as causal_lm

    widths = ["--d-model", "8", "--heads", "2", "--feed-forward", "16", "--layers", "2"]
    options = causal_arguments.parse([*widths, "--context", str(LONGEST)])
    return causal_lm.served(causal_lm.build(attention, VOCABULARY, options), options)


def bert_classifier():
    models = pytest.importorskip("keras_hub").models
    backbone = models.BertBackbone(VOCABULARY, 2, 2, 8, 16, max_sequence_length=LONGEST)
    model = models.BertTextClassifier(backbone, num_classes=3)
    return keras_graphattn.convert(model, "graph_filter")


def gpt2_backbone():
    models = pytest.importorskip("keras_hub").models
    backbone = models.GPT2Backbone(VOCABULARY, 2, 2, 8, 16, max_sequence_length=LONGEST)
    return keras_graphattn.convert(backbone, "graph_filter")


MODELS = {
    **{f"time_series_{one}": (series_model, one) for one in ATTENTIONS},
    **{f"arena_{one}": (arena_model, one) for one in ATTENTIONS},
    "arena_pairs": (arena_model, "agf", ("tokens_1", "tokens_2")),
    **{f"text_{one}": (text_model, one) for one in text_arguments.ATTENTIONS},
    "text_regression": (text_model, "gfsa", "stsb"),
    **{f"causal_lm_{one}": (causal_model, one) for one in causal_arguments.ATTENTIONS},
    "bert": (bert_classifier,),
    "gpt2": (gpt2_backbone,),
}


def batch_for(model, batch, length):
    """Random inputs: padding at the end, and missing values in the series."""
    generator = np.random.default_rng(100 * batch + length)
    mask = np.arange(length) < generator.integers(1, length + 1, (batch, 1))
    tokens = np.where(mask, generator.integers(2, VOCABULARY, (batch, length)), 0)
    series = generator.standard_normal((batch, length, CHANNELS))
    series[generator.random(series.shape) < 0.1] = np.nan
    kinds = {"series": series, "mask": mask, "segment": np.zeros_like(tokens), "token": tokens}
    arrays = {}
    for name, tensor in model.input.items():
        kind = next(kind for kind in kinds if kind in name)
        arrays[name] = kinds[kind].astype(keras.backend.standardize_dtype(tensor.dtype))
    return arrays


def check(name, folder):
    make, *arguments = MODELS[name]
    model = make(*arguments)
    randomise(model)
    open_length = all(None in tensor.shape[1:] for tensor in model.input.values())
    fixed = ("time_series", "causal_lm", *(["text"] if BACKEND == "jax" else []))
    assert open_length != name.startswith(fixed)
    batches = [
        batch_for(model, batch, length)
        for batch in BATCHES
        for length in (LENGTHS if open_length else [LONGEST])
    ]
    path = export_saved_model(model, folder / "served")
    (output,) = model_signature(model).outputs
    expected = [{output: model.predict(batch, verbose=0)} for batch in batches]
    assert_served(path, batches, expected, folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models(name, tmp_path):
    check(name, tmp_path)


@pytest.mark.slow
def test_a_preprocessor_that_the_client_keeps(tmp_path):
    models = pytest.importorskip("keras_hub").models
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fine", "film"]
    classifier = bert_classifier()
    classifier.preprocessor = models.BertTextClassifierPreprocessor(
        models.BertTokenizer(words), sequence_length=6
    )
    classifier.save_to_preset(tmp_path / "preprocessor")
    for weights in (tmp_path / "preprocessor").glob("*.h5"):
        weights.unlink()
    kept = models.TextClassifierPreprocessor.from_preset(str(tmp_path / "preprocessor"))
    requests = PredictRequests(model_signature(classifier).inputs, "reviews")
    arrays = requests.arrays(kept(["a fine film", "film"]))
    assert arrays["token_ids"].tolist() == [[2, 5, 6, 7, 3, 0], [2, 7, 3, 0, 0, 0]]
    assert arrays["padding_mask"].tolist() == [[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]]
    assert {array.dtype.name for array in arrays.values()} == {"int32"}
