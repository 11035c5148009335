"""What a converted decoder with rotary embedding does, for each family."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_graphattn
from keras_graphattn.hub.families import view
from keras_graphattn.hub.slots import attention_slots
from tests.hub.models import (
    LENGTH,
    assert_equal_outputs,
    outputs,
    random_inputs,
)
from tests.hub.rotary_decoders import (
    BACKBONES,
    HEAD_SIZES,
    converted,
    tiny,
)


def variables(model):
    return {v.path: v for v in model.weights}


def array(x):
    return np.asarray(ops.convert_to_numpy(x), "float64")


@pytest.mark.slow_on("jax", "tensorflow")
def test_sizes_of_every_familys_attention():
    for name in BACKBONES:
        for site in attention_slots(tiny(name)):
            shown = view(site.layer)
            sizes, found = shown.head_sizes(), shown.projection_layers()
            assert (sizes.num_heads, sizes.num_key_value_heads, sizes.groups) == (4, 2, 2)
            assert sizes.key_dim == sizes.value_dim == HEAD_SIZES.get(name, 4)
            assert sizes.scale == pytest.approx(sizes.key_dim**-0.5)
            assert {"query", "key", "value", "attention_output"} <= set(found)
            assert shown.sees_past_only(site.parent)


@pytest.mark.parametrize("name", BACKBONES)
def test_padding_and_other_lengths_change_nothing(name):
    backbone = converted(name)
    short = random_inputs(backbone, LENGTH, real=[LENGTH - 2, LENGTH])
    longer = {key: np.pad(value, [[0, 0], [0, 4]]) for key, value in short.items()}
    (new,), (old,) = outputs(backbone, longer), outputs(backbone, short)
    np.testing.assert_allclose(new[:, :LENGTH], old, rtol=0, atol=1e-5 * np.abs(old).max())


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
