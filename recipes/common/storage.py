"""Files that are always complete, and folders that only one run writes to at a time."""

import csv
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

LOCK = ".lock"


class InUseError(Exception):
    """Another process holds the lock."""


class DamagedFileError(Exception):
    """A file exists, but its content is damaged; the message names it."""


@contextmanager
def locked(path: Path, waiting: str | None = None) -> Iterator[None]:
    """Holds the lock of the file `path`, whose folder must exist.

    The system releases the lock when a process ends, however it ends. If another process holds it,
    `waiting` is printed and the process waits; without `waiting` it raises `InUseError`.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        if waiting is None:
            raise InUseError from error
        print(waiting, flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """Yields a temporary path for a file or a folder, which then replaces `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writing = path.with_name(f".writing-{path.name}")
    remove(writing)
    try:
        yield writing
        if writing.is_dir():
            remove(path)
        os.replace(writing, path)
    except BaseException as error:
        remove(writing)  # or a full disk stays full
        if isinstance(error, OSError) and error.errno and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def check_room(path: Path, size: int) -> None:
    """Raises an `OSError` unless `size` bytes can be written to `path`, which is removed again.

    HDF5 ends the whole process if a full disk stops it from closing a file.
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
    finite = json.loads(json.dumps(content), parse_constant=lambda name: None)
    write_text(path, json.dumps(finite, indent=1) + "\n")


def read_json(path: Path) -> Any | None:
    """The content of a JSON file, or None where there is no such file."""
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
    """Removes a file or a folder; does nothing if it does not exist."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
