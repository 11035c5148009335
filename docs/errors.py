"""The package's error messages, read from its source, for a page of the site."""

import ast
import functools
from pathlib import Path

import keras_graphattn

ROOT = Path(keras_graphattn.__file__).parent
# The order of the page: what a user calls comes first, what everything uses last.
GROUPS = {
    "layers": "Layers",
    "masks": "Masks",
    "filters": "Filters",
    "feature_maps": "Feature maps",
    "optimizers": "Optimizers",
    "hub": "`convert`, `revert` and `inspect`",
    "graphs": "Graphs as data",
    "export": "Export and serving",
    "distribution": "Several devices",
    "analysis": "Analysis",
    "operators": "Operators of attention",
    "ops": "Operations on tensors",
    "numerics": "Precision, gradients and blocks",
    "checks": "Arguments of all functions and layers",
    "serialization": "Names and configurations",
    "keras_internals": "The version of Keras",
}


@functools.cache
def messages() -> dict[str, list[tuple[str, str, str]]]:
    """(class of the error, message, file) of each `raise`, by folder of the package.

    What a message takes from the call is in braces. A message that another function writes is
    listed where it is written.
    """
    found: dict[str, list[tuple[str, str, str]]] = {group: [] for group in GROUPS}
    for path in sorted(ROOT.rglob("*.py")):
        file = path.relative_to(ROOT)
        group = file.parts[0].removesuffix(".py")
        texts = sorted(set(_of_file(ast.parse(path.read_text()))))
        if texts:
            found.setdefault(group, []).extend((*text, file.as_posix()) for text in texts)
    return {group: texts for group, texts in found.items() if texts}


def _of_file(tree: ast.AST) -> list[tuple[str, str]]:
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
            continue
        kind = node.exc.func.id if isinstance(node.exc.func, ast.Name) else ""
        text = _text(node.exc.args[0]) if node.exc.args else ""
        if kind[:1].isupper() and len(text.split()) > 3:
            found.append((kind, " ".join(text.split())))
    return found


def _text(node: ast.expr) -> str:
    """The text of a message; empty if it is not written where it is raised."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.FormattedValue):
        return "{" + _placeholder(node.value) + "}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return ""


def _placeholder(node: ast.expr) -> str:
    """A short name for what a message takes from the call."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return "class" if node.attr == "__name__" else node.attr.strip("_")
    return "..."


def parts_of(message: str) -> tuple[str, str]:
    """The rule that a message states, and how to fix the call.

    A message says what is expected, after "Received:" what came, and then how to fix it. Where it
    does not say more, the fix is to do what is expected.
    """
    expected, received, rest = message.partition(" Received: ")
    if not received:
        return message, ""
    sentences = rest.split(". ", 1)
    return expected, sentences[1] if len(sentences) > 1 else ""


def page() -> str:
    """The Markdown of all messages: each is a heading, so that the search leads to it."""
    parts = [
        "# All messages",
        "Every error of the package, as its source has it. What comes from the call is in braces.",
    ]
    for group, texts in messages().items():
        parts.append(f"## {GROUPS.get(group, group)}")
        for kind, message, _ in texts:
            expected, fix = parts_of(message)
            parts.append(f"#### {_escaped(expected)}")
            parts.append(f"`{kind}`. **Fix:** {_escaped(fix)}" if fix else f"`{kind}`.")
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    """The text of a message with its names and placeholders as code, safe in Markdown."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:  # quotes that do not pair
        return f"``` {text} ```"
    plain = [
        _plain(piece) if place % 2 == 0 else f"`` {piece} ``" for place, piece in enumerate(pieces)
    ]
    return "".join(plain)


def _plain(text: str) -> str:
    for mark in ("\\", "*", "_", "[", "]", "<", ">", "|"):
        text = text.replace(mark, "\\" + mark)
    return text
