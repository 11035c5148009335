"""Locks of files, so that two runs never write to the same place.

The operating system holds a lock (`flock`) for a process and takes it back when the process ends,
however it ends. So a lock that a killed run left behind never stops the next one: what counts is
the lock, not the file.
"""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


class InUseError(Exception):
    """Another process holds the lock; the message names it."""


@contextmanager
def locked(path: Path, waiting: str | None = None) -> Iterator[None]:
    """Holds the lock of the file `path`, which is made for it and removed afterwards.

    Where the file system has no locks, a warning says so, and the block runs without.

    Args:
        path: The file; its folder must exist.
        waiting: What is printed before the process waits for the lock to be free, with
            `{holder}` for the other process; without it the process does not wait.

    Raises:
        InUseError: If another process holds the lock and `waiting` is not given.
        OSError: If the file cannot be written.
    """
    file = _acquired(path, waiting)
    try:
        yield
    finally:
        if file is not None:
            with suppress(OSError):  # its folder may be gone
                path.unlink()
            file.close()


def _acquired(path: Path, waiting: str | None) -> IO[str] | None:
    """The open file whose lock is held; None where there are no locks."""
    if fcntl is None:
        _warn(path, "this system has no file locks")
        return None
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is None:
                holder = _holder(file)
                file.close()
                raise InUseError(holder) from None
            print(waiting.replace("{holder}", _holder(file)), flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            file.close()
            path.unlink(missing_ok=True)
            _warn(path, str(error.strerror))
            return None
        if _is_still(path, file):
            file.truncate(0)
            file.write(f"process {os.getpid()} on host {socket.gethostname()}\n")
            file.flush()
            return file
        file.close()  # the one before has removed it meanwhile


def _holder(file: IO[str]) -> str:
    """The process that holds the lock, as it has written to the file."""
    file.seek(0)
    return file.readline().strip() or "another process"


def _is_still(path: Path, file: IO[str]) -> bool:
    """Whether `path` is the open file, not another one made later, or none."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _warn(path: Path, reason: str) -> None:
    print(
        f"warning: {path.parent} cannot be locked ({reason}): start no second run into it",
        file=sys.stderr,
    )
