"""A bias of scores in converted models: its numbers, decoding, files, and the way back."""

import keras
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn import biases
from tests.hub.families import family
from tests.hub.test_conversion import attentions_of, outputs
from tests.numerics import assert_close, randomise

pytest.importorskip("keras_hub")
FAMILIES = ("bert", "llama", "gpt2", "gemma2")
BIASES = {"alibi": "alibi", "relative": biases.RelativePositions(8, 20)}


def converted(name, attention="graph_filter", **options):
    kind = family(name)
    keras.utils.set_random_seed(0)
    backbone = kind.make()
    keras_graphattn.convert(backbone, attention, where=kind.where, **options)
    return kind, backbone


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
def test_each_layer_has_a_bias_that_counts_and_goes_again(name, bias, attention, tmp_path):
    kind = family(name)
    keras.utils.set_random_seed(0)
    backbone = kind.make()
    inputs, paths = kind.inputs(backbone), [w.path for w in backbone.weights]
    before = outputs(backbone, inputs)
    options = {"p": 2.0} if attention == "p_laplacian" else {}
    keras_graphattn.convert(backbone, attention, where=kind.where, bias=BIASES[bias], **options)
    added = [w for w in backbone.weights if w.path not in paths and "log_slopes" in w.path]
    added += [w for w in backbone.weights if "buckets" in w.path]
    assert len(added) == len(attentions_of(backbone))
    for weight in added:
        start = np.random.default_rng(0).normal(size=weight.shape)
        weight.assign(start)
    changed = outputs(backbone, inputs)
    assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(changed, before, strict=True))
    backbone.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for one, other in zip(outputs(again, inputs), changed, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    keras_graphattn.revert(backbone)
    assert [w.path for w in backbone.weights] == paths
    for one, other in zip(outputs(backbone, inputs), before, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("path", ["blockwise", "fused"])
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_paths_are_equal(name, path):
    found = []
    for one in ("dense", path):
        kind, backbone = converted(
            name, bias=biases.RelativePositions(8, 20), attention_path=one, block_size=3
        )
        randomise(backbone)
        found.append(outputs(backbone, kind.inputs(backbone)))
    for one, other in zip(*found, strict=True):
        assert_close(one, other, 1e-5)


def test_a_bias_that_needs_inputs_is_refused():
    with pytest.raises(ValueError, match=r"needs the tensors .*distances"):
        converted("llama", bias="shortest_path")
    with pytest.raises(ValueError, match=r"needs the tensors .*distances"):
        converted("bert", bias="shortest_path")


def test_a_mask_that_reads_tokens_is_refused_where_a_cache_would_lack_it():
    with pytest.raises(ValueError, match="reads the tokens, and KerasHub's cache"):
        converted("gpt2", "masked_kernel", mask="gated_decay")
