"""Which attention layers a conversion is for: `where`."""

import re
from collections.abc import Sequence
from typing import Any

_EXPECTED = (
    '"all", "even", "odd", "first:<n>", "last:<n>", an index or a list of indices, or a regular '
    "expression that is searched for in the paths"
)


def select(where: Any, paths: Sequence[str]) -> list[int]:
    """The indices, in order, of the paths that `where` selects.

    Args:
        where: `"all"`; `"even"` (indices 0, 2, 4, ...) or `"odd"`; `"first:<n>"` or `"last:<n>"`;
            an index or a list of indices, of which negative ones count from the end; or a regular
            expression that is searched for in each path.
        paths: Paths of the attention layers, in the order in which the model runs them.

    Raises:
        ValueError: If nothing is selected, or for anything else than the above. The message lists
            the paths there are.

    Example:

    >>> select("even", ["layer_0/attention", "layer_1/attention", "layer_2/attention"])
    [0, 2]
    >>> select("layer_[12]/", ["layer_0/attention", "layer_1/attention", "layer_2/attention"])
    [1, 2]
    """
    count = len(paths)
    if isinstance(where, str):
        selected = _by_word(where, paths)
    else:
        indices = _indices(where)
        outside = [index for index in indices if not -count <= index < count]
        if outside:
            raise ValueError(
                f"The model has {count} attention layers. Received: where={where!r}, with "
                f"{outside} out of range.\n{listing(paths)}"
            )
        selected = sorted({index % count for index in indices}) if count else []
    if not selected:
        raise ValueError(
            f"No attention layer is selected by where={where!r}. Expected: {_EXPECTED}.\n"
            f"{listing(paths)}"
        )
    return selected


def listing(paths: Sequence[str]) -> str:
    """The paths, one in a line, with their indices."""
    lines = [f"  {index:3d}  {path}" for index, path in enumerate(paths)]
    return "\n".join(["The attention layers there are:", *(lines or ["  none"])])


def _by_word(where: str, paths: Sequence[str]) -> list[int]:
    everything = list(range(len(paths)))
    if where == "all":
        return everything
    if where in ("even", "odd"):
        return everything[where == "odd" :: 2]
    match = re.fullmatch(r"(first|last):(\d+)", where)
    if match is not None:
        number = int(match[2])
        if number > len(paths):
            raise ValueError(
                f"The model has {len(paths)} attention layers. Received: where={where!r}.\n"
                f"{listing(paths)}"
            )
        return everything[:number] if match[1] == "first" else everything[len(paths) - number :]
    try:
        pattern = re.compile(where)
    except re.error as error:
        raise ValueError(
            f"`where` is no regular expression ({error}). Received: where={where!r}. Expected: "
            f"{_EXPECTED}.\n{listing(paths)}"
        ) from error
    return [index for index in everything if pattern.search(paths[index])]


def _indices(where: Any) -> list[int]:
    indices = list(where) if isinstance(where, (Sequence, range)) else [where]
    if any(isinstance(index, bool) or not isinstance(index, int) for index in indices):
        raise ValueError(f"`where` must be {_EXPECTED}. Received: where={where!r}")
    return indices
