"""Served models of each recipe, and served converted KerasHub models, equal Keras to 1e-5."""

import keras
import pytest

import keras_graphattn
from keras_graphattn.export import export_saved_model
from keras_graphattn.export.signature import model_signature
from recipes.common.training.layers import served_inputs
from tests.export.served import assert_served
from tests.numerics import BACKEND, randomise, to_numpy
from tests.recipes import models as recipes
from tests.recipes.models import LONGEST, VOCABULARY, batch_for

BATCHES = (1, 3, 8)
LENGTHS = (1, 9, 20)


def bert_classifier():
    models = pytest.importorskip("keras_hub").models
    backbone = models.BertBackbone(VOCABULARY, 2, 2, 8, 16, max_sequence_length=LONGEST)
    model = models.BertTextClassifier(backbone, num_classes=3)
    return keras_graphattn.convert(model, "graph_filter")


def gpt2(attention):
    models = pytest.importorskip("keras_hub").models
    backbone = models.GPT2Backbone(VOCABULARY, 2, 2, 8, 16, max_sequence_length=LONGEST)
    model = keras_graphattn.convert(backbone, attention)
    inputs = served_inputs(model, LONGEST)
    return keras.Model(inputs, keras.layers.Identity(name="states")(model(inputs)))


MODELS = {
    **recipes.MODELS,
    "gpt2_gfsa": (gpt2, "graph_filter"),
    "gpt2_agf": (gpt2, "attentive_graph_filter"),
}


PAIRS = ("regression_softmax", "regression_gfsa")  # JAX cannot derive that their arrays are square


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models(name, tmp_path):
    make, *arguments = MODELS[name]
    model = make(*arguments)
    randomise(model)
    open_length = all(None in tensor.shape[1:] for tensor in model.input.values())
    fixed = (
        "time_series",
        "images",
        *(["text", "causal_lm", "gpt2", *PAIRS] if BACKEND == "jax" else []),
    )
    assert open_length != name.startswith(tuple(fixed))
    batches = [
        batch_for(model, batch, length)
        for batch in BATCHES
        for length in (LENGTHS if open_length else [LONGEST])
    ]
    path = export_saved_model(model, tmp_path / "served")
    (output,) = model_signature(model).outputs
    expected = [{output: model.predict(batch, verbose=0)} for batch in batches]
    assert_served(path, batches, expected, tmp_path)


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
    arrays = {name: to_numpy(array) for name, array in kept(["a fine film", "film"]).items()}
    assert arrays["token_ids"].tolist() == [[2, 5, 6, 7, 3, 0], [2, 7, 3, 0, 0, 0]]
    assert arrays["padding_mask"].tolist() == [[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]]
    inputs = model_signature(classifier).inputs
    assert {name: dtype for name, (_, dtype) in inputs.items()} == dict.fromkeys(arrays, "int32")
