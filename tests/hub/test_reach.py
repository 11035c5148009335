"""The table of reach: what each backbone can do with each attention.

`python -m tests.hub.reach_table` runs this on all backends and writes `guides/reach.md`.
"""

import functools

import pytest

import keras_graphattn
from tests.hub.abilities import ABILITIES, OPTIONS, Case
from tests.hub.families import FAMILIES, family
from tests.hub.models import assert_equal_outputs, outputs

pytestmark = pytest.mark.slow


@functools.cache
def refusal(name, attention):
    """Why `convert` refuses, or `None`; a model that it refuses is as it was."""
    kind = family(name)
    backbone = kind.make()
    plain, inputs = type(backbone), kind.inputs(backbone)
    before = outputs(backbone, inputs)
    try:
        keras_graphattn.convert(backbone, attention, kind.where, **OPTIONS[attention])
    except ValueError as error:
        assert type(backbone) is plain
        assert_equal_outputs(outputs(backbone, inputs), before, tolerance=0.0)
        return str(error)
    return None


@pytest.mark.parametrize("ability", ABILITIES)
@pytest.mark.parametrize("attention", OPTIONS)
@pytest.mark.parametrize("name", FAMILIES)
def test_reach(name, attention, ability, tmp_path, record_property):
    for key, value in (("name", name), ("attention", attention), ("ability", ability)):
        record_property(key, value)
    reason = refusal(name, attention)
    record_property("refused", reason or "")
    if reason is None:
        ABILITIES[ability](Case(family(name), attention), tmp_path)
