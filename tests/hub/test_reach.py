"""The table of reach: what each backbone can do with each attention.

`python -m tests.hub.reach_table` runs this on all backends and writes `guides/reach.md`.
"""

import functools
import tempfile
from pathlib import Path

import pytest

import keras_graphattn
from tests.hub.abilities import ABILITIES, Case
from tests.hub.containers import OPTIONS
from tests.hub.families import FAMILIES, all_but, family, fast_for
from tests.hub.models import assert_equal_outputs, outputs

# In the fast suite: graph filters of some families, without what takes long.
LONG = ("SavedModel", "generate", "int8")
OTHERS = [name for name in OPTIONS if name != "graph_filter"]


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


@functools.cache
def able(name, ability):
    """Whether the original has the ability."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            ABILITIES[ability](Case(name), Path(folder))
        except Exception:
            return False
    return True


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("ability", all_but(ABILITIES, LONG))
@pytest.mark.parametrize("attention", all_but(OPTIONS, OTHERS))
@pytest.mark.parametrize("name", fast_for(FAMILIES))
def test_reach(name, attention, ability, tmp_path, record_property):
    for key, value in (("name", name), ("attention", attention), ("ability", ability)):
        record_property(key, value)
    reason = refusal(name, attention)
    record_property("refused", reason or "")
    if reason is not None:
        return
    try:
        ABILITIES[ability](Case(name, attention), tmp_path)
    except Exception as error:
        if not able(name, ability):
            pytest.skip(f"the original is not able to do this either: {error!r:.200}")
        raise
