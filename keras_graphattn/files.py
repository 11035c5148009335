"""Writes files that are complete or do not exist."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a path to write to; at the end its file replaces `path`, unless there was an error."""
    writing = path.with_name(f".writing-{os.getpid()}-{path.name}")
    try:
        yield writing
        with writing.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(writing, path)
    finally:
        writing.unlink(missing_ok=True)
