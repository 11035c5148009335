"""A command as a program of its own: Ctrl-C ends it at any moment, with one line and code 130.

Python answers Ctrl-C by raising `KeyboardInterrupt` in the main thread, wherever that is. This
does not always end a program:

* Raised in a callback of C code (JAX's hook of the garbage collector, for example) or in an import
  that forgives every error, it gets lost, and the training goes on.
* Raised where C++ code is being imported, it aborts the process with a long traceback.
* While C code runs, such as a long compilation, it has to wait.
* An interpreter that ends in the middle of a compilation can crash.

So nothing is raised here. A thread hears of Ctrl-C, writes the line and ends the process. That is
safe, because the recipes write their files so that a program may end at any moment. Meanwhile the
main thread stands still: it does not take the end of a child process for a result, and it does not
end the program with another exit code.

Imports as little as possible: what comes before `run_program` cannot be interrupted in order.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

INTERRUPTED = 130  # the exit code that shells give to a program that SIGINT ended
CONTINUES = "interrupted: the same command continues after the last epoch"


def run_program(program: Callable[[], int | None], line: str = CONTINUES) -> NoReturn:
    """Runs a function without arguments and ends the process with the exit code that it returns.

    Args:
        program: The function. What takes seconds to import, it imports itself.
        line: What stands on standard error after Ctrl-C.
    """
    try:
        _listen(line)
        code = program()
    except KeyboardInterrupt:  # from before the thread listened
        _end(line)
    sys.exit(code)


def _listen(line: str) -> None:
    """Starts the thread that hears of Ctrl-C, unless this process ignores it."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    hears, tells = socket.socketpair()
    tells.setblocking(False)
    signal.set_wakeup_fd(tells.fileno(), warn_on_full_buffer=False)
    arguments = (hears, tells, line)  # the sockets stay open as long as the thread lives
    threading.Thread(target=_hear, args=arguments, daemon=True, name="ctrl-c").start()
    signal.signal(signal.SIGINT, _stand_still)


def _stand_still(*_: object) -> None:
    """What the main thread does after Ctrl-C, as soon as it is back in Python: it waits."""
    threading.Event().wait()


def _hear(hears: socket.socket, tells: socket.socket, line: str) -> None:
    while signal.SIGINT not in hears.recv(1):
        pass  # another signal
    _end(line)


def _end(line: str) -> NoReturn:
    """Writes the line, ends child processes and then this one, without the interpreter's end."""
    try:
        flushing = threading.Thread(target=_flush, daemon=True)
        flushing.start()
        flushing.join(0.5)  # the main thread may hold the stream while it waits for a reader
        with suppress(OSError):
            os.write(2, f"{line}\n".encode())
        for file in Path("/proc/self/task").glob("*/children"):  # such as an export's; Linux
            with suppress(OSError):
                for child in file.read_text().split():
                    os.kill(int(child), signal.SIGKILL)
    finally:  # whatever happened: the main thread waits for it
        os._exit(INTERRUPTED)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
