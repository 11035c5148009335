"""What a converted backbone does, over a table of backbones and attentions."""

import itertools

import keras
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn.hub.slots import attention_slots
from tests.hub.models import (
    BACKBONES,
    LENGTH,
    MASKED,
    SITES,
    assert_equal_outputs,
    outputs,
    random_backbone,
    random_inputs,
)

# Options with which a converted model computes what the original does; None: it never does.
ATTENTIONS = {
    "graph_filter": {"order": 4},
    "p_laplacian": {"p": 2.0},
    "attentive_graph_filter": None,
    "masked_kernel": None,
}
REPRESENTATIVE = ("bert", "gpt2", "llama")
# Llama's family has no class for these; tests/hub/test_families.py has their refusal.
MISSING = list(itertools.product(("llama", "llama3"), ("attentive_graph_filter", "masked_kernel")))


def combinations():
    for attention in ATTENTIONS:
        for name in BACKBONES:
            if (name, attention) in MISSING:
                continue
            quick = attention == "graph_filter" or name in REPRESENTATIVE
            marks = [] if quick else [pytest.mark.slow]
            yield pytest.param((name, attention), id=f"{name}-{attention}", marks=marks)


class Case:
    """One backbone, converted, with what the original made of its inputs."""

    def __init__(self, name, attention):
        keras.utils.set_random_seed(0)
        self.name, self.attention = name, attention
        self.options = ATTENTIONS[attention] or {}
        self.backbone = random_backbone(name)
        self.plain_class = type(self.backbone)
        self.inputs = random_inputs(self.backbone)
        self.before = outputs(self.backbone, self.inputs)
        keras_graphattn.convert(self.backbone, attention, **self.options)
        self.converted = outputs(self.backbone, self.inputs)

    @property
    def layers(self):
        return [site.layer for site in attention_slots(self.backbone)]


@pytest.fixture(scope="module", params=combinations())
def shared_case(request):
    return Case(*request.param)


@pytest.fixture
def case(shared_case):
    """The case as it was made, whatever a test before did to its weights."""
    weights = [keras.ops.convert_to_numpy(v) for v in shared_case.backbone.weights]
    yield shared_case
    for variable, old in zip(shared_case.backbone.weights, weights, strict=True):
        variable.assign(old)


def test_starts_as_the_original_and_goes_back_to_it(case):
    assert len(keras_graphattn.inspect(case.backbone)) == SITES.get(case.name, 2)
    if ATTENTIONS[case.attention] is None:
        assert (
            max(np.abs(a - b).max() for a, b in zip(case.converted, case.before, strict=True))
            > 1e-3
        )
    else:
        assert_equal_outputs(case.converted, case.before)
    keras_graphattn.revert(case.backbone)
    assert type(case.backbone) is case.plain_class
    assert_equal_outputs(outputs(case.backbone, case.inputs), case.before, tolerance=1e-7)
    keras_graphattn.convert(case.backbone, case.attention, **case.options)
    assert all(site.is_converted for site in attention_slots(case.backbone))


def test_lasts_in_a_keras_file_and_in_a_preset(case, tmp_path):
    expected = outputs(case.backbone, case.inputs)
    case.backbone.save(tmp_path / "model.keras")
    case.backbone.save_to_preset(str(tmp_path / "preset"))
    for loaded in (
        keras.saving.load_model(tmp_path / "model.keras"),
        case.plain_class.from_preset(str(tmp_path / "preset")),
    ):
        assert type(loaded) is type(case.backbone)
        assert_equal_outputs(outputs(loaded, case.inputs), expected)


def test_other_lengths_and_padding_change_nothing(case):
    if case.name not in MASKED:
        pytest.skip("takes no padding mask")
    real = [LENGTH - 2, LENGTH]
    short = outputs(case.backbone, random_inputs(case.backbone, LENGTH, real=real))
    inputs = random_inputs(case.backbone, LENGTH, real=real)
    longer = {
        name: np.pad(value, [[0, 0], [0, 4]], constant_values=0) if value.ndim == 2 else value
        for name, value in inputs.items()
    }
    for new, old in zip(outputs(case.backbone, longer), short, strict=True):
        if old.ndim == 3 and old.shape[1] == LENGTH:
            new = new[:, :LENGTH]
        np.testing.assert_allclose(new, old, rtol=0, atol=3e-6 * max(1.0, np.abs(old).max()))
