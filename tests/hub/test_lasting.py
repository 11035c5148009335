"""What becomes of a converted model: files, fresh processes, LoRA, int8, bfloat16, layouts."""

import pickle
import re

import keras
import keras_hub
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn.filters import FirstOrder
from keras_graphattn.layers.quantisation import CALIBRATES
from tests.hub.models import assert_equal_outputs, outputs, random_backbone, random_inputs
from tests.numerics import BACKEND
from tests.recipes.command_line import run_to_its_end

MOVED = FirstOrder(4, initial_coefficients={"power": [0.5, -0.3]})


def converted(name="bert", **options):
    backbone = random_backbone(name)
    options = options or {"filter": MOVED}
    return keras_graphattn.convert(backbone, "graph_filter", **options)


def variables(model):
    return {v.path: v for v in model.weights}


FRESH = """
import torch  # before TensorFlow
import pickle
import sys
import numpy as np
{imports}
folder = sys.argv[1]
data = dict(np.load(folder + "/inputs.npz"))
expected = np.load(folder + "/expected.npz")
backbone = keras_hub.models.Backbone.from_preset(folder + "/task")
task = keras_hub.models.TextClassifier.from_preset(folder + "/task")
whole = keras.saving.load_model(folder + "/task.keras")
composed = keras.saving.load_model(folder + "/composed.keras")
with open(folder + "/backbone.pickle", "rb") as file:
    pickled = pickle.load(file)
found = {{
    "backbone": backbone(data)["pooled_output"],
    "task": task(data),
    "whole": whole(data),
    "composed": composed(data),
    "pickled": pickled(data)["pooled_output"],
}}
for name, tensor in found.items():
    error = np.abs(np.asarray(keras.ops.convert_to_numpy(tensor)) - expected[name]).max()
    assert error < 1e-6, (name, error)
fine = keras_hub.models.TextClassifier.from_preset(folder + "/task", num_classes=5)
assert tuple(fine(data).shape) == (2, 5)
print(type(task).__name__, type(backbone).__name__, type(fine).__name__)
"""


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize(
    "imports",
    [
        "import keras, keras_graphattn, keras_hub",
        pytest.param("import keras_hub, keras, keras_graphattn", marks=pytest.mark.slow),
    ],
)
def test_loads_in_a_fresh_process_whichever_is_imported_first(imports, tmp_path):
    task = keras_hub.models.BertTextClassifier(converted(), num_classes=2)
    keras_graphattn.revert(task)
    keras_graphattn.convert(task, filter=MOVED)
    inputs = random_inputs(task.backbone)
    task.save_to_preset(str(tmp_path / "task"))
    task.save(tmp_path / "task.keras")
    backbone = task.backbone
    keras.Model(backbone.input, backbone.output["pooled_output"]).save(tmp_path / "composed.keras")
    (tmp_path / "backbone.pickle").write_bytes(pickle.dumps(backbone))
    np.savez(tmp_path / "inputs.npz", **inputs)
    pooled = keras.ops.convert_to_numpy(backbone(inputs)["pooled_output"])
    np.savez(
        tmp_path / "expected.npz",
        **dict.fromkeys(("backbone", "composed", "pickled"), pooled),
        task=keras.ops.convert_to_numpy(task(inputs)),
        whole=keras.ops.convert_to_numpy(task(inputs)),
    )
    written = run_to_its_end("-c", FRESH.format(imports=imports), tmp_path)
    names = "BertTextClassifier GraphAttentionBertBackbone GraphAttentionBertTextClassifier"
    assert written.split() == f"GraphAttention{names}".split()


@pytest.mark.slow_on("jax")
def test_this_package_does_not_import_keras_hub():
    run_to_its_end("-c", "import sys, keras_graphattn; assert 'keras_hub' not in sys.modules")


def test_preprocessing_comes_out_of_a_preset_as_it_was(tmp_path):
    models = keras_hub.models
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "fine"]
    preprocessor = models.BertTextClassifierPreprocessor(
        models.BertTokenizer(words), sequence_length=6
    )
    task = models.BertTextClassifier(random_backbone("bert"), 2, preprocessor)
    keras_graphattn.convert(task).save_to_preset(str(tmp_path))
    for kind in (models.TextClassifierPreprocessor, models.BertTextClassifierPreprocessor):
        loaded = kind.from_preset(str(tmp_path))
        assert type(loaded) is models.BertTextClassifierPreprocessor
        assert loaded.get_config() == preprocessor.get_config()
        assert kind.from_preset(str(tmp_path), sequence_length=9).sequence_length == 9
    for kind in (models.Tokenizer, models.BertTokenizer):
        loaded = kind.from_preset(str(tmp_path))
        assert type(loaded) is models.BertTokenizer
        assert loaded.get_vocabulary() == words
    other = models.MaskedLMPreprocessor.from_preset(str(tmp_path))
    assert type(other) is models.BertMaskedLMPreprocessor


@pytest.mark.slow_on("jax", "tensorflow")
def test_a_preset_of_a_task_in_int8(tmp_path):
    """KerasHub 0.32 loses the dtypes of a preset of a backbone alone."""
    task = keras_hub.models.BertMaskedLM(random_backbone("bert"))
    backbone = keras_graphattn.convert(task, filter=MOVED).backbone
    inputs = random_inputs(backbone)
    backbone.quantize("int8")
    task.save_to_preset(str(tmp_path))
    loaded = keras_hub.models.MaskedLM.from_preset(str(tmp_path)).backbone
    attention = loaded.transformer_layers[0]._self_attention_layer
    assert attention.query_dense.quantization_mode == "int8"
    assert_equal_outputs(outputs(loaded, inputs), outputs(backbone, inputs), tolerance=1e-5)


@pytest.mark.skipif(CALIBRATES, reason="this release of Keras calibrates")
@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("kind", ["GPTQ", "AWQ"])
def test_methods_that_keras_does_not_calibrate_are_refused(kind):
    backbone = keras_graphattn.convert(random_backbone("bert"))
    structure = {
        "pre_block_layers": [backbone.token_embedding],
        "sequential_blocks": backbone.transformer_layers,
    }
    data = {"dataset": [np.arange(8)[None]], "num_samples": 1, "sequence_length": 8}
    config = getattr(keras.quantizers, f"{kind}Config")(
        **data, tokenizer=list, group_size=8, quantization_layer_structure=structure
    )
    with pytest.raises(ValueError, match="does not run with GPTQ or AWQ"):
        backbone.quantize(kind.lower(), config=config)


def test_layout_rules_find_the_paths_that_they_are_written_for():
    """Rules are regular expressions on variable paths: KerasHub's own still match, ours too."""
    rules = {
        r"transformer_layer.*/self_attention_layer/(query|key|value)/kernel": 6,
        r"transformer_layer.*/self_attention_layer/attention_output/kernel": 2,
        r"transformer_layer.*/self_attention_layer/\w+_coefficient": 6,
    }
    loaded = converted()
    loaded = type(loaded).from_config(loaded.get_config())
    for backbone in (converted(), loaded):
        for rule, count in rules.items():
            assert sum(bool(re.search(rule, path)) for path in variables(backbone)) == count


@pytest.mark.slow_on("jax")
def test_jit_compiled_training():
    if BACKEND == "torch":
        pytest.skip("torch runs eagerly")
    task = keras_hub.models.BertTextClassifier(converted(), num_classes=2)
    task.compile(
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=True,
    )
    history = task.fit(random_inputs(task.backbone), np.array([0, 1]), epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
