"""Files that are whole or not there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to in place of `path`, which it replaces at the end; not after an error."""
    writing = path.with_name(f".writing-{os.getpid()}-{path.name}")
    try:
        yield writing
        with writing.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(writing, path)
    finally:
        writing.unlink(missing_ok=True)
