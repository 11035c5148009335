"""Sentences under a table that speak of a paper: only of what it has."""

from collections.abc import Iterable, Sequence


def settings_note(paper: str, departures: Sequence[str]) -> str:
    """Says that the settings are a paper's, and which of them are not.

    Args:
        paper: The paper, such as `"arXiv 2505.08516"`.
        departures: The options that have other values than the published ones.
    """
    changed = f"except for {', '.join(departures)}" if departures else "without changes"
    return f"settings: those of {paper}, {changed}; what is left open there is ours."


def absent_note(paper: str, reported: Iterable[str], attentions: Iterable[str]) -> list[str]:
    """Names the attentions of a table that a paper does not have; nothing where it has all."""
    absent = [name for name in dict.fromkeys(attentions) if name not in set(reported)]
    return [f"not in {paper}: {', '.join(absent)}."] if absent else []
