"""The README's examples that need no download run as they stand there."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
EXPORTS = pytest.param("Use it", marks=pytest.mark.slow)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("title", ["Filters", "Graphs", EXPORTS])
def test_the_first_example_of_a_section_runs(title, tmp_path, monkeypatch):
    section = README.split(f"\n## {title}\n")[1].split("\n## ")[0]
    monkeypatch.chdir(tmp_path)
    exec(re.search("```python\n(.*?)```", section, re.DOTALL)[1], {})
