"""Backbones with stock attention and Llama's: all kinds of attention, files, padding."""

import numpy as np
import pytest

import keras_graphattn
from tests.hub.abilities import Case, keras_file, preset
from tests.hub.families import converted, family
from tests.hub.models import BACKBONES, LENGTH, MASKED, assert_equal_outputs, outputs, random_inputs
from tests.hub.rotary_decoders import BACKBONES as ROTARY

REPRESENTATIVE = ("bert", "gpt2", "llama")
STOCK = [name for name in BACKBONES if not name.startswith("llama")]


def cases(attentions, names):
    """In the fast suite, some stand for all, but for graph filters."""
    for attention in attentions:
        for name in names:
            is_quick = attention == "graph_filter" or name in REPRESENTATIVE
            marks = [] if is_quick else [pytest.mark.slow]
            yield pytest.param(name, attention, marks=marks, id=f"{name}-{attention}")


OTHERS = ("attentive_graph_filter", "masked_kernel")
BOTH = ("graph_filter", "p_laplacian")
ENCODERS = [name for name in STOCK if name not in ("bart", "gpt2", "opt", "whisper")]
SCALED = list(cases(("scaled_high_frequency",), ENCODERS))
CONTRA = list(cases(("contra_norm",), ENCODERS))
ALL = [*cases(BOTH, BACKBONES), *cases(OTHERS, STOCK), *SCALED, *CONTRA]


@pytest.mark.parametrize(("name", "attention"), [*cases(OTHERS, STOCK), *CONTRA])
def test_other_kinds_compute_something_else_and_go_back(name, attention):
    """tests/hub/test_conversion.py has those that start as the original."""
    backbone = family(name).make()
    plain, inputs = type(backbone), random_inputs(backbone)
    before = outputs(backbone, inputs)
    for _ in range(2):
        keras_graphattn.convert(backbone, attention)
        after = outputs(backbone, inputs)
        assert max(np.abs(a - b).max() for a, b in zip(after, before, strict=True)) > 1e-3
        keras_graphattn.revert(backbone)
        assert type(backbone) is plain
        assert_equal_outputs(outputs(backbone, inputs), before, tolerance=1e-7)


@pytest.mark.parametrize(("name", "attention"), SCALED)
def test_amplified_attention_starts_as_the_original(name, attention):
    backbone = family(name).make()
    inputs = random_inputs(backbone)
    before = outputs(backbone, inputs)
    keras_graphattn.convert(backbone, attention)
    assert_equal_outputs(outputs(backbone, inputs), before, tolerance=1e-5)


@pytest.mark.parametrize(("name", "attention"), ALL)
def test_lasts_in_a_keras_file_and_in_a_preset(name, attention, tmp_path):
    keras_file(Case(name, attention), tmp_path)
    preset(Case(name, attention), tmp_path)


PADDED = [
    *cases(BOTH, MASKED),
    *cases(OTHERS, [name for name in MASKED if name in STOCK]),
    *cases(("graph_filter",), ROTARY),
]


@pytest.mark.parametrize(("name", "attention"), PADDED)
def test_other_lengths_and_padding_change_nothing(name, attention):
    backbone = converted(name, attention)
    short = random_inputs(backbone, LENGTH, real=[LENGTH - 2, LENGTH])
    longer = {
        key: np.pad(value, [[0, 0], [0, 4]]) if value.ndim == 2 else value
        for key, value in short.items()
    }
    for new, old in zip(outputs(backbone, longer), outputs(backbone, short), strict=True):
        if old.ndim == 3 and old.shape[1] == LENGTH:
            new = new[:, :LENGTH]
        atol = (1e-5 if name in ROTARY else 3e-6) * max(1.0, np.abs(old).max())
        np.testing.assert_allclose(new, old, rtol=0, atol=atol)
