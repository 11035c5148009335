"""What a release says of itself agrees: version, citation, changelog, supported versions."""

import re
import tomllib
from pathlib import Path

import pytest

import keras_graphattn
from keras_graphattn.version import INSTALL_EXTRA
from tests.version_bounds import requirements

ROOT = Path(__file__).parents[1]


def test_the_version_stands_in_one_place_and_the_others_follow():
    for file, pattern in {"CITATION.cff": r"^version: (.+)$", "CHANGELOG.md": r"^## (\S+)"}.items():
        first = re.search(pattern, (ROOT / file).read_text(), re.MULTILINE)
        assert first.group(1) == keras_graphattn.__version__


def test_oldest_requirements_are_the_lower_bounds():
    oldest, newest = requirements("oldest"), requirements("newest")
    assert len(oldest) == len(newest)
    pinned = [line for line in oldest if line not in newest]
    assert any(line.startswith("keras==") for line in pinned)
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", line) for line in pinned)
    assert [line.replace("==", ">=") for line in oldest] == newest
    with pytest.raises(SystemExit, match=r"oldest or newest\. Received: middle"):
        requirements("middle")


def test_how_to_install_stands_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    install = re.compile(r"pip install (?:-e|.?keras-graphattn)")
    for folder in ("keras_graphattn", "recipes", "guides", "benchmarks", "docs"):
        for path in (ROOT / folder).rglob("*.py"):
            assert path.name == "version.py" or not install.search(path.read_text()), path
    command = re.compile(re.escape(INSTALL_EXTRA).replace(r"\{\}", r"([\w,]+)"))
    for page in (ROOT / "README.md", *ROOT.glob("recipes/*/README.md"), *ROOT.glob("docs/pages/*")):
        commands = command.findall(page.read_text())
        assert len(commands) == len(install.findall(page.read_text())), page
        extras = {extra for each in commands for extra in each.split(",")}
        assert extras <= set(project["optional-dependencies"]), page
