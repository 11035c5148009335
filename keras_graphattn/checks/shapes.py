"""Checks shapes against patterns such as "B T N H"; `arguments` explains the patterns."""

from typing import Any

from keras_graphattn.checks.known_values import cached

Sizes = dict[str, tuple[int, str]]  # letter -> size, and the argument that has it


def check_shape(name: str, value: Any, shapes: tuple[str, ...], sizes: Sizes) -> None:
    """Raises a `ValueError` if the tensor has none of the shapes; else records its sizes."""
    if not shapes or getattr(value.shape, "rank", 0) is None:
        return
    shape = tuple(value.shape)
    for pattern in shapes:
        found = _matched(shape, _letters(pattern), sizes)
        if found is not None:
            for letter, size in found.items():
                sizes.setdefault(letter, (size, name))
            return
    wanted = " or ".join(f"({', '.join(p.replace('?', '').split())})" for p in shapes)
    letters = {letter.rstrip("?") for pattern in shapes for letter in pattern.split()}
    known = [f"{x}={sizes[x][0]} as in `{sizes[x][1]}`" for x in sorted(letters & set(sizes))]
    known_as = f" with {', '.join(known)}" if known else ""
    broadcast = ", or sizes of 1 that broadcast" if any("?" in p for p in shapes) else ""
    raise ValueError(
        f"`{name}` must have shape {wanted}{broadcast}{known_as}. Received: {name}.shape={shape}"
    )


def check_broadcast(name: str, value: Any, of: str, whole_tensor: Any) -> None:
    """Raises a `ValueError` if a tensor does not broadcast to the shape of another."""
    shape, wanted = tuple(value.shape), tuple(whole_tensor.shape)
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    wrong = (isinstance(a, int) and isinstance(b, int) and a not in (1, b) for a, b in pairs)
    if len(shape) > len(wanted) or any(wrong):
        raise ValueError(
            f"`{name}` must broadcast to the shape of `{of}`, {wanted}. Received: "
            f"{name}.shape={shape}"
        )


@cached
def _letters(pattern: str) -> list[tuple[str, str]]:
    """The letters of a pattern, each with and without its question mark."""
    return [(letter, letter.rstrip("?")) for letter in pattern.split()]


def _matched(
    shape: tuple[Any, ...], letters: list[tuple[str, str]], sizes: Sizes
) -> dict[str, int] | None:
    """The sizes that a shape gives to new letters, or `None` if it does not fit."""
    if letters and letters[-1][0] == "...":
        letters, shape = letters[:-1], shape[: len(letters) - 1]
    elif letters and letters[0][0] == "...":
        letters = letters[1:]
        shape = shape[len(shape) - len(letters) :] if len(shape) >= len(letters) else ()
    if len(shape) != len(letters):
        return None
    found: dict[str, int] = {}
    for size, (letter, name) in zip(shape, letters, strict=True):
        if not isinstance(size, int) or name == "_" or (size == 1 and name != letter):
            continue
        wanted = int(name) if name.isdigit() else found.get(name, sizes.get(name, (size,))[0])
        if size != wanted:
            return None
        if not name.isdigit():
            found[name] = size
    return found
