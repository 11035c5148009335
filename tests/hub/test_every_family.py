"""What each family keeps when it is converted: LoRA, int8 and its file, mixed precision."""

import re

import keras
import pytest

import keras_graphattn
from keras_graphattn.hub.slots import added_variables, attention_slots
from tests.hub.abilities import Case, distance, lacks, lora, lora_targets, loss_in_int8, loss_of
from tests.hub.families import FAMILIES, fast_for
from tests.hub.models import assert_equal_outputs, fit_one_step, outputs
from tests.numerics import dtype_policy, to_numpy

pytestmark = pytest.mark.slow_on("jax")


def convert(backbone, kind):
    return keras_graphattn.convert(backbone, "graph_filter", kind.where, order=4)


def converted_layers(backbone):
    return [site.layer for site in attention_slots(backbone) if site.is_converted]


@pytest.mark.parametrize("name", fast_for(FAMILIES))
def test_a_model_with_lora_is_converted(name):
    """The table of reach has LoRA of a converted model."""
    lora(Case(name, "graph_filter"), None, converted_first=False)


@pytest.mark.parametrize("name", fast_for(FAMILIES))
def test_a_file_of_lora_weights(name, tmp_path):
    """It has the coefficients as well. The original refuses it, and so does another conversion.

    KerasHub's file leaves out the biases that train, whether the model is converted or not.
    """
    kind, path = Case(name).family, str(tmp_path / "model.lora.h5")
    backbone, inputs = Case(name, "graph_filter").converted()
    again, plain = Case(name, "graph_filter").converted()[0], kind.make()
    other = keras_graphattn.convert(kind.make(), "p_laplacian", kind.where)
    again.set_weights([to_numpy(v) for v in backbone.weights])
    for each in (backbone, again, plain, other):
        each.enable_lora(2, target_layer_names=lora_targets(each))
    fit_one_step(backbone, inputs)
    backbone.save_lora_weights(path)
    assert [each.name for each in tmp_path.iterdir()] == ["model.lora.h5"]
    with pytest.raises(KeyError):
        plain.load_lora_weights(path)
    with pytest.raises(ValueError, match="must be converted as the one whose LoRA weights"):
        other.load_lora_weights(path)
    again.load_lora_weights(path)
    kept = [
        to_numpy(v) == to_numpy(old)
        for v, old in zip(again.weights, backbone.weights, strict=True)
        if "lora" in old.path or "coefficient" in old.path
    ]
    assert kept
    assert all(same.all() for same in kept)
    larger = Case(name, "graph_filter").converted()[0]
    larger.enable_lora(3, target_layer_names=lora_targets(larger))
    with pytest.raises(ValueError, match=re.escape(path)):
        larger.load_lora_weights(path)
    plain.save_lora_weights(path)
    again.load_lora_weights(path)  # factors only; the coefficients stay as they are


@pytest.mark.slow_on("tensorflow")
@pytest.mark.parametrize("quantised_first", [False, True])
@pytest.mark.parametrize("name", fast_for(FAMILIES))
def test_int8(name, quantised_first, tmp_path):
    """Near the exact outputs; and the file is read wherever that of the original is."""
    kind = Case(name).family
    backbone = kind.make()
    inputs = kind.inputs(backbone)
    exact = outputs(backbone, inputs)
    if quantised_first:
        quantise(backbone)
    convert(backbone, kind)
    if not quantised_first:
        quantise(backbone)
    rounded = outputs(backbone, inputs)
    lost = distance(rounded, exact)
    assert lost > 0
    assert lost < 0.3 or lost < 2 * loss_in_int8(Case(name))  # Gemma 4 itself loses more
    if original_lasts_in_int8(kind, tmp_path / "plain.keras"):
        backbone.save(tmp_path / "int8.keras")
        loaded = keras.saving.load_model(tmp_path / "int8.keras")
        assert_equal_outputs(outputs(loaded, inputs), rounded, tolerance=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["int4", "float8"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_task_in_int4_and_float8(name, mode):
    """With the coefficients of the start it loses what the original loses; they stay."""
    lost = []
    for is_converted in (False, True):
        keras.utils.set_random_seed(0)
        task = Case(name).task()
        backbone = task.backbone
        if is_converted:
            convert(backbone, Case(name).family)
        added = [v for layer in converted_layers(backbone) for v in added_variables(layer)]
        before = [to_numpy(v) for v in added]
        try:
            lost.append(loss_of(backbone, Case(name).family.inputs(backbone), mode, task))
        except Exception as error:
            if is_converted:
                raise
            lacks(f"{mode} of this backbone ({error!r:.200})")
    assert 0 < lost[1] <= 1.2 * lost[0]
    assert all((to_numpy(v) == old).all() for v, old in zip(added, before, strict=True))
    assert {v.dtype for v in added} == {"float32"}


def quantise(backbone):
    try:
        backbone.quantize("int8")
    except Exception as error:
        lacks(f"int8 of this backbone ({error!r:.200})")


def original_lasts_in_int8(kind, path):
    """Whether KerasHub reads the quantised file of the original."""
    backbone = kind.make()
    outputs(backbone, kind.inputs(backbone))  # Bloom has a layer that is not built before
    backbone.quantize("int8")
    try:
        backbone.save(path)
        keras.saving.load_model(path)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("name", fast_for(FAMILIES))
def test_mixed_bfloat16(name, attention):
    """The coefficients stay in float32, whatever the layer computes in."""
    case = Case(name, attention)
    backbone = in_mixed_bfloat16(case)
    layers = converted_layers(backbone)
    assert {v.dtype for layer in layers for v in added_variables(layer)} <= {"float32"}
    if name != "moonshine":  # it hands on the dtype of its variables
        assert {layer.compute_dtype for layer in layers} == {"bfloat16"}
        assert 0 < loss_in_mixed_bfloat16(case, backbone) < 0.2


def in_mixed_bfloat16(case):
    """A new backbone of this policy, with the weights of the shared one."""
    with dtype_policy("mixed_bfloat16"):  # some models take no other way to set it
        backbone, _ = case.converted()
    backbone.set_weights([to_numpy(v) for v in case.shared()[0].weights])
    return backbone


def loss_in_mixed_bfloat16(case, backbone):
    """How far the outputs are from those of float32."""
    _, inputs, expected = case.shared()
    try:
        found = outputs(backbone, inputs)
    except Exception:
        skip_where_the_original_fails(case.name)
        raise
    if case.name == "d_fine":  # rounding chooses which tokens become its ten queries
        found, expected = ([x for x in each if 10 not in x.shape] for each in (found, expected))
        assert len(found) == 6
    return distance(found, expected)


def skip_where_the_original_fails(name):
    original = Case(name)
    backbone = in_mixed_bfloat16(original)
    try:
        outputs(backbone, original.family.inputs(backbone))
    except Exception as error:
        lacks(f"mixed precision of this backbone ({error!r:.200})")
