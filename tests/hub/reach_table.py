"""Writes the table of reach: `python -m tests.hub.reach_table [--backends torch] [--names bert]`.

Each cell is a case of `tests/hub/test_reach.py`. Its outcomes are kept in `guides/reach.json`, so
that one backend, attention or backbone can be run again without the others. `guides/reach.md` is
made of that file.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
OUTCOMES = ROOT / "guides/reach.json"
TABLE = ROOT / "guides/reach.md"
CASES = "tests/hub/test_reach.py"
BACKENDS = ("tensorflow", "jax", "torch")
COMPILING = {  # jax compiles thousands of small programs, many of them twice
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.05",
}
LETTERS = dict(zip(BACKENDS, ("TF", "JAX", "torch"), strict=True))
YES, NO, NOTHING, REFUSED = "yes", "fails", "-", "refused"
TITLES = {
    "graph_filter": "Graph filter (GFSA)",
    "p_laplacian": "p-Laplacian attention",
    "attentive_graph_filter": "Attentive graph filter (AGF)",
    "masked_kernel": "Masked kernel attention",
}
HEAD = """# What `convert` reaches

This table is made by `python -m tests.hub.reach_table`. Each cell is a test that ran, with a tiny
random model: `tests/hub/abilities.py` says what it checks.

It ran on {versions}.

* `yes`: the test passed. A cell names the backends where they differ, or where not all of them ran.
* `-`: the original model has no such thing, such as `generate` of an encoder, or fails as well.
* `refused`: `convert` raises an error that says why, and leaves the model as it was.
"""


def run(backend, names, attention, folder):
    """The outcomes of one backend: a list of (name, attention, ability, outcome)."""
    report = Path(folder) / f"{backend}.xml"
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}"]
    command += ["-p", "no:cacheprovider", "-n", "2", *_cases(names, attention)]
    environment = {**os.environ, **COMPILING, "KERAS_BACKEND": backend}
    environment["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    subprocess.run(command, cwd=ROOT, env=environment, check=False)
    return list(outcomes(ElementTree.parse(report)))


def _cases(names, attention):
    from tests.hub.abilities import ABILITIES
    from tests.hub.families import FAMILIES

    return [
        f"{CASES}::test_reach[{name}-{attention}-{ability}]"
        for name, ability in itertools.product(names or FAMILIES, ABILITIES)
    ]


def outcomes(report):
    """What the report (JUnit's XML) of a run tells of each case."""
    for case in report.iter("testcase"):
        told = {each.get("name"): each.get("value") for each in case.iter("property")}
        if "ability" not in told:
            raise ValueError(f"A case did not begin: {case.get('name')}. Run pytest to see why.")
        if case.find("failure") is not None or case.find("error") is not None:
            outcome = NO
        elif case.find("skipped") is not None:
            outcome = NOTHING
        else:
            outcome = REFUSED if told["refused"] else YES
        yield told["name"], told["attention"], told["ability"], outcome


def in_order(cells):
    """The cells in the order of the tests; workers end in any order."""
    from tests.hub.abilities import ABILITIES

    return {
        name: {
            attention: {a: row[attention][a] for a in ABILITIES if a in row[attention]}
            for attention in TITLES
            if attention in row
        }
        for name, row in sorted(cells.items())
    }


def cell(by_backend):
    """The text of a cell, from the outcome on each backend."""
    backends = {}
    for backend in (b for b in BACKENDS if b in by_backend):
        backends.setdefault(by_backend[backend], []).append(LETTERS[backend])
    if len(backends) == 1 and len(by_backend) == len(BACKENDS):
        return next(iter(backends))
    return "; ".join(f"{outcome} ({', '.join(names)})" for outcome, names in backends.items())


def rendered(kept):
    """The Markdown of what is kept."""
    ran = kept["keras_hub"]
    versions = [f"{LETTERS[b]} (KerasHub {ran[b]})" for b in BACKENDS if b in ran]
    parts = [HEAD.format(versions=", ".join(versions))]
    for attention, title in TITLES.items():
        rows = {n: cells[attention] for n, cells in kept["cells"].items() if attention in cells}
        if not rows:
            continue
        abilities = list(next(iter(rows.values())))
        parts.append(f"\n## {title}\n\n")
        parts.append(f"| backbone | {' | '.join(abilities)} |\n")
        parts.append("| --- |" + " --- |" * len(abilities) + "\n")
        for name, row in sorted(rows.items()):
            cells = " | ".join(cell(row[ability]) for ability in abilities)
            parts.append(f"| {name} | {cells} |\n")
    return "".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--names", nargs="+", default=[], help="backbones; all by default")
    parser.add_argument("--attentions", nargs="+", choices=TITLES, default=list(TITLES))
    arguments = parser.parse_args()
    from importlib.metadata import version

    kept = json.loads(OUTCOMES.read_text()) if OUTCOMES.exists() else {"keras_hub": {}, "cells": {}}
    for backend, attention in itertools.product(arguments.backends, arguments.attentions):
        with tempfile.TemporaryDirectory() as folder:
            for name, _, ability, outcome in run(backend, arguments.names, attention, folder):
                row = kept["cells"].setdefault(name, {}).setdefault(attention, {})
                row.setdefault(ability, {})[backend] = outcome
        kept["keras_hub"][backend] = version("keras-hub")
        kept["cells"] = in_order(kept["cells"])
        OUTCOMES.write_text(json.dumps(kept, indent=1) + "\n")
    TABLE.write_text(rendered(kept))


if __name__ == "__main__":
    main()
