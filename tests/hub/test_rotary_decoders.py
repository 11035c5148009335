"""What a converted decoder with rotary embedding does, for each family."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

import keras_graphattn
from keras_graphattn.hub.adapters import adapter_of
from keras_graphattn.hub.sites import attention_sites
from keras_graphattn.hub.surgery import added_variables
from tests.hub.models import (
    LENGTH,
    assert_equal_outputs,
    fit_one_step,
    outputs,
    random_inputs,
)
from tests.hub.rotary_decoders import (
    BACKBONES,
    EACH,
    HEAD_SIZES,
    START,
    attention_of,
    converted,
    tiny,
)
from tests.hub.test_refusals import state_of


def variables(model):
    return {v.path: v for v in model.weights}


def array(x):
    return np.asarray(ops.convert_to_numpy(x), "float64")


@pytest.mark.slow_on("jax", "tensorflow")
def test_sizes_of_every_familys_attention():
    for name in BACKBONES:
        for site in attention_sites(tiny(name)):
            adapter = adapter_of(site.layer)
            sizes, found = adapter.sizes(site.layer), adapter.projections(site.layer)
            assert (sizes.num_heads, sizes.num_key_value_heads, sizes.groups) == (4, 2, 2)
            assert sizes.key_dim == sizes.value_dim == HEAD_SIZES.get(name, 4)
            assert sizes.scale == pytest.approx(sizes.key_dim**-0.5)
            assert {"query", "key", "value", "attention_output"} <= set(found)
            assert adapter.is_causal(site.parent, site.layer)


@pytest.mark.parametrize(("name", "attention"), list(itertools.product(BACKBONES, START)))
def test_starts_as_the_original_and_goes_back_to_it(name, attention):
    backbone = tiny(name)
    plain, layers = type(backbone), [attention_of(backbone, i) for i in (0, 1)]
    kinds = [type(layer) for layer in layers]
    inputs, before = random_inputs(backbone), variables(backbone)
    expected = outputs(backbone, inputs)
    keras_graphattn.convert(backbone, attention, **START[attention])
    assert_equal_outputs(outputs(backbone, inputs), expected, tolerance=1e-5)
    after = variables(backbone)
    assert [attention_of(backbone, i) for i in (0, 1)] == layers
    assert all(after[path] is variable for path, variable in before.items())
    added = sorted(after.keys() - before.keys())
    assert len(added) == (6 if attention == "graph_filter" else 0)
    assert all(path.endswith("_coefficient") for path in added)
    rows = keras_graphattn.inspect(backbone)
    assert [row.parameters_added for row in rows] == [12 if added else 0] * 2
    keras_graphattn.revert(backbone)
    assert type(backbone) is plain
    assert [type(layer) for layer in layers] == kinds
    assert {path: id(v) for path, v in variables(backbone).items()} == {
        path: id(v) for path, v in before.items()
    }
    assert_equal_outputs(outputs(backbone, inputs), expected, tolerance=1e-7)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", BACKBONES)
def test_one_step_of_fit_moves_each_coefficient(name):
    backbone = keras_graphattn.convert(tiny(name), order=4)
    added = [v for site in attention_sites(backbone) for v in added_variables(site.layer)]
    before = [array(v) for v in added]
    fit_one_step(backbone, random_inputs(backbone))
    assert len(added) == 6
    for variable, old in zip(added, before, strict=True):
        assert np.abs(array(variable) - old).max() > 1e-5, variable.path


@pytest.mark.parametrize("name", BACKBONES)
def test_padding_and_other_lengths_change_nothing(name):
    backbone = converted(name)
    short = random_inputs(backbone, LENGTH, real=[LENGTH - 2, LENGTH])
    longer = {key: np.pad(value, [[0, 0], [0, 4]]) for key, value in short.items()}
    (new,), (old,) = outputs(backbone, longer), outputs(backbone, short)
    np.testing.assert_allclose(new[:, :LENGTH], old, rtol=0, atol=1e-5 * np.abs(old).max())


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("path", ["blockwise", "fused"])
@pytest.mark.parametrize("name", EACH)
def test_paths_change_no_number(name, path):
    backbone = converted(name)
    inputs = random_inputs(backbone)
    expected = outputs(backbone, inputs)
    other = converted(name, attention_path=path, block_size=3)
    assert_equal_outputs(outputs(other, inputs), expected, tolerance=1e-5)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", BACKBONES)
def test_a_model_of_its_layers_lasts_in_a_keras_file(name, tmp_path):
    """Such a file holds the configuration of each decoder layer, which some cannot tell."""
    backbone = converted(name)
    cut = keras.Model(backbone.input, backbone.transformer_layers[0].output)
    inputs = random_inputs(backbone)
    cut.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_equal_outputs(outputs(loaded, inputs), outputs(cut, inputs))
    old, new = (model.layers[-1] for model in (cut, loaded))
    assert keras_graphattn.inspect(loaded)[0].parameters_added == 12
    for attribute in ("sliding_window_size", "router_aux_loss_coef", "head_dim", "layer_index"):
        assert getattr(new, attribute, None) == getattr(old, attribute, None)


@pytest.mark.parametrize("attention", ["masked_kernel", "attentive_graph_filter"])
@pytest.mark.parametrize("name", BACKBONES)
def test_refuses_other_attention_and_leaves_the_model_alone(name, attention):
    backbone = tiny(name)
    before, kind = state_of(backbone), type(attention_of(backbone)).__name__
    message = f"'{attention}' cannot take the place of .*{kind}.*: no class is registered"
    with pytest.raises(ValueError, match=message):
        keras_graphattn.convert(backbone, attention)
    assert state_of(backbone) == before


@pytest.mark.parametrize("name", BACKBONES)
def test_refuses_a_cache_without_its_index(name):
    layer, x = attention_of(converted(name)), ops.ones((1, 1, 16))
    argument = "self_attention_cache" if name == "smollm3" else "cache"
    cache = ops.zeros((1, 4, 5, 2, HEAD_SIZES.get(name, 4)))
    with pytest.raises(ValueError, match=f"{argument}_update_index"):
        layer(x, **{argument: cache})


@pytest.mark.slow_on("jax")
def test_decodes_without_a_mask_as_with_the_causal_one():
    layer, x = attention_of(converted("qwen_moe")), ops.ones((1, 2, 16))
    cache = ops.zeros((1, 4, 5, 2, 4))
    causal = np.arange(5)[None] <= np.array([1, 2])[:, None]
    options = {"cache": cache, "cache_update_index": 1}
    found, _ = layer(x, **options)
    expected, _ = layer(x, attention_mask=ops.convert_to_tensor(causal[None]), **options)
    np.testing.assert_allclose(array(found), array(expected), atol=1e-6)
