"""What makes the table of reach."""

import json
from xml.etree import ElementTree

import pytest

from tests.hub.abilities import ABILITIES
from tests.hub.containers import OPTIONS
from tests.hub.families import FAMILIES
from tests.hub.reach_table import BACKENDS, NO, OUTCOMES, TABLE, TITLES, cell, outcomes, rendered

REPORT = """
<testsuites><testsuite>
<testcase name="a"><properties><property name="name" value="bert"/>
<property name="attention" value="graph_filter"/><property name="ability" value="fit"/>
<property name="refused" value=""/></properties></testcase>
<testcase name="b"><properties><property name="name" value="bert"/>
<property name="attention" value="graph_filter"/><property name="ability" value="generate"/>
<property name="refused" value=""/></properties><skipped/></testcase>
<testcase name="c"><properties><property name="name" value="llama"/>
<property name="attention" value="masked_kernel"/><property name="ability" value="fit"/>
<property name="refused" value="cannot"/></properties></testcase>
<testcase name="d"><properties><property name="name" value="llama"/>
<property name="attention" value="graph_filter"/><property name="ability" value="fit"/>
</properties><failure/></testcase>
</testsuite></testsuites>
"""


def test_outcomes_are_read_off_a_report():
    assert list(outcomes(ElementTree.ElementTree(ElementTree.fromstring(REPORT)))) == [
        ("bert", "graph_filter", "fit", "yes"),
        ("bert", "graph_filter", "generate", "-"),
        ("llama", "masked_kernel", "fit", "refused"),
        ("llama", "graph_filter", "fit", "fails"),
    ]


def test_a_case_that_did_not_begin_is_told():
    report = ElementTree.fromstring('<testsuite><testcase name="x"><error/></testcase></testsuite>')
    with pytest.raises(ValueError, match="did not begin: x"):
        list(outcomes(ElementTree.ElementTree(report)))


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({"torch": "yes"}, "yes (torch)"),
        ({"torch": "yes", "jax": "yes", "tensorflow": "yes"}, "yes"),
        ({"torch": "yes", "jax": "fails"}, "fails (JAX); yes (torch)"),
    ],
)
def test_a_cell_names_backends_where_they_differ_or_did_not_run(found, text):
    assert cell(found) == text


def test_a_table_has_a_row_for_each_backbone():
    row = {attention: {"fit": {"torch": "yes"}, "generate": {"torch": "-"}} for attention in TITLES}
    table = rendered({"keras_hub": {"torch": "0.32"}, "cells": {"gpt2": row, "bert": row}})
    assert "It ran on torch (KerasHub 0.32)." in table
    assert table.count("| backbone | fit | generate |") == len(TITLES)
    assert table.count(
        "| bert | yes (torch) | - (torch) |\n| gpt2 | yes (torch) | - (torch) |\n"
    ) == len(TITLES)


def test_the_table_is_that_of_its_outcomes_is_whole_and_nothing_fails():
    kept = json.loads(OUTCOMES.read_text())
    assert TABLE.read_text() == rendered(kept)
    assert set(kept["cells"]) == set(FAMILIES)
    for row in kept["cells"].values():
        assert list(row) == list(OPTIONS)
        for abilities in row.values():
            assert list(abilities) == list(ABILITIES)
            for found in abilities.values():
                assert set(found) == set(BACKENDS)
                assert NO not in found.values()
