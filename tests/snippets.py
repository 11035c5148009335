"""Runs the snippets of pages and guides as a reader would: `python snippets.py BACKEND FILE ...`.

A file's snippets run in order in one namespace, with BACKEND in its first lines. Of a guide
the first block runs. `make wheel` starts this where one backend is installed. tests/test_readme.py
starts it where all are; with `alone`, the other backends cannot be imported then.
"""

import ast
import importlib.util
import os
import re
import sys
from importlib.machinery import PathFinder
from itertools import pairwise
from pathlib import Path

BACKENDS = ("jax", "torch", "tensorflow")
# What snippets need beyond the package and one backend, and how that is seen. KerasHub's package
# brings TensorFlow, so its snippets have no environment with another backend alone.
EXTRAS = {
    "import keras_hub": ("keras_hub", "tensorflow"),
    "export_saved_model(": ("tensorflow",),
    "from sklearn": ("sklearn",),
}
FIRST_LINES = re.compile(
    r'import os\n\nos\.environ(?:\[|\.setdefault\()"KERAS_BACKEND"(?:\] = |, )"(\w+)"\)?'
    r'  # or "\w+", "\w+"\n'
)


def blocks(path: Path) -> list[str]:
    """The Python blocks of a page, or the first block of a guide."""
    text = path.read_text()
    if path.suffix == ".md":
        return re.findall("^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines, ends = text.splitlines(keepends=True), []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            ends.append((node.lineno - 1, node.end_lineno))
    code = [lines[end:start] for (_, end), (start, _) in pairwise(ends)]
    return ["".join(block).lstrip() for block in code if "".join(block).strip()][:1]


def missing(block: str) -> list[str]:
    """The packages that a snippet needs and that cannot be imported."""
    needed = [name for mark, names in EXTRAS.items() if mark in block for name in names]
    return [name for name in needed if importlib.util.find_spec(name) is None]


class OneBackend(PathFinder):
    """Finds all modules but those of the other backends."""

    hidden: tuple[str, ...] = ()

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname.partition(".")[0] in cls.hidden:
            return None
        return super().find_spec(fullname, path, target)


def with_tiny_presets() -> None:
    """`from_preset` gives a tiny random GPT-2, with a tokenizer, whichever preset is asked for."""
    from keras_hub import models

    letters = {chr(code): code for code in range(33, 127)}
    tokens = {"<|endoftext|>": 0, **letters, "Ġ": 127, "ab": 128}
    tokenizer = models.GPT2Tokenizer(vocabulary=tokens, merges=["a b"])

    def from_preset(preset, **options):
        backbone = models.GPT2Backbone(
            vocabulary_size=129, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16
        )
        preprocessor = models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=16)
        return models.GPT2CausalLM(backbone, preprocessor=preprocessor)

    models.GPT2CausalLM.from_preset = from_preset


def main(backend: str, *names: str) -> None:
    os.environ.pop("KERAS_BACKEND", None)
    if "alone" in names:
        OneBackend.hidden = tuple(name for name in BACKENDS if name != backend)
        sys.meta_path[sys.meta_path.index(PathFinder)] = OneBackend
    for path in (Path(name) for name in names if name != "alone"):
        module: dict[str, object] = {"__name__": "__main__"}
        for number, block in enumerate(blocks(path)):
            if number == 0:
                chosen = FIRST_LINES.match(block)
                assert chosen, f"{path} does not begin with the choice of a backend"
                block = block[: chosen.start(1)] + backend + block[chosen.end(1) :]
            lacking = missing(block)
            if lacking:
                print(f"left out, without {', '.join(lacking)}: {path.name}, block {number}")
                continue
            if "import keras_hub" in block:
                with_tiny_presets()
            exec(compile(block, f"{path.name}, block {number}", "exec"), module)
        print(f"ran: {path.name}", flush=True)
    present = {name for name in BACKENDS if name in sys.modules}
    assert backend in present
    assert "alone" not in names or present == {backend}


if __name__ == "__main__":
    main(*sys.argv[1:])
