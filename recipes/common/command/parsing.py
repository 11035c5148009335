"""The common part of the recipes' command lines: one-line errors, Ctrl-C, lists, the backend.

Does not import Keras: the backend must be chosen before Keras is first imported.
"""

import argparse
import importlib.util
import itertools
import math
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

BACKENDS = ("jax", "tensorflow", "torch")
INTERRUPTED = 130  # the exit code that shells give to a program that SIGINT ended
CONTINUES = "interrupted: the same command continues after the last epoch"


class UsageError(Exception):
    """A request of the user that cannot be done: shown as one line, exit code 2."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, like all others of a recipe.

    `--backend` is read before any other option, because checking an option may import Keras.
    """

    def __init__(self, description: str, prog: str | None = None) -> None:
        usage = None if prog is None else f"{prog} [options]"  # a recipe has dozens of options
        description = f"{description} [in brackets: the default]"
        super().__init__(prog, usage, description, formatter_class=_Defaults)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        arguments = sys.argv[1:] if args is None else list(args)
        for option, value in itertools.pairwise([*arguments, ""]):
            name, _, joined = option.partition("=")
            if name == "--backend" and (joined or value) in BACKENDS:
                os.environ["KERAS_BACKEND"] = joined or value
        return super().parse_known_args(arguments, namespace)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")


class _Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults in brackets, unless the help text shows them itself."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text, default = action.help or "", action.default
        if default is None or default is False or default == argparse.SUPPRESS or "[" in text:
            return text
        return f"{text} [%(default)s]"


def run_program(program: Callable[[], int | None], line: str = CONTINUES) -> NoReturn:
    """Runs a function without arguments and ends the process with the exit code that it returns.

    Ctrl-C ends the process with a line on standard error, between any two steps of Python. No
    exception is raised: a `KeyboardInterrupt` gets lost in callbacks of C code and in imports that
    catch every error. The recipes write their files so that a program may end at any moment.

    Args:
        program: The function. What takes seconds to import, it imports itself.
        line: What stands on standard error after Ctrl-C.
    """

    def end(*_: Any) -> NoReturn:
        with suppress(OSError, RuntimeError):  # no reader; Ctrl-C came while this stream was used
            sys.stdout.flush()
        with suppress(OSError):
            os.write(2, f"{line}\n".encode())
        os._exit(INTERRUPTED)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else Ctrl-C is ignored
        signal.signal(signal.SIGINT, end)
    sys.exit(program())


def run_command(command: Callable[[list[str] | None], None], arguments: list[str] | None) -> int:
    """Runs `command(arguments)`; returns its exit code; an expected error is one line."""
    try:
        command(arguments)
    except (UsageError, OSError, FloatingPointError) as error:  # a full disk; a loss that is NaN
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        print(CONTINUES, file=sys.stderr)
        return INTERRUPTED
    return 0


def listed(names: Sequence[str]) -> str:
    """Names in a sentence, such as `a, b and c`."""
    *first, last = names
    return " and ".join(filter(None, [", ".join(first), last]))


def names_among(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    """An argument type: a comma-separated list of different names out of `allowed`."""

    def names(text: str) -> list[str]:
        values = [name.strip() for name in text.split(",")]
        for name in values:
            if name not in allowed:
                raise argparse.ArgumentTypeError(
                    f"{name!r} is not one of {', '.join(allowed)} (a comma-separated list)"
                )
        return _all_different(values)

    return names


def seeds(text: str) -> list[int]:
    """An argument type: a comma-separated list of different integers from 0 to 2^32 - 1."""
    try:
        values = [int(seed) for seed in text.split(",")]
    except ValueError:
        values = [-1]
    if not all(0 <= seed < 2**32 for seed in values):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of whole numbers from 0 to 4294967295, such as 0,1,2"
        )
    return _all_different(values)


def at_least(smallest: int) -> Callable[[str], int]:
    """An argument type: a whole number of at least `smallest`."""

    def whole_number(text: str) -> int:
        with suppress(ValueError):
            if int(text) >= smallest:
                return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {smallest}")

    return whole_number


def numbers(least: int) -> Callable[[str], int | list[int]]:
    """An argument type: a whole number of at least `least`, or several, comma-separated."""
    check = at_least(least)

    def one_or_more(text: str) -> int | list[int]:
        values = _all_different([check(part) for part in text.split(",")])
        return values if len(values) > 1 else values[0]

    return one_or_more


def number_in(low: float, high: float, *, open_low: bool = False) -> Callable[[str], float]:
    """An argument type: a number in [low, high), or in (low, high) with `open_low`."""

    def number(text: str) -> float:
        with suppress(ValueError):
            value = float(text)
            if low < value < high or (value == low and not open_low):
                return value
        left = "above" if open_low else "of at least"
        below = "" if high == float("inf") else f" and below {high:g}"
        raise argparse.ArgumentTypeError(f"{text!r} is not a number {left} {low:g}{below}")

    return number


def finite(text: str) -> float:
    """An argument type: a number that is neither infinite nor NaN."""
    with suppress(ValueError):
        if math.isfinite(float(text)):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")


def choose_backend(name: str | None) -> None:
    """Sets KERAS_BACKEND to `name`, if there is one, and checks that the backend is installed."""
    name = name or os.environ.get("KERAS_BACKEND")
    if name is not None:
        if name not in BACKENDS:
            raise UsageError(f"KERAS_BACKEND is {name!r}, not one of {', '.join(BACKENDS)}")
        if importlib.util.find_spec(name) is None:
            raise UsageError(f"the backend {name} is not installed: pip install {name}")
        os.environ["KERAS_BACKEND"] = name
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # torch's threads spin while they wait: 4 times slower where processes share the cores
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import keras

    if name is not None and keras.backend.backend() != name:
        raise UsageError(
            f"Keras already runs on {keras.backend.backend()} in this process, not on {name}"
        )


def flags(names: Iterable[str]) -> str:
    """The names of options on the command line."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _all_different(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise argparse.ArgumentTypeError(f"{','.join(map(str, values))!r} names one of them twice")
    return values
