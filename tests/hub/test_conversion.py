"""What every backbone does when it is converted and goes back, over one table of families."""

import dataclasses
import functools

import keras
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn.hub.families import parent_config, view
from keras_graphattn.hub.slots import attention_slots
from keras_graphattn.hub.stock import StockAttention
from tests.hub import (
    biased_decoders,
    composed_models,
    encoders,
    image_towers,
    models,
    rotary_decoders,
    sequence_to_sequence,
    vision_models,
)
from tests.hub.abilities import Case, fit, keras_file
from tests.hub.families import FAMILIES, VARIANTS, converted, family, fast_for
from tests.hub.models import assert_equal_outputs, attentions_of, moved, outputs
from tests.hub.test_refusals import state_of

# What tasks hold is in the table by itself. D-FINE compiles for a minute.
NAMES = [*(name for name in FAMILIES if name not in composed_models.TASKS), *VARIANTS]
SLOW_ON_JAX = ("d_fine", *image_towers.TOWERS, *composed_models.VARIANTS)
EACH = [
    pytest.param(name, marks=pytest.mark.slow_on("jax")) if name in SLOW_ON_JAX else name
    for name in NAMES
]
STOCK = (
    *(name for name in models.BACKBONES if not name.startswith("llama")),
    *("metaclip_2", "parseq", "edrec", "blip2"),
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
    "blip2_t5": "bias of the scores",
    "pali_gemma2": "soft cap of the scores",
}
TOLERANCES = {
    **dict.fromkeys(models.BACKBONES, 1e-6),
    "gemma4_borrowing": 5e-5,  # as does an ulp of its weights, since its scores are not scaled
}
ALL_PATHS = [name for name in IN_PLACE if name not in BEYOND]


@pytest.mark.parametrize("attention", START)
@pytest.mark.parametrize("name", EACH)
def test_starts_as_the_original_and_goes_back_to_it(name, attention):
    """The layers stay the same objects with the same weights; coefficients come and go."""
    kind = family(name)
    backbone = kind.make()
    inputs, plain, layers = kind.inputs(backbone), type(backbone), attentions_of(backbone)
    before, weights, classes = outputs(backbone, inputs), backbone.weights, list(map(type, layers))
    attributes = [set(vars(layer)) for layer in layers]
    heads = [view(layer).head_sizes().num_heads for layer in layers]

    keras_graphattn.convert(backbone, attention, kind.where, **START[attention])
    tolerance = TOLERANCES.get(name, 1e-5)
    assert_equal_outputs(outputs(backbone, inputs), before, tolerance)
    assert attentions_of(backbone) == layers
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
@pytest.mark.parametrize("name", [name for name in NAMES if name != "qwen3_5_tower"])
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
    before, plain = state_of(backbone), type(attentions_of(backbone)[0]).__name__
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
        is_stock = isinstance(view(attentions_of(family(name).make())[0]), StockAttention)
        assert is_stock is (name in STOCK)
    assert set(BEYOND) < set(IN_PLACE)
    assert np.isin(encoders.PLAIN, ALL_PATHS).all()
    assert set(vision_models.VISION) < set(IN_PLACE)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", [*VARIANTS, "pali_gemma", "blip2"])
def test_lasts_in_a_keras_file(name, tmp_path):
    """The other families have this in the table of reach."""
    keras_file(Case(name, "graph_filter"), tmp_path)


def rows_of(model):
    """What `inspect` shows but for paths: Keras numbers the layers that Moonshine does not name."""
    return [dataclasses.replace(row, path="") for row in keras_graphattn.inspect(model)]


# Layers between the backbone and its blocks do not tell their configuration in KerasHub 0.32.
UNREADABLE = ("gemma3n", "metaclip_2", "parseq", "whisper")
LAYERED = [
    *(*rotary_decoders.BACKBONES, *biased_decoders.DECODERS),
    *(*encoders.ENCODERS, *sequence_to_sequence.MODELS),
]
REPRESENTATIVE = (*rotary_decoders.BACKBONES, "gemma2", "deberta_v3", "t5")


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize(
    "name", fast_for([name for name in LAYERED if name not in UNREADABLE], REPRESENTATIVE)
)
def test_a_model_of_its_layers_lasts_in_a_keras_file(name, tmp_path):
    """Such a file holds the configuration of each layer, which some cannot tell."""
    backbone = converted(name)
    inputs = family(name).inputs(backbone)
    if name == "deberta_v3":  # KerasHub's embedding of distances cannot be loaded outside of it
        shapes = {"tokens": (7, 8), "distances": (2 * encoders.SPAN, 8)}
        given = {key: keras.Input(shape) for key, shape in shapes.items()}
        layer = backbone.transformer_layers[1]
        model = keras.Model(given, layer(given["tokens"], rel_embeddings=given["distances"]))
        generator = np.random.default_rng(1)
        inputs = {
            key: generator.standard_normal((2, *shape)).astype("float32")
            for key, shape in shapes.items()
        }
    elif name == "video_prism_with_texts":
        model = keras.Model(backbone.input["pixel_values"], backbone.output["vision_embeddings"])
        inputs = {"images": inputs["pixel_values"]}
    elif name == "video_prism" or name in sequence_to_sequence.MODELS:
        model = keras.Model(backbone.input, backbone.output)
    else:
        found = keras.tree.flatten(backbone.transformer_layers[1].output)
        model = keras.Model(backbone.input, found[0])  # XLNet's second one is `None`
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert rows_of(loaded) == rows_of(model)
    assert_equal_outputs(outputs(loaded, inputs), outputs(model, inputs))
    old, new = (each.layers[-1] for each in (model, loaded))
    for attribute in ("sliding_window_size", "router_aux_loss_coef", "head_dim", "layer_index"):
        assert getattr(new, attribute, None) == getattr(old, attribute, None)


