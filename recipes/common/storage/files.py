"""Files that are either whole or not there: written under another name, then moved."""

import csv
import io
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """Yields a name beside `path`, of the same suffix, to write to; moves it to `path` after."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writing = path.with_name(f".writing-{path.name}")
    try:
        yield writing
        os.replace(writing, path)
    except BaseException as error:
        remove(writing)  # a full disk stays full of halves otherwise
        if isinstance(error, OSError) and error.errno and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


@contextmanager
def folder_atomically(path: Path) -> Iterator[Path]:
    """Yields a name beside `path` to write a folder to; puts it in the place of `path` after."""
    writing = path.with_name(f".writing-{path.name}")
    remove(writing)
    with atomically(path):
        yield writing
        remove(path)


def check_room(path: Path, size: int) -> None:
    """Raises an `OSError` unless `size` bytes can be written to `path`, which is left away.

    HDF5 ends the whole process where a full disk stops it from closing a file.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes `text` to `path`, atomically and through to the disk."""
    with atomically(path) as writing, writing.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: Any) -> None:
    """Writes `content` as JSON; numbers that are not finite become null."""
    write_text(path, json.dumps(_finite(content), indent=1, allow_nan=False) + "\n")


class DamagedFileError(Exception):
    """A file is there, but its content is not whole; the message names it."""


def read_json(path: Path) -> Any | None:
    """The content of a JSON file, or None where there is no such file.

    Raises:
        DamagedFileError: If the file holds no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:  # no JSON, or no UTF-8
        raise DamagedFileError(f"{path.name} is not whole") from error


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes rows as CSV, the keys of the first one as the header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def remove(path: Path) -> None:
    """Removes a file or a folder; nothing happens where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content
