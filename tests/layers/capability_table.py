"""Writes the table of capabilities: `python -m tests.layers.capability_table [--names Tree]`.

Each cell is a case of `tests/layers/test_capabilities.py`. Its outcomes are kept in
`guides/capabilities.json`, so that one backend, layer or mask can be run again without the others.
`guides/capabilities.md` is made of that file. The column SavedModel is what
`tests/export/layer_cases.py` says, which `tests/export/test_served_layers.py` serves.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

from tests.hub.reach_table import BACKENDS, COMPILING, LETTERS, ROOT, cell, outcomes

OUTCOMES = ROOT / "guides/capabilities.json"
TABLE = ROOT / "guides/capabilities.md"
CASES = "tests/layers/test_capabilities.py::test_capability"
SERVED = {
    None: "",
    "open": "any length",
    "open but jax": "any length; each (JAX)",
    "fixed": "each",
    "bound": "the mask's",
}
HEAD = """# What layers and masks can do

This table is made by `python -m tests.layers.capability_table`. Each cell is a test that ran:
`tests/layers/capabilities.py` says what it checks.

It ran on {versions}.

* `yes`: the test passed. A cell names the backends where they differ.
* `refused`: the layer raises an error that says why, and what to do.
* `-`: the layer has no such thing.
* *causal*: later tokens change nothing. *padding*: padded tokens change nothing, even NaN.
  *mask of pairs*: `attention_mask` hides single pairs. *decode*: token by token, with a cache or
  state of fixed size.
* *SavedModel*: the lengths that an exported model takes: any length with one signature, any length
  with a signature for *each*, or the length that the mask has. An empty cell is not tested.

The paths are the layers' own choice, or the one that the row names. `path="dense"` of
`MaskedKernelAttention` takes every mask of pairs.
"""
TITLES = {"layers": "Layers", "masks": "Masks, in `MaskedKernelAttention`"}


def run(backend, rows, folder):
    """The outcomes of one backend: a list of (row, ability, outcome)."""
    from tests.layers.capabilities import ABILITIES

    report = Path(folder) / f"{backend}.xml"
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}"]
    command += [f"{CASES}[{row}-{ability}]" for row in rows for ability in ABILITIES]
    environment = {**os.environ, **COMPILING, "KERAS_BACKEND": backend}
    environment["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    subprocess.run([*command, "-p", "no:cacheprovider"], cwd=ROOT, env=environment, check=False)
    return [(name, ability, out) for name, _, ability, out in outcomes(ElementTree.parse(report))]


def rendered(kept):
    """The Markdown of what is kept."""
    versions = ", ".join(f"{LETTERS[b]} (Keras {kept['keras'][b]})" for b in kept["keras"])
    parts = [HEAD.format(versions=versions)]
    for group, title in TITLES.items():
        rows = kept["cells"][group]
        abilities = list(next(iter(rows.values()))["abilities"])
        parts.append(f"\n## {title}\n\n| | {' | '.join([*abilities, 'SavedModel'])} |\n")
        parts.append("| --- |" + " --- |" * (len(abilities) + 1) + "\n")
        for name, row in rows.items():
            cells = [cell(found) for found in row["abilities"].values()]
            parts.append(f"| {' | '.join([name, *cells, SERVED[row['served']]])} |\n")
    return "".join(parts)


def in_order(cells):
    """The outcomes in the order of the tests, with the lengths that are served."""
    from tests.export.layer_cases import CASES as EXPORTED
    from tests.layers.capabilities import ABILITIES, LAYERS, UNDER_MASKS

    return {
        group: {
            name: {
                "abilities": {ability: cells[name][ability] for ability in ABILITIES},
                "served": EXPORTED[row.exported].length if row.exported else None,
            }
            for name, row in rows.items()
        }
        for group, rows in (("layers", LAYERS), ("masks", UNDER_MASKS))
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--names", nargs="+", default=[], help="layers and masks; all by default")
    arguments = parser.parse_args()
    from tests.layers.capabilities import ROWS

    chosen = [row for row in ROWS if not arguments.names or row.split("`")[1] in arguments.names]
    kept = json.loads(OUTCOMES.read_text()) if OUTCOMES.exists() else {"keras": {}, "cells": {}}
    cells = {
        name: row["abilities"] for rows in kept["cells"].values() for name, row in rows.items()
    }
    for backend in arguments.backends:
        with tempfile.TemporaryDirectory() as folder:
            for name, ability, outcome in run(backend, chosen, folder):
                cells.setdefault(name, {}).setdefault(ability, {})[backend] = outcome
        kept["keras"][backend] = version("keras")
    kept["cells"] = in_order(cells)
    OUTCOMES.write_text(json.dumps(kept, indent=1) + "\n")
    TABLE.write_text(rendered(kept))


if __name__ == "__main__":
    main()
