"""Every container of converted attention, copied in every way, keeps the conversion."""

import keras
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn.hub.sites import attention_sites
from tests.hub.containers import (
    CONTAINERS,
    OPTIONS,
    WAYS,
    answers,
    classes,
    converted,
)

FAST = [
    *(("composed", way, "graph_filter") for way in WAYS),
    *(("backbone", way, "graph_filter") for way in ("cloned", "pickled", "deep_copied")),
    *((name, "saved", "p_laplacian") for name in CONTAINERS),
]


def cases():
    for name in CONTAINERS:
        for way in WAYS:
            for attention in OPTIONS:
                case = (name, way, attention)
                marks = [] if case in FAST else [pytest.mark.slow]
                yield pytest.param(*case, id="-".join(case), marks=marks)


@pytest.mark.parametrize(("name", "way", "attention"), cases())
def test_a_copy_computes_what_its_original_does(name, way, attention, tmp_path):
    model, inputs = converted(name, attention)
    expected = answers(model, inputs)
    kept = [site.layer.get_config() for site in attention_sites(model)]
    new = WAYS[way](model, tmp_path)
    found = answers(new, inputs)
    assert [name for _, name in classes(new)] == [name for _, name in classes(model)]
    assert [site.layer.get_config() for site in attention_sites(new)] == kept
    for actual, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(actual, right, atol=1e-5 * max(1.0, np.abs(right).max()))
