"""Experiments of the papers, each a command that trains with `model.fit` and writes a table."""

import importlib.util
import runpy
from pathlib import Path

# All recipes need these; a recipe that needs more says so itself.
_MISSING = [
    name for name in ("filelock", "matplotlib", "sklearn") if importlib.util.find_spec(name) is None
]
if _MISSING:
    _VERSION = Path(__file__).parents[1] / "keras_graphattn" / "version.py"  # without Keras
    raise SystemExit(
        f"The recipes need packages that are not installed: {', '.join(_MISSING)}. Run, in this "
        f"checkout: {runpy.run_path(str(_VERSION))['INSTALL_EXTRA'].format('recipes')}"
    )
