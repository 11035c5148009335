"""Experiments of the papers, each a command that trains with `model.fit` and writes a table."""

import importlib.util

# All recipes need these; a recipe that needs more says so itself.
_MISSING = [
    name for name in ("filelock", "matplotlib", "sklearn") if importlib.util.find_spec(name) is None
]
if _MISSING:
    raise SystemExit(
        f"The recipes need packages that are not installed: {', '.join(_MISSING)}. Run, in this "
        'checkout: pip install -e ".[recipes]"'
    )
