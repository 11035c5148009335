"""Guides as pages and notebooks.

A guide is a Python script of text blocks, which are strings on their own, and code between them.
The first block is the header: lines of `Name: value`, and then text, if any. The same script
becomes a page, with what it printed and drew, and a Jupyter notebook.

    python -m docs.guides guides/first_steps.py notebooks    # writes notebooks/first_steps.ipynb

The site's notebooks also have the outputs, and an "Open in Colab" link where the site is deployed
from a repository on GitHub.
"""

import ast
import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from docs.paths import GUIDES, NOTEBOOKS_ON_GITHUB, REPOSITORY
from keras_graphattn.version import INSTALL_FROM_GITHUB

# The order of reading: what all need, then the kinds of data, then the parts, then use
ORDER = (
    *("first_steps", "which_attention", "long_sequences", "images", "graphs", "decoders"),
    *("smoothing", "filters", "masked_attention", "masks", "speech_recognition", "your_own"),
    *("distribution", "torch_processes", "serving"),
)
# What a guide imports that the package does not need, and the extra that brings it
EXTRAS = {"sklearn": "guides", "keras_hub": "hub"}


class Block(NamedTuple):
    """A part of a script: text or code."""

    kind: str  # "text" or "code"
    source: str
    line: int  # of the script, counted from 1


class Guide(NamedTuple):
    """A script, read."""

    name: str
    header: dict[str, str]
    blocks: list[Block]


class Printed(NamedTuple):
    """What a code block printed, and the names of the pictures that it drew."""

    text: str = ""
    pictures: tuple[str, ...] = ()


def all_guides() -> list[Path]:
    """The scripts in the order of reading."""
    return sorted(GUIDES.glob("*.py"), key=lambda path: ORDER.index(path.stem))


def read(path: Path) -> Guide:
    """The header and the blocks of a script."""
    script = path.read_text()
    lines, body = script.splitlines(), ast.parse(script).body
    texts = [node for node in body if _is_text(node)]
    blocks, last = [], 0
    for node in texts:
        blocks.append(_code(lines, last, node.lineno - 1))
        blocks.append(Block("text", node.value.value.strip("\n"), node.lineno))
        last = node.end_lineno
    blocks.append(_code(lines, last, len(lines)))
    blocks = [block for block in blocks if block.source]
    header, _, introduction = blocks[0].source.partition("\n\n")
    blocks[:1] = [Block("text", introduction, 1)] if introduction else []
    lines = [line.split(": ", 1) for line in header.splitlines()]
    return Guide(path.stem, {name: value.strip() for name, value in lines}, blocks)


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _code(lines: list[str], start: int, end: int) -> Block:
    while start < end and not lines[start].strip():
        start += 1
    return Block("code", "\n".join(lines[start:end]).rstrip(), start + 1)


def environment(guide: Guide) -> dict[str, str]:
    """The environment variables in which a guide runs for the site."""
    pairs = guide.header.get("Environment", "").split()
    return {"KERAS_BACKEND": "torch", **dict(pair.split("=", 1) for pair in pairs)}


def page(guide: Guide, printed: list[Printed]) -> str:
    """The Markdown of a guide; `printed` has one entry for each code block."""
    header = guide.header
    names = ("Author", "Date created", "Last modified", "Accelerator")
    facts = [header["Description"]]
    facts += [f"**{name}:** {header[name]}" for name in names if name in header]
    code = "\n".join(block.source for block in guide.blocks if block.kind == "code")
    extras = [f"`{extra}`" for name, extra in EXTRAS.items() if f" {name}" in code]
    facts += [f"**Extra to install:** {', '.join(extras)}"] if extras else []
    variables = " ".join(f"{name}={value}" for name, value in environment(guide).items())
    facts.append(f"**The outputs below:** `{variables} python guides/{guide.name}.py`")
    files = f"[Script]({guide.name}.py) · [Notebook]({guide.name}.ipynb)"
    files += f" · [Open in Colab]({colab(guide)})" if REPOSITORY else ""
    parts = [f"# {header['Title']}", "  \n".join([*facts, files])]
    outputs = iter(printed)
    for block in guide.blocks:
        if block.kind == "text":
            parts.append(block.source)
            continue
        parts.append(f"```python\n{block.source}\n```")
        output = next(outputs)
        if output.text.strip():
            parts.append(f'```{{.text .output title="Output"}}\n{output.text.rstrip()}\n```')
        parts += [f"![A picture that this guide draws]({name})" for name in output.pictures]
    return "\n\n".join(parts) + "\n"


def colab(guide: Guide) -> str:
    """Where Google Colab opens the notebook: it reads that of the deployed site on GitHub."""
    return f"https://colab.research.google.com/github/{NOTEBOOKS_ON_GITHUB}/{guide.name}.ipynb"


def notebook(guide: Guide, printed: list[Printed] | None = None, folder: Path = Path()) -> str:
    """A Jupyter notebook of the guide; with what each code block printed, and drew in `folder`."""
    title = f"# {guide.header['Title']}\n\n{guide.header['Description']}"
    cells = [_cell(0, Block("text", title, 1))]
    if REPOSITORY:
        cells[0]["source"] += f"\n\n[Open in Colab]({colab(guide)})"
        install = "%" + INSTALL_FROM_GITHUB.format("guides", REPOSITORY)
        cells.append({**_cell(0, Block("code", install, 1)), "id": "install"})
    cells += [_cell(number, block) for number, block in enumerate(guide.blocks, 1)]
    codes = [cell for cell in cells if cell["cell_type"] == "code" and cell["id"] != "install"]
    for number, (cell, output) in enumerate(zip(codes, printed or [], strict=False), 1):
        cell["execution_count"] = number
        cell["outputs"] = [*_outputs(output, folder)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _outputs(output: Printed, folder: Path) -> Iterator[dict]:
    """What a code block printed and drew, as a notebook has it."""
    if output.text.strip():
        yield {"output_type": "stream", "name": "stdout", "text": output.text}
    for name in output.pictures:
        picture = base64.b64encode((folder / name).read_bytes()).decode()
        yield {"output_type": "display_data", "metadata": {}, "data": {"image/png": picture}}


def _cell(number: int, block: Block) -> dict:
    cell = {"id": f"block-{number}", "metadata": {}, "source": block.source}
    if block.kind == "text":
        return {"cell_type": "markdown", **cell}
    return {"cell_type": "code", **cell, "execution_count": None, "outputs": []}


if __name__ == "__main__":
    for script in sys.argv[1:-1]:
        guide = read(Path(script))
        folder = Path(sys.argv[-1])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{guide.name}.ipynb").write_text(notebook(guide))
