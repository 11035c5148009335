"""Formulas as MathML, which browsers draw without a script.

Pages write LaTeX between dollars. Docstrings write formulas in plain characters, in indented lines
with " = ", such as `out_i = sum_j A_ij v_j`.
"""

import re

from latex2mathml.converter import convert

IN_DOLLARS = re.compile(r"(?<![\\$`])\$([^$`\n]+)\$")
GREEK = ("epsilon", "mu", "phi", "theta")
SYMBOLS = {"o": r"\odot", "sum": r"\sum", **{x: f"\\{x}" for x in GREEK}}
FUNCTIONS = ("exp", "log", "sigmoid", "softmax", "tanh")
# Words that follow each other, or one letter on its own
WORDS = re.compile(r"[A-Za-z]{2,}(?: [a-z]{2,})*(?:_[a-z]{2,})?|\bo\b")


def set_in_page(markdown: str) -> str:
    """The Markdown with what stands between dollars as MathML, but for code."""
    code = r"(^```.*?^```|^ {4}.*?$|`[^`\n]*`)"
    pieces = re.split(code, markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(
        piece if place % 2 else IN_DOLLARS.sub(lambda match: convert(match[1]), piece)
        for place, piece in enumerate(pieces)
    )


def is_formula(line: str) -> bool:
    """Whether a line of a docstring, outside of its lists and examples, is a formula."""
    return line.startswith("    ") and " = " in line


def block(lines: list[str]) -> str:
    """HTML of a docstring's formulas, a line for each."""
    return '<div class="formula">\n' + "<br>\n".join(map(_line, lines)) + "\n</div>"


def _line(line: str) -> str:
    """MathML of a line, whose parts two spaces or more keep apart."""
    parts = re.split(r" {2,}", line.strip())
    return " &emsp; ".join(convert(latex(part)) for part in parts)


def latex(plain: str) -> str:
    r"""The LaTeX of a formula in plain characters.

    >>> latex("A_ij^-1 = exp(w_low)^(p / 2)")
    'A_{ij}^{-1} = \\operatorname{exp}(w_{\\text{low}})^{p / 2}'
    """
    text = re.sub(
        r"\^(-?\w+)", r"^{\1}", plain.replace("...", r"\cdots ").replace("..", r"\ldots ")
    )
    while "^(" in text:
        start = text.index("^(") + 1
        end = _closing(text, start)
        text = f"{text[:start]}{{{text[start + 1 : end]}}}{text[end + 1 :]}"
    text = text.replace(" * ", r" \ast ").replace(" @ ", r" \, ")
    text = re.sub(r"(?<!\w)([A-Za-z]|out)_(\w+)", _with_subscript, text)
    return re.sub(rf"\\\w+(?:\{{\w+\}})?|_\{{\w+\}}|{WORDS.pattern}", _words, text)


def _closing(text: str, start: int) -> int:
    """Where the parenthesis that opens at `start` is closed."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise ValueError(f"The formula {text!r} lacks a closing parenthesis.")


def _with_subscript(match: re.Match) -> str:
    below = match[2] if len(match[2]) < 3 else rf"\text{{{match[2]}}}"
    return f"{match[1]}_{{{below}}}"


def _words(match: re.Match) -> str:
    word = match[0]
    if word.startswith(("\\", "_")):
        return word
    first, _, others = word.partition(" ")
    if word in SYMBOLS:
        return SYMBOLS[word] + " "
    if word in FUNCTIONS:
        return rf"\operatorname{{{word}}}"
    return rf"\,\text{{{word}}}" if not others else rf"\text{{ {first} {others} }}"