BUILT_LATER = ("swin", "swin_padded", "mit", "mit_square", "t5")  # when they are called


@pytest.mark.parametrize("name", [name for name in IN_PLACE if name != "blip2_t5"])
def test_a_block_is_made_again_from_its_configuration(name):
    for slot in attention_slots(family(name).make())[::2]:
        block = slot.parent
        config = parent_config(type(block), block)
        again = type(block).from_config(config)
        assert parent_config(type(again), again) == config
        if name.startswith("mit"):
            again(np.zeros((1, 36, view(slot.layer).projection_layers()["query"].units)))
        elif name in BUILT_LATER:
            continue
        else:
            again.build_from_config(block.get_build_config())
        shapes = [tuple(v.shape) for v in again.weights]
        assert shapes == [tuple(v.shape) for v in block.weights]


# How many heads there are, how many of keys and values, and how large; and the scale if it is not
# 1 / sqrt(size). (2, 2, 4) for the others.
GROUPED, SMALL = (4, 2, 4), (2, 2, 4)
SIZES = {
    **dict.fromkeys(("llama", "llama3", *rotary_decoders.BACKBONES), (GROUPED,)),
    **dict.fromkeys(biased_decoders.DECODERS, (GROUPED,)),
    **dict.fromkeys(("mistral", "qwen3", "qwen3_moe"), ((4, 2, 6),)),
    **dict.fromkeys(("gpt_neo_x", "bloom", "falcon", "bart"), ((4, 4, 4),)),
    **dict.fromkeys(("gemma3n", "gemma3n_borrowing", "gemma4", "gemma4_tower"), ((*GROUPED, 1.0),)),
    **dict.fromkeys(("t5_gemma", "t5_gemma_2"), ((*GROUPED, 1 / 3),)),
    **dict.fromkeys(("mit", "mit_square"), (SMALL, (2, 2, 6))),
    **dict.fromkeys(("pali_gemma", "pali_gemma2"), (SMALL, GROUPED)),
    "qwen3_5_mixed": (GROUPED,),
    # Heads of the layers that see all tokens are fewer and larger.
    "gemma4_borrowing": ((*GROUPED, 1.0), (4, 1, 8, 1.0)),
    "t5": ((4, 4, 6, 1.0),),
    "moonshine": ((4, 4, 8),),
    "deberta_v3": ((*SMALL, 12**-0.5),),
    "swin": (SMALL, (2, 2, 8)),
    "dinov3": ((2, 2, 8),),
    "blip2_t5": (SMALL, (*SMALL, 1.0)),
}
LAYERS = {  # how many of them attend; two for most
    **dict.fromkeys(("swin", "mit", "mit_square", "d_fine", "pali_gemma"), 3),
    **dict.fromkeys(("bart", "clip", "siglip", "whisper", "metaclip_2", "edrec"), 4),
    **dict.fromkeys(("t5", "t5_gemma", "t5_gemma_2", "moonshine", "pali_gemma2"), 4),
    **dict.fromkeys(("video_prism_with_texts", "gemma3n_borrowing", "gemma4_borrowing"), 4),
    **{"blip2": 6, "blip2_t5": 8},
}
CAUSAL = {
    *("gpt2", "opt", "llama", "llama3", "gemma3n", "gemma3n_borrowing", "qwen3_5_mixed"),
    *(*rotary_decoders.BACKBONES, *biased_decoders.GENERATING),
}
# Of queries, keys and values; borrowed keys have none.
ONE_PROJECTION = ("swin", "swin_padded", "vit_det", "qwen3_5_tower", "gemma4_borrowing")
CAUSAL_TEXTS = ("clip", "metaclip_2", "video_prism_with_texts")
NOT_CAUSAL = ("gemma3_embedding", "d_fine")  # though they have decoders


def is_causal(name, path):
    if name in CAUSAL_TEXTS:
        return "text" in path
    return name in CAUSAL or ("decoder" in path and name not in NOT_CAUSAL)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", NAMES)
def test_sizes(name):
    slots, rows = attention_slots(family(name).make()), SIZES.get(name, [SMALL])
    assert len(slots) == LAYERS.get(name, 2)
    found = set()
    for slot in slots:
        shown = view(slot.layer)
        sizes, projections = shown.head_sizes(), set(shown.projection_layers())
        assert {"query", "attention_output"} <= projections
        if name not in ONE_PROJECTION:
            assert {"key", "value"} <= projections
        assert sizes.value_dim == sizes.key_dim
        assert sizes.groups == sizes.num_heads // sizes.num_key_value_heads
        found.add((*sizes[:3], round(sizes.scale, 5)))
        # the layers of BLIP-2 do not say in their names what they are
        if hasattr(shown, "sees_past_only") and not name.startswith("blip2"):
            assert shown.sees_past_only(slot.parent) is is_causal(name, slot.path), slot.path
        if name not in ("blip2_t5", "pali_gemma2"):  # some of their layers only
            assert shown.beyond_softmax() == ((BEYOND[name],) if name in BEYOND else ())
    expected = {(*row[:3], round(row[3] if row[3:] else row[2] ** -0.5, 5)) for row in rows}
    assert found == expected
