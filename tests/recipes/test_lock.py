"""Locks of folders: one run at a time, and none of a process that was killed."""

import pytest

from recipes.common.storage import LOCK, InUseError, locked
from tests.recipes.command_line import start

HOLDER = """
import sys, time
from pathlib import Path
from recipes.common.storage import locked
with locked(Path(sys.argv[1]), "waiting"):
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of a folder, and the lock's file."""
    path = tmp_path / LOCK
    with start("-c", HOLDER, path) as process:
        assert process.stdout.readline() == "locked\n"
        yield process, path
        process.kill()


def test_the_lock_of_a_killed_process_does_not_block(holder):
    process, path = holder
    with pytest.raises(InUseError), locked(path):
        pass
    process.kill()
    process.wait()
    assert path.exists()
    with locked(path), pytest.raises(InUseError), locked(path):
        pass
    with locked(path):  # it was given back
        pass


def test_who_waits_gets_the_lock_after_the_holder(holder):
    process, path = holder
    with start("-c", HOLDER, path) as other:
        assert other.stdout.readline() == "waiting\n"
        process.kill()
        assert other.stdout.readline() == "locked\n"
        other.kill()
