"""A guide's script, its page and its notebook say the same."""

import ast
import base64
import json

import pytest

from docs import guides, run_guide
from docs.guides import Printed

SCRIPT = '''"""
Title: A title
Description: What it does.
Accelerator: None
Environment: KERAS_BACKEND=jax A=1

An introduction.
"""

import os

"""
## A section
"""


def twice(x):
    """Not a text block."""
    return 2 * x


print(twice(21))
print("picture: /tmp/x.png")
from pathlib import Path

folder = Path(os.environ["GUIDE_OUTPUT"]) / "a"
folder.mkdir(exist_ok=True)
(folder / "b.png").write_bytes(b"")

"""
The end, with `code`:

    indented
"""
'''


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_is_text_and_code(script):
    guide = guides.read(script)
    assert guide.header["Title"] == "A title"
    assert guides.environment(guide) == {"KERAS_BACKEND": "jax", "A": "1"}
    kinds = [block.kind for block in guide.blocks]
    assert kinds == ["text", "code", "text", "code", "text"]
    assert guide.blocks[0].source == "An introduction."
    assert guide.blocks[3].source.startswith("def twice(x):")
    lines = SCRIPT.splitlines()
    for block in guide.blocks:
        if block.kind == "code":
            assert lines[block.line - 1] == block.source.splitlines()[0]


def test_a_page_has_what_the_code_printed_and_drew(script, tmp_path, monkeypatch):
    monkeypatch.setenv("GUIDE_OUTPUT", "")
    monkeypatch.setattr("sys.argv", ["a"])
    monkeypatch.setitem(__import__("sys").modules, "__main__", None)
    folder = tmp_path / "output"
    folder.mkdir()
    printed = run_guide.run(script, folder)
    assert printed == [Printed(), Printed("42", ("a/b.png",))]
    page = guides.page(guides.read(script), printed)
    assert page.startswith("# A title\n\nWhat it does.")
    assert "An introduction.\n\n```python\nimport os\n```\n\n## A section" in page
    assert "](a/b.png)" in page[page.index("\n42\n```\n\n![") :]
    assert "/tmp/x.png" not in page[page.index("42\n```") :]
    assert page.endswith("    indented\n")


@pytest.mark.parametrize("path", guides.all_guides(), ids=lambda path: path.stem)
def test_pages_and_notebooks_have_all_code_of_a_guide(path):
    guide = guides.read(path)
    code = [block for block in guide.blocks if block.kind == "code"]
    page = guides.page(guide, [Printed()] * len(code))
    cells = json.loads(guides.notebook(guide))["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert [c["source"] for c in cells if c["cell_type"] == "code"] == [b.source for b in code]
    assert all(f"```python\n{block.source}\n```" in page for block in code)
    whole = ast.parse(path.read_text()).body
    header = whole[0].value.value.strip("\n")
    texts = len(guide.blocks) - len(code) + ("\n\n" not in header)  # a mere header is no block
    together = ast.parse("\n".join(block.source for block in code))
    assert len(together.body) == len(whole) - texts


def test_a_notebook_has_the_outputs_and_opens_in_colab(script, tmp_path, monkeypatch):
    guide = guides.read(script)
    (tmp_path / "b.png").write_bytes(b"picture")
    monkeypatch.setattr(guides, "REPOSITORY", "owner/name")
    printed = [Printed(), Printed("42", ("b.png",))]
    cells = json.loads(guides.notebook(guide, printed, tmp_path))["cells"]
    assert "](https://colab.research.google.com/github/" in cells[0]["source"]
    install, first, last = (cell for cell in cells if cell["cell_type"] == "code")
    assert install["source"].startswith("%pip install")
    assert "github.com/owner/name" in install["source"]
    assert first["outputs"] == []
    text, picture = last["outputs"]
    assert text["text"] == "42"
    assert base64.b64decode(picture["data"]["image/png"]) == b"picture"
    assert "Open in Colab" in guides.page(guide, printed)


def test_a_failing_guide_is_told(script, tmp_path, monkeypatch):
    monkeypatch.setattr(run_guide, "GUIDES", tmp_path)
    monkeypatch.setattr(run_guide, "ROOT", tmp_path)
    with pytest.raises(RuntimeError, match="The guide a fails"):
        run_guide.outputs_of(guides.read(script), tmp_path / "kept")


def test_outputs_are_kept_until_the_guide_changes(script, tmp_path, monkeypatch):
    monkeypatch.setattr(run_guide, "GUIDES", tmp_path)
    guide, folder = guides.read(script), tmp_path / "kept"
    folder.mkdir()
    kept = {"state": run_guide._state(guide), "printed": [["", []], ["42", ["a/b.png"]]]}
    (folder / run_guide.KEPT).write_text(json.dumps(kept))
    assert run_guide.outputs_of(guide, folder) == [Printed(), Printed("42", ("a/b.png",))]
    script.write_text(SCRIPT + "\n")
    assert run_guide._state(guide) != kept["state"]
