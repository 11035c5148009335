"""What every backbone does when it is converted and goes back, over one table of families."""

import functools

import keras
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn.hub.families import view
from keras_graphattn.hub.slots import attention_slots
from keras_graphattn.hub.stock import StockAttention
from tests.hub import composed_models, encoders, models, vision_models
from tests.hub.abilities import Case, fit
from tests.hub.containers import moved
from tests.hub.families import FAMILIES, VARIANTS, family
from tests.hub.models import assert_equal_outputs, outputs
from tests.hub.test_refusals import state_of

# What composed backbones are made of is in the table by itself. D-FINE compiles for a minute.
NAMES = [*(name for name in FAMILIES if name not in composed_models.COMPOSED), *VARIANTS]
SLOW_ON_JAX = ("d_fine",)
EACH = [
    pytest.param(name, marks=pytest.mark.slow_on("jax")) if name in SLOW_ON_JAX else name
    for name in NAMES
]
STOCK = (
    *(name for name in models.BACKBONES if not name.startswith("llama")),
    *("metaclip_2", "parseq", "edrec"),
)
IN_PLACE = [name for name in NAMES if name not in STOCK]
START = {"graph_filter": {"order": 4}, "p_laplacian": {"p": 2}}
# What makes A beside a softmax; only the dense path keeps it.
BEYOND = {
    **dict.fromkeys(("gemma2", "t5_gemma", "t5_gemma_2"), "soft cap of the scores"),
    **dict.fromkeys(("bloom", "falcon", "t5", "deberta_v3", "xlnet"), "bias of the scores"),
    **dict.fromkeys(("swin", "swin_padded", "vit_det", "d_fine"), "bias of the scores"),
    **dict.fromkeys(("mit", "mit_square"), "dropout of the attention matrix"),
    "video_prism_with_texts": "soft cap of the scores",
    "gpt_oss": "sink",
}
# An ulp of its weights changes outputs by as much, as its scores are not scaled.
TOLERANCES = {"gemma4_borrowing": 5e-5}
ALL_PATHS = [name for name in IN_PLACE if name not in BEYOND]


def selected(backbone, name):
    """The attention layers that can be converted."""
    layers = [slot.layer for slot in attention_slots(backbone)]
    return [layer for layer in layers if view(layer).refusal_reason() is None]


@pytest.mark.parametrize("attention", START)
@pytest.mark.parametrize("name", EACH)
def test_starts_as_the_original_and_goes_back_to_it(name, attention):
    """The layers stay the same objects with the same weights; coefficients come and go."""
    kind = family(name)
    backbone = kind.make()
    inputs, plain, layers = kind.inputs(backbone), type(backbone), selected(backbone, name)
    before, weights, classes = outputs(backbone, inputs), backbone.weights, list(map(type, layers))
    attributes = [set(vars(layer)) for layer in layers]
    heads = [view(layer).head_sizes().num_heads for layer in layers]

    keras_graphattn.convert(backbone, attention, kind.where, **START[attention])
    tolerance = TOLERANCES.get(name, 1e-5)
    assert_equal_outputs(outputs(backbone, inputs), before, tolerance)
    assert selected(backbone, name) == layers
    assert not set(map(type, layers)) & set(classes)
    if name in IN_PLACE:
        assert all(map(isinstance, layers, classes))
    kept = {id(variable) for variable in weights}
    added = [variable for variable in backbone.weights if id(variable) not in kept]
    assert len(backbone.weights) == len(weights) + len(added)
    assert len(added) == (3 * len(layers) if attention == "graph_filter" else 0)
    assert all(variable.path.endswith("_coefficient") for variable in added)
    assert not any("cross" in variable.path for variable in added)
    rows = [row.parameters_added for row in keras_graphattn.inspect(backbone)]
    assert [count for count in rows if count] == [3 * count for count in heads if added]

    keras_graphattn.revert(backbone)
    assert type(backbone) is plain
    assert list(map(type, layers)) == classes
    assert list(map(id, backbone.weights)) == list(map(id, weights))
    if name in IN_PLACE:
        assert [set(vars(layer)) for layer in layers] == attributes
    assert_equal_outputs(outputs(backbone, inputs), before, tolerance=0)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", NAMES)
def test_a_training_step_moves_every_coefficient(name):
    fit(Case(name, "graph_filter"), None)


@functools.lru_cache(maxsize=1)
def dense(name):
    """The inputs and the outputs of a converted backbone on its own path."""
    return outcome(name)


def outcome(name, **options):
    kind = family(name)  # makes a backbone when it is called first, which draws from the seed
    keras.utils.set_random_seed(0)  # not all families draw their weights from seeds
    backbone = kind.make()
    keras_graphattn.convert(backbone, where=kind.where, order=4, **options)
    return outputs(moved(backbone), kind.inputs(backbone))


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("path", ["blockwise", "fused"])
@pytest.mark.parametrize("name", ALL_PATHS)
def test_a_path_changes_no_number(name, path):
    found = outcome(name, attention_path=path, block_size=3)
    assert_equal_outputs(found, dense(name), TOLERANCES.get(name, 1e-5))


@pytest.mark.parametrize("path", ["blockwise", "fused"])
@pytest.mark.parametrize("name", [name for name in BEYOND if name != "mit"])
def test_a_path_that_does_not_keep_all_of_the_attention_is_refused(name, path):
    backbone, where = family(name).make(), family(name).where
    before = state_of(backbone)
    with pytest.raises(ValueError, match=f"have a {BEYOND[name]}.*which only the dense path keeps"):
        keras_graphattn.convert(backbone, where=where, attention_path=path)
    assert state_of(backbone) == before


@pytest.mark.parametrize("name", IN_PLACE)
def test_refuses_attention_of_another_kind(name):
    backbone, where = family(name).make(), family(name).where
    before, plain = state_of(backbone), type(selected(backbone, name)[0]).__name__
    for attention in ("masked_kernel", "attentive_graph_filter"):
        message = f"'{attention}' cannot take the place of .*{plain}.*no class is registered"
        with pytest.raises(ValueError, match=message):
            keras_graphattn.convert(backbone, attention, where)
    with pytest.raises(ValueError, match=f"{plain} keeps its own settings.*dropout=0.1"):
        keras_graphattn.convert(backbone, where=where, dropout=0.1)
    assert state_of(backbone) == before


def test_the_table_is_whole():
    """Stock attention has all kinds and paths by itself; every other family is above."""
    for name in ("bert", "llama", "video_prism"):
        is_stock = isinstance(view(selected(family(name).make(), name)[0]), StockAttention)
        assert is_stock is (name in STOCK)
    assert set(BEYOND) < set(IN_PLACE)
    assert np.isin(encoders.PLAIN, ALL_PATHS).all()
    assert set(vision_models.VISION) < set(IN_PLACE)
