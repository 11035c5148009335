"""Temporary folders of exports, which are removed even after a failure or a killed process."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # no file locks on this system: folders of killed exports are not removed
    fcntl = None  # type: ignore[assignment]

PREFIX = ".export-"  # a server ignores folders whose names are not numbers
LOCK = "lock"


@contextmanager
def locked_scratch(directory: Path) -> Iterator[Path]:
    """Makes a folder inside `directory` and removes it at the end of the `with` block.

    A lock file in the folder shows that it is in use. The operating system releases the lock when
    the process ends, even if it is killed. So a folder whose lock is free belongs to a killed
    export. Such folders are removed first.
    """
    for old in directory.glob(f"{PREFIX}*"):
        _remove_unused(old)
    scratch = Path(tempfile.mkdtemp(prefix=PREFIX, dir=directory))
    try:
        with (scratch / f"new-{LOCK}").open("w") as lock:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
            (scratch / f"new-{LOCK}").rename(
                scratch / LOCK
            )  # no other process ever sees this name unlocked
            yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _remove_unused(scratch: Path) -> None:
    if fcntl is None:
        return
    with suppress(OSError), (scratch / LOCK).open("r") as lock:  # errors: in use, or just created
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(scratch, ignore_errors=True)
