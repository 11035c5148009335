"""What is to happen once another package has been imported, without importing it.

Subclasses of KerasHub's classes can only be registered when KerasHub is there, and a preset can
only be loaded when they are registered. So this package waits for KerasHub: whichever of the two
a program imports first, both are ready after the second import.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


class _Waiting(importlib.abc.MetaPathFinder):
    """Finds nothing of its own: lets the other finders look, and wraps what they found."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self.name = name
        self.action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        for finder in sys.meta_path:
            if isinstance(finder, _Waiting) or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                self._wrap(spec.loader)
                return spec
        return None

    def _wrap(self, loader: Any) -> None:
        execute = loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self.action()

        loader.exec_module = execute_and_act


def when_imported(name: str, action: Callable[[], None]) -> None:
    """Runs `action` once the package `name` is imported; now, where it already is.

    Args:
        name: Name of a top-level package. It is not imported, and need not be installed.
        action: A function without arguments.

    Example:

    >>> when_imported("keras", lambda: print("keras is here"))
    keras is here
    """
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Waiting(name, action))
