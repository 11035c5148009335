"""A training step of every layer compiles for GPUs and TPUs, on a machine that has none.

`python -m tests.devices.table` runs the same cases and writes `docs/pages/devices.md`.
"""

import pytest

from keras_graphattn import biases, layers, masks
from tests.devices.steps import COMPILERS, DTYPES, STEPS, compiled
from tests.devices.table import (
    NO,
    OUTCOMES,
    PARTS,
    TABLE,
    TARGETS,
    in_order,
    kept_outcomes,
    rendered,
)
from tests.layers.unseen_cases import BIASES, CASES, MASKS
from tests.numerics import BACKEND

# One of each kind of operator; the slow tests run all
FAST = {
    "jax": ("graph filter, fused", "kernel, Exponential, causal, chunked", "AGF"),
    "tensorflow": ("kernel, no mask, ReLU",),
    "torch": ("graph filter", "graph filter, blockwise"),
}


@pytest.mark.parametrize("target", COMPILERS[BACKEND])
@pytest.mark.parametrize("name", FAST[BACKEND])
def test_a_quick_handful_compiles(name, target):
    compiled(name, target, "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("target", COMPILERS[BACKEND])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", STEPS)
def test_a_training_step_compiles(name, dtype, target):
    kept = kept_outcomes()["cells"][name].get(target, {})
    compiled(name, target, dtype, in_parts=kept.get(dtype) == PARTS)


def test_every_layer_mask_and_bias_has_a_step():
    kinds = {type(case.make()).__name__ for case in CASES.values()}
    assert kinds == set(layers.__all__)
    under = {name.split(",")[0].removesuffix(" per example") for name in MASKS}
    assert under == set(masks.__all__) - {"Mask"}
    assert set(BIASES) == set(biases.__all__) - {"Bias"}
    assert set(CASES) < set(STEPS)


def test_the_page_is_that_of_its_outcomes_and_nothing_fails():
    kept = kept_outcomes()
    assert OUTCOMES.exists()
    assert TABLE.read_text() == rendered(kept)
    assert in_order(kept["cells"]) == kept["cells"]
    assert list(kept["cells"]) == list(STEPS)
    for name, cells in kept["cells"].items():
        assert set(cells) <= set(TARGETS), name
        assert all(NO not in by_dtype.values() for by_dtype in cells.values()), name
