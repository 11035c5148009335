"""How a recipe's command answers a wrong option; programs that Ctrl-C can end."""

import os
import signal
import time
from pathlib import Path


def heed_interrupts():
    """For `preexec_fn`: a shell that starts tests in the background has them ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_until_it_listens(process):
    """Waits until a program imports Keras, which it does after `run_program` has begun."""
    maps = Path(f"/proc/{process.pid}/maps")
    for _ in range(6000):
        if process.poll() is not None or "h5py" in maps.read_text():
            return
        time.sleep(0.01)
    raise AssertionError("the program did not begin within a minute")


def assert_one_error_line(main, arguments, words, capsys):
    """The command fails with exit code 2 and one line that has `words` in it."""
    environment = dict(os.environ)
    try:
        code = main(arguments)
    finally:
        os.environ.clear()
        os.environ.update(environment)
    printed = capsys.readouterr()
    assert code == 2
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    for word in words:
        assert word in printed.err
