"""Several processes that train one model together (JAX), such as those of the hosts of a TPU slice.

All of them run the same command with the same files. Only process 0 writes and prints. If a
process ends early, every other one ends too, with one line. Does not import Keras itself.
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from recipes.common.command.parsing import UsageError

HEARTBEAT = 20  # seconds without a sign of life after which a process counts as ended


class Place(NamedTuple):
    """The place of this process among all: where process 0 is, how many there are, its number."""

    address: str | None = None
    count: int | None = None
    number: int | None = None


def place(text: str) -> Place:
    """An argument type: `auto`, or ADDRESS:PORT,COUNT,NUMBER."""
    if text == "auto":
        return Place()
    with contextlib.suppress(ValueError):
        address, count, number = text.split(",")
        host, _, port = address.rpartition(":")
        given = Place(address, int(count), int(number))
        if host and 0 < int(port) < 2**16 and 0 <= int(number) < int(count):
            return given
    raise argparse.ArgumentTypeError(
        f"{text!r} is neither auto nor ADDRESS:PORT,COUNT,NUMBER, such as 10.0.0.1:1234,2,0; a "
        "NUMBER is from 0 to COUNT - 1"
    )


def is_shared(options: argparse.Namespace) -> bool:
    """Whether several processes train together."""
    return getattr(options, "processes", None) is not None


def is_writer(options: argparse.Namespace) -> bool:
    """Whether this process writes and prints."""
    if not is_shared(options):
        return True
    import jax

    return bool(jax.process_index() == 0)


def wait_for_all(options: argparse.Namespace, where: str) -> None:
    """Waits until all processes are here."""
    if is_shared(options):
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(where)


def check_equal(options: argparse.Namespace, number: int, problem: str) -> None:
    """Raises `UsageError` if the number differs between processes."""
    if not is_shared(options):
        return
    from jax.experimental import multihost_utils

    numbers = multihost_utils.process_allgather(number)
    if (numbers != number).any():
        raise UsageError(f"{problem}: {numbers.tolist()}")


@contextmanager
def together(options: argparse.Namespace) -> Iterator[None]:
    """A context in which this process belongs to those of `--processes`, if there are any."""
    if not is_shared(options):
        yield
        return
    _join(options.processes)
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(over,), daemon=True)
    watch.start()
    try:
        with contextlib.ExitStack() as stack:
            if not is_writer(options):
                nowhere = stack.enter_context(open(os.devnull, "w"))
                stack.enter_context(contextlib.redirect_stdout(nowhere))
            yield
        wait_for_all(options, "end")
        over.set()
        watch.join()
        _leave()
    except (UsageError, OSError, FloatingPointError):
        raise  # an error of this process
    except Exception:
        # Most probably a sum over processes of which one has ended. Then `_watch` ends this one.
        time.sleep(2 * HEARTBEAT)
        raise
    finally:
        over.set()  # so that the watch says nothing while Python ends


def _join(own: Place) -> None:
    import keras

    if keras.backend.backend() != "jax":
        raise UsageError("--processes: only on jax; use --backend jax")
    import jax

    _shorten_errors()
    # else jax ends this process with a page of messages when another one ends
    jax.config.update("jax_enable_recoverability", True)
    try:
        jax.distributed.initialize(*own, heartbeat_timeout_seconds=HEARTBEAT)
    except (RuntimeError, ValueError) as error:
        line = str(error).splitlines()[0]
        raise UsageError(f"--processes: the others cannot be joined: {line}") from error


def _watch(over: threading.Event) -> None:
    """Ends this process with one line if another one has ended or cannot be reached."""
    import jax
    from jax.experimental.multihost_utils import ProcessFailureError, live_devices

    all_devices = jax.devices()
    everyone = {device.process_index for device in all_devices}
    while not over.wait(2):
        try:
            with live_devices(all_devices) as devices:
                ended = everyone - {device.process_index for device in devices}
        except ProcessFailureError as error:
            ended = {device.process_index for device in error.failed_devices}
        if ended and not over.is_set():
            with contextlib.suppress(OSError, RuntimeError):
                sys.stdout.flush()
            with contextlib.suppress(OSError):
                os.write(2, f"{ended_line(min(ended))}\n".encode())
            os._exit(1)


def _leave() -> None:
    """Leaves when all are done. Process 0 is the last: the others need it to leave."""
    import jax
    from jax.experimental.multihost_utils import ProcessFailureError, live_devices

    if jax.process_index() > 0:
        jax.distributed.shutdown()
        return
    are_there = jax.process_count() > 1
    while are_there:
        with contextlib.suppress(ProcessFailureError), live_devices(jax.devices()) as devices:
            are_there = len({device.process_index for device in devices}) > 1


def _shorten_errors() -> None:
    """Sends this process's errors through a program that shortens those of jax.

    If process 0 ends, jax ends the others at once, with a page of messages. Nothing in the process
    can prevent that.
    """
    program = [sys.executable, "-m", __name__]
    shortening = subprocess.Popen(program, stdin=subprocess.PIPE)
    assert shortening.stdin is not None
    sys.stderr.flush()
    os.dup2(shortening.stdin.fileno(), 2)
    shortening.stdin.close()


def ended_line(number: int) -> str:
    """What every other process says when one has ended."""
    return (
        f"error: process {number} has ended or cannot be reached. The same commands continue after "
        "the last epoch"
    )


def shorten(lines: Iterable[str]) -> Iterator[str]:
    """The lines that a process writes to standard error, without those of jax on other processes.

    The last of these, that process 0 has ended, becomes one line.
    """
    for line in lines:
        if re.match(r"[IWE]\d{4} .*(coordination_service|preemption_sync_manager)", line):
            continue
        if re.match(r"F\d{4} .*Terminating process because the JAX distributed service", line):
            yield f"{ended_line(0)}\n"
            return
        yield line


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process
    for line in shorten(sys.stdin):
        print(line, end="", file=sys.stderr, flush=True)
