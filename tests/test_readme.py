"""The snippets of README, pages and guides run as they stand there, without a download."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from keras_graphattn.version import INSTALL_EXTRA
from tests.snippets import EXTRAS, FIRST_LINES, blocks

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "pages").glob("*.md"))]
GUIDES = sorted((ROOT / "guides").glob("*.py"))


def run(folder, *files_and_options):
    """What the snippets print on this backend, in a process that nobody told the backend."""
    # JAX compiles each program once, so its costly passes would not pay
    environment = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "PYTHONPATH": str(ROOT)}
    del environment["KERAS_BACKEND"]
    command = [sys.executable, "-P", ROOT / "tests" / "snippets.py", keras.backend.backend()]
    ran = subprocess.run(
        [*command, *files_and_options], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


@pytest.mark.parametrize("module", ["keras_graphattn", "keras_graphattn.numerics.segments"])
@pytest.mark.slow_on("jax", "tensorflow")
def test_a_backend_without_gradients_is_refused(module):
    environment = {**os.environ, "KERAS_BACKEND": "numpy", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", f"import {module}"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 1
    last_line = ran.stderr.strip().splitlines()[-1]
    assert last_line.startswith("ImportError: keras_graphattn needs")
    assert "Received: 'numpy'. Set the environment variable KERAS_BACKEND" in last_line


@pytest.mark.parametrize("path", [*PAGES, *GUIDES], ids=lambda path: path.stem)
@pytest.mark.all_cases
def test_the_first_snippet_chooses_the_backend(path):
    found = blocks(path)
    assert found or path.suffix == ".md"
    if found:
        assert FIRST_LINES.match(found[0])
    assert all("KERAS_BACKEND" not in block for block in found[1:])


@pytest.mark.slow_on("jax", "tensorflow")
def test_pages_run_where_one_backend_is_installed(tmp_path):
    printed = run(tmp_path, "alone", *PAGES)
    assert "2, 128, 512" in printed.splitlines()[0]
    assert (tmp_path / "text.keras").exists()


@pytest.mark.slow
def test_guides_begin_where_one_backend_is_installed(tmp_path):
    assert run(tmp_path, "alone", *GUIDES).count("ran: ") == len(GUIDES)


@pytest.mark.slow  # on TensorFlow, the test of pages runs them
def test_snippets_that_need_extras_run_beside_tensorflow(tmp_path):
    marks = [mark for mark, names in EXTRAS.items() if "tensorflow" in names]
    files = [p for p in (*PAGES, *GUIDES) if any(mark in b for b in blocks(p) for mark in marks)]
    assert "left out" not in run(tmp_path, *files)
    assert (tmp_path / "served" / "1" / "saved_model.pb").exists()


def test_the_readme_is_short_and_begins_with_what_it_promises():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 240
    assert text.index(INSTALL_EXTRA.format("jax")) < text.index("```python")
    assert text.index("```python") < text.index("![") < text.index("## ")
    assert text.index("make demo") < text.index("make test") < text.index("## Install")
    for backend in ("jax", "tensorflow", "torch"):
        assert INSTALL_EXTRA.format(backend) in text
