"""Scratch folders of exports: gone after a failure, and after a killed process with the next."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # no file locks on this system: what a killed export leaves stays
    fcntl = None  # type: ignore[assignment]

PREFIX = ".export-"  # a server looks at names that are numbers alone
LOCK = "lock"


@contextmanager
def locked_scratch(directory: Path) -> Iterator[Path]:
    """A new folder inside `directory`, removed afterwards; a lock in it says that it is in use.

    The system gives a lock back when its process ends, however it ends. Folders whose lock
    nobody holds are what killed exports left, and are removed first.
    """
    for old in directory.glob(f"{PREFIX}*"):
        _remove_unused(old)
    scratch = Path(tempfile.mkdtemp(prefix=PREFIX, dir=directory))
    try:
        with (scratch / f"new-{LOCK}").open("w") as lock:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
            (scratch / f"new-{LOCK}").rename(scratch / LOCK)  # nobody sees it unlocked
            yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _remove_unused(scratch: Path) -> None:
    if fcntl is None:
        return
    with suppress(OSError), (scratch / LOCK).open("r") as lock:  # in use, or just begun
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(scratch, ignore_errors=True)
