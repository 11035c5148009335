"""The structure of the code: imports point downwards without circles."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import keras_graphattn

ROOT = Path(keras_graphattn.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Each folder may import only from itself and from the folders in the lines before it.
ORDER = (
    ("types",),
    ("checks", "files", "version", "keras_internals"),
    ("numerics", "serialization", "coefficient_rate", "sequence_parallel"),
    ("operators",),
    ("filters", "feature_maps", "masks", "optimizers"),
    ("graphs", "biases"),
    ("ops",),
    ("layers",),
    ("hub", "analysis", "distribution", "export"),
)
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
MANNERED = re.compile(r"\b(is none|are none|mends?|mended|judges|[Ww]hat lasts|cannot help)\b")


def module_of(path):
    return ".".join(("keras_graphattn", *path.relative_to(ROOT).with_suffix("").parts))


def imported_by(path):
    """Yields the names of the package's modules that a file imports, in functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            if node.module == "keras_graphattn":
                yield from (f"keras_graphattn.{alias.name}" for alias in node.names)
            elif node.module.startswith("keras_graphattn."):
                yield node.module
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
            yield from (name for name in names if name.startswith("keras_graphattn."))


def test_every_folder_has_its_level():
    found = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in FILES}
    assert found - {"__init__"} <= set(LEVEL)


def test_imports_point_downwards():
    wrong = []
    for path in FILES:
        folder = path.relative_to(ROOT).parts[0].removesuffix(".py")
        gathers = path in (ROOT / "__init__.py", ROOT / "ops" / "__init__.py")  # public names
        for module in imported_by(path) if not gathers else ():
            other = module.split(".")[1]
            if other != folder and LEVEL[other] >= LEVEL[folder]:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong


def test_modules_import_each_other_in_no_circle():
    names = {module_of(path) for path in FILES}
    graph = {}
    for path in FILES:
        imported = (name if name in names else f"{name}.__init__" for name in imported_by(path))
        graph[module_of(path)] = set(imported) & names
    TopologicalSorter(graph).prepare()  # its error names the circle


def test_words_are_the_usual_ones():
    found = {str(p.relative_to(ROOT)): MANNERED.findall(p.read_text()) for p in FILES}
    assert {name: words for name, words in found.items() if words} == {}
