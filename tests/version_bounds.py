"""Prints the requirements of one end of the supported versions, for pip.

`python tests/version_bounds.py oldest` gives each lower bound of `pyproject.toml` as the version
itself; `newest` gives the bounds as they are. `make versions` runs the tests with both.
"""

import sys
import tomllib
from pathlib import Path

EXTRAS = ("tensorflow", "jax", "torch", "hub", "cv", "serving", "recipes")


def requirements(which: str) -> list[str]:
    """What the package and its tests need; the tools of development come as they are."""
    if which not in ("oldest", "newest"):
        raise SystemExit(f"Give oldest or newest. Received: {which}")
    text = Path(__file__).parents[1].joinpath("pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in EXTRAS for line in extras[extra])]
    if which == "oldest":
        lines = [line.replace(">=", "==") for line in lines]
    return [*dict.fromkeys(lines), *extras["dev"]]


if __name__ == "__main__":
    print("\n".join(requirements(*sys.argv[1:])))
