"""The table of capabilities: what each layer can do, and kernel attention under each mask.

`python -m tests.layers.capability_table` runs the cases on all backends and writes
`guides/capabilities.md`.
"""

import json

import pytest

from keras_graphattn import biases, layers, masks
from tests.hub.reach_table import BACKENDS, NO
from tests.layers.capabilities import ABILITIES, LAYERS, ROWS, UNDER_MASKS, WITH_BIASES, Refused
from tests.layers.capability_table import OUTCOMES, SERVED, TABLE, in_order, rendered


@pytest.mark.slow
@pytest.mark.parametrize("ability", ABILITIES)
@pytest.mark.parametrize("name", ROWS)
def test_capability(name, ability, tmp_path, record_property):
    for key, value in (("name", name), ("attention", "any"), ("ability", ability)):
        record_property(key, value)
    refused = ""
    try:
        ABILITIES[ability](ROWS[name], tmp_path)
    except Refused as error:
        refused = str(error)
    record_property("refused", refused)


def test_every_layer_mask_and_bias_has_a_row():
    named = {name.split("`")[1] for name in LAYERS}
    assert named == set(layers.__all__)
    assert {name.split("`")[1] for name in UNDER_MASKS} == set(masks.__all__) - {"Mask"}
    assert {name.split("`")[1] for name in WITH_BIASES} == set(biases.__all__) - {"Bias"}


def test_the_table_is_that_of_its_outcomes_and_nothing_fails():
    kept = json.loads(OUTCOMES.read_text())
    assert TABLE.read_text() == rendered(kept)
    cells = {n: row["abilities"] for rows in kept["cells"].values() for n, row in rows.items()}
    assert in_order(cells) == kept["cells"]  # all rows, and what the cases of serving say
    for name, row in cells.items():
        assert list(row) == list(ABILITIES), name
        for ability, found in row.items():
            assert set(found) == set(BACKENDS), (name, ability)
            assert NO not in found.values(), (name, ability)
    assert {row["served"] for rows in kept["cells"].values() for row in rows.values()} <= set(
        SERVED
    )
