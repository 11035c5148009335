"""Experiments of the papers, each a command that trains with `model.fit` and writes a table."""

import importlib.util
import runpy
from pathlib import Path

# Every recipe locks its folder. A recipe that needs more than that says so itself.
if importlib.util.find_spec("filelock") is None:
    _version = runpy.run_path(str(Path(__file__).parents[1] / "keras_graphattn" / "version.py"))
    raise SystemExit(
        "The recipes need the package filelock, which is not installed. Run, in this checkout: "
        f"{_version['INSTALL_EXTRA'].format('recipes')}"
    )
