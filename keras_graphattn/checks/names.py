"""What is said of a name that nothing has."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


def plain_name(name: str) -> str:
    """A name without what writers differ in: case, spaces, hyphens and underscores."""
    return "".join(letter for letter in name.lower() if letter not in " -_")


def did_you_mean(given: Any, names: Iterable[Any] | Mapping[str, str]) -> str:
    """Returns " Did you mean 'causal'?" if text is close to one of the names, else nothing.

    Args:
        given: What was given, of any type; a class stands for its name.
        names: The names that are known, or a dictionary from further names to what they mean.
    """
    meant = names if isinstance(names, Mapping) else {name: name for name in names}
    known = {plain_name(name): meant[name] for name in meant if isinstance(name, str)}
    given = given.__name__ if isinstance(given, type) else given
    close = difflib.get_close_matches(plain_name(given), known, 1) if isinstance(given, str) else []
    return f" Did you mean {known[close[0]]!r}?" if close else ""
