import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.common.storage import lock as locks
from recipes.common.storage.lock import LOCK, InUseError, locked
from recipes.time_series.__main__ import RECIPE

ROOT = Path(__file__).parents[2]
HOLDER = """
import sys, time
from pathlib import Path
from recipes.common.storage.lock import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of a folder, and the lock's file."""
    path = tmp_path / LOCK
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        yield process, path
        process.kill()


def test_a_second_run_into_a_folder_is_refused_in_one_line(holder, tiny_arguments, capsys):
    process, path = holder
    before = sorted(path.parent.iterdir())
    for more in ([], ["--overwrite"]):
        assert RECIPE.main([*tiny_arguments, "--output", str(path.parent), *more]) == 2
        printed = capsys.readouterr().err
        assert printed.startswith("error: another run, ")
        assert f"process {process.pid} on host {socket.gethostname()}" in printed
        assert str(path.parent) in printed
        assert printed.count("\n") == 1
    assert sorted(path.parent.iterdir()) == before


def test_the_lock_of_a_killed_process_does_not_block(holder):
    process, path = holder
    with pytest.raises(InUseError), locked(path):
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert path.exists()
    with locked(path):
        assert f"process {os.getpid()} " in path.read_text()
    assert not path.exists()


def test_a_stale_file_does_not_block_and_one_process_holds_one_lock(tmp_path):
    path = tmp_path / LOCK
    path.write_text("process 1 on host elsewhere\n")
    with locked(path):
        with pytest.raises(InUseError, match=f"process {os.getpid()} "), locked(path):
            pass
        assert "elsewhere" not in path.read_text()
    with locked(path):
        pass
    assert not path.exists()


def test_who_waits_gets_the_lock_after_the_holder(holder, capsys):
    process, path = holder
    os.kill(process.pid, signal.SIGSTOP)
    command = [sys.executable, "-c", HOLDER.replace("sys.argv[1])", "sys.argv[1]), '{holder}'")]
    with subprocess.Popen(
        [*command, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == f"process {process.pid} on host {socket.gethostname()}\n"
        process.kill()
        assert other.stdout.readline() == "locked\n"
        other.kill()


def test_without_file_locks_a_warning_says_so(tmp_path, capsys, monkeypatch):
    class Unsupported:
        LOCK_EX = LOCK_NB = 0

        @staticmethod
        def flock(file, operation):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    for module in (None, Unsupported):
        monkeypatch.setattr(locks, "fcntl", module)
        with locked(tmp_path / LOCK):
            pass
        printed = capsys.readouterr().err
        assert printed.startswith(f"warning: {tmp_path} cannot be locked (")
        assert printed.count("\n") == 1
        assert not list(tmp_path.iterdir())
