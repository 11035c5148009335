"""Models of two towers, such as T5, Moonshine and MetaCLIP 2: what a converted layer keeps."""

import numpy as np
import pytest
import torch
from keras import ops

import keras_graphattn
from tests.hub.decoder_twins import PLACES, TWINS, call_of, visible, width_of
from tests.hub.families import converted, family, fast_for
from tests.hub.models import assert_equal_outputs, attentions_of, outputs
from tests.hub.sequence_to_sequence import MODELS, REPRESENTATIVE
from tests.hub.t5_bias import bucket
from tests.hub.test_conversion import START
from tests.numerics import to_numpy

PARTS = [name for name in TWINS if name.partition(" ")[0] in MODELS]


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", fast_for(MODELS, REPRESENTATIVE))
def test_where_selects_layers_of_either_tower(name):
    backbone = family(name).make()
    inputs = family(name).inputs(backbone)
    before = outputs(backbone, inputs)
    chosen = attentions_of(backbone)[-1].path
    keras_graphattn.convert(backbone, where=f"^{chosen}$", order=4)
    added = [row.path for row in keras_graphattn.inspect(backbone) if row.parameters_added]
    assert added == [chosen]
    assert_equal_outputs(outputs(backbone, inputs), before, tolerance=1e-5)


@pytest.mark.slow_on("tensorflow")
def test_buckets_of_t5_cover_all_distances():
    for name, place in (("encoder", 0), ("decoder", 2)):
        layer = attentions_of(MODELS["t5"]())[place]
        ahead = ops.arange(-200, 201)
        found = layer._relative_position_bucket(ahead, bidirectional=name == "encoder")
        expected = [bucket(int(i), name == "decoder") for i in range(-200, 201)]
        np.testing.assert_array_equal(ops.convert_to_numpy(found), expected)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("attention", START)
@pytest.mark.parametrize("name", fast_for(PARTS, ("t5", "t5 decoder", "moonshine decoder")))
def test_what_is_hidden_changes_nothing(name, attention):
    """Not even large values, nor a longer input."""
    family, _, place = name.partition(" ")
    layer = attentions_of(converted(family, attention))[PLACES.get(name, 0)]
    x = (
        np.random.default_rng(5)
        .standard_normal((2, 9, width_of(layer, TWINS[name])))
        .astype("float32")
    )
    real = np.arange(9)[None] < np.array([[5], [7]])
    mask = visible(TWINS[name], torch.tensor(real)).numpy()
    bias = np.where(mask, 0, -1e9).astype("float32")[:, None].repeat(4, 1)
    given = [bias, bias[:, :, :7, :7]] if place == "later" else [None, None]
    x[~real] = 1e4
    found = to_numpy(call_of(layer, name, x, mask, given[0]))
    x[~real] = 0.0
    short = to_numpy(call_of(layer, name, x[:, :7], mask[:, :7, :7], given[1]))
    for row, count in enumerate(real.sum(axis=1)):
        np.testing.assert_allclose(
            found[row, :count], short[row, :count], atol=1e-5 * np.abs(short).max()
        )
