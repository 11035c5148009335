"""The package's docstrings as Markdown.

Sections such as "Args:" become bold titles with a list. Doctests become code blocks. The name of a
public class becomes a link to its place in the reference.
"""

import inspect
import re
from itertools import groupby

from docs import formulas

SECTIONS = {
    "Args": "Arguments",
    "Attributes": "Attributes",
    "Call arguments": "Call arguments",
    "Example": "Example",
    "Raises": "Raises",
    "Returns": "Returns",
    "Warns": "Warns",
    "Weights": "Weights",
    "Yields": "Yields",
}
LISTS = ("Args", "Attributes", "Call arguments", "Raises", "Warns")
ITEM = re.compile(r"^(?P<name>[\w*][\w*,. ]*): (?P<text>.*)$")
SOURCE = re.compile(r"^(Sources?):(?= )")
COST = re.compile(r"\bO\([\w ^+]+\)")
CLASS = re.compile(r"(?<![\w`.\[])`([A-Z]\w+)`(?![`\]])")


def markdown(docstring: str, identifiers: dict[str, str] | None = None) -> str:
    """The Markdown of a docstring.

    Args:
        docstring: The text between the quotes.
        identifiers: Names of classes and where they are in the reference, such as
            `{"Tree": "keras_graphattn.masks.Tree"}`.
    """
    parts = []
    for title, lines in _sections(inspect.cleandoc(docstring).splitlines()):
        if not title:
            lines = _with_formulas(lines)
        if title:
            parts.append(f"**{SECTIONS[title]}**\n")
        if title in LISTS and any(ITEM.match(line) for line in lines):
            lines = _items(lines)
        parts.append("\n".join(_with_code_blocks(lines)).strip("\n") + "\n")
    text = "\n".join(part for part in parts if part.strip())
    text = re.sub(SOURCE, r"**\1:**", text, count=1) if text.startswith("Source") else text
    text = re.sub(r"\n(Sources?):(?= )", r"\n**\1:**", text)
    return _linked(text, identifiers or {})


def example(docstring: str) -> str:
    """The first code of a docstring's example."""
    _, _, text = markdown(docstring).partition("**Example**")
    return text[text.index("```pycon") : text.index("```\n") + 3]


def _with_formulas(lines: list[str]) -> list[str]:
    """Lines of formulas as HTML."""
    html = []
    for is_formula, group in groupby(lines, formulas.is_formula):
        same = list(group)
        html += [formulas.block(same)] if is_formula else same
    return html


def _sections(lines: list[str]) -> list[tuple[str, list[str]]]:
    """Pairs of a title, empty for the text outside of sections, and the lines without indent."""
    sections: list[tuple[str, list[str]]] = [("", [])]
    for line in lines:
        title = line.removesuffix(":")
        if line.endswith(":") and title in SECTIONS:
            sections.append((title, []))
        elif (
            line
            and not line.startswith((" ", ">>>", "..."))
            and sections[-1][0] not in ("", "Example")
        ):
            sections.append(("", [line]))
        else:
            indented = sections[-1][0] and line.startswith("    ")
            sections[-1][1].append(line[4:] if indented else line)
    return sections


def _items(lines: list[str]) -> list[str]:
    """A Markdown list of the lines `name: text`, each with the indented lines after it."""
    items = []
    for line in lines:
        item = ITEM.match(line)
        if item:
            names = ", ".join(f"`{name}`" for name in item["name"].split(", "))
            items.append(f"- {names}: {item['text']}")
        else:
            items.append(line)
    return items


def _with_code_blocks(lines: list[str]) -> list[str]:
    """Doctests, up to the next empty line, as code blocks."""
    blocks, inside = [], False
    for line in [*lines, ""]:
        if not inside and line.startswith(">>> "):
            blocks += ["```pycon"] if not blocks or not blocks[-1].strip() else ["", "```pycon"]
            inside = True
        elif inside and not line.strip():
            blocks.append("```")
            inside = False
        blocks.append(line)
    return blocks


def _linked(text: str, identifiers: dict[str, str]) -> str:
    """The text with links at the names of classes and costs as formulas, outside of code blocks."""
    pieces = re.split(r"(```.*?```)", text, flags=re.DOTALL)

    def linked(piece: str) -> str:
        costs = COST.sub(lambda cost: formulas.convert(formulas.latex(cost[0])), piece)
        return CLASS.sub(link, costs)

    def link(match: re.Match) -> str:
        name = match[1]
        return f"[`{name}`][{identifiers[name]}]" if name in identifiers else match[0]

    return "".join(p if p.startswith("```") else linked(p) for p in pieces)
