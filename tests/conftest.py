"""Shared set-up: one backend per process (KERAS_BACKEND), the same random data in each run."""

import gc
import os
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import torch  # noqa: I001  # before TensorFlow: the other order crashes
import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests import shape_checks
from tests.compiling import leave_costly_passes_out

if keras.backend.backend() == "torch":
    shape_checks.install()
    # Tests compare bits, and a GPU adds up sums over edges in any order if it may.
    torch.use_deterministic_algorithms(torch.cuda.is_available(), warn_only=True)

settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    max_examples=12 if keras.backend.backend() == "torch" else 8,  # others must compile each
    suppress_health_check=list(HealthCheck),
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr == "not slow":
        leave_costly_passes_out()


# Of a test with more than MANY_CASES cases, JAX and TensorFlow, which compile or trace each case,
# run one of CYCLE cases in the fast suite. torch runs the others, but of tests with more than CYCLE
# cases only each second one, and of those of whole models with more than COSTLY_CASES one of
# COSTLY_CYCLE, which are not the same for each test. `make test-slow` runs what is left.
MANY_CASES, CYCLE, COSTLY_CASES, COSTLY_CYCLE = 3, 24, 8, 6
TURNS = {"jax": 1, "tensorflow": 3}
COSTLY = ("tests/export/", "tests/hub/")
# Of the tests with fewer cases, JAX and TensorFlow run one half each, and torch one half of either,
# but for tests of the mathematics, and tests that some backend skips.
SHARED_NOT = tuple(
    f"tests/{x}/" for x in ("biases", "devices", "export", "filters", "layers", "masks", "ops")
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as slow the tests that this backend runs only in `make test-slow`.

    `slow_on` names the backends on which a test takes long. The backends share tests with many
    cases.
    """
    backend = keras.backend.backend()
    seen: dict[str, int] = {}
    for item in items:
        slow = [name for mark in item.iter_markers("slow_on") for name in mark.args]
        if backend in slow:
            item.add_marker(pytest.mark.slow)
    counts = Counter(_function(item) for item in items)
    for item in items:
        function = _function(item)
        seen[function] = seen.get(function, -1) + 1
        if not function:
            continue
        if counts[function] > MANY_CASES:
            has_turn = _has_turn(backend, function, seen[function], counts[function])
        else:
            is_skipped = item.get_closest_marker("skipif") is not None
            is_shared = not is_skipped and not function.startswith(SHARED_NOT)
            has_turn = not is_shared or backend in _backends_of(item)
        if not has_turn:
            item.add_marker(pytest.mark.slow)


def _backends_of(item: pytest.Item) -> set[str]:
    """Those that run a test: JAX or TensorFlow, if it is not slow there, or torch, or both."""
    slow = {name for mark in item.iter_markers("slow_on") for name in mark.args}
    backends = [name for name in TURNS if name not in slow]
    half, place = divmod(_number_of(_function(item)), 2)
    chosen = {backends[place % len(backends)]} if backends else set()
    return chosen | {"torch"} if half % 2 == 0 or not chosen else chosen


def _has_turn(backend: str, function: str, case: int, count: int) -> bool:
    turn = case % CYCLE
    if backend in TURNS:
        return turn == TURNS[backend]
    if turn in TURNS.values():
        return False
    if function.startswith(COSTLY) and count > COSTLY_CASES:
        return (case + _number_of(function)) % COSTLY_CYCLE == 0
    return count <= CYCLE or case % 2 == 0


def _number_of(name: str) -> int:
    """A number that is always the same for a name."""
    return zlib.crc32(name.encode())


def _function(item: pytest.Item) -> str:
    """The name of a test without its case; empty for tests whose cases are not shared."""
    own = item.get_closest_marker("slow") or item.get_closest_marker("all_cases")
    return "" if own else item.nodeid.partition("[")[0]


# The generators that test modules hold, with the state in which each test finds them.
GENERATORS: list[tuple[np.random.Generator, Any]] = []


def pytest_collection_finish() -> None:
    """Keeps the state of generators, and takes what is imported out of garbage collection.

    Keras collects garbage for each variable that it deletes from a layer, as it does to quantise
    it. In a process that has run many tests, that took half a minute for one model.
    """
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "tests"]
    found = {id(v): v for m in modules for v in vars(m).values() if _is_generator(v)}
    GENERATORS.extend((each, each.bit_generator.state) for each in found.values())
    gc.collect()
    gc.freeze()
    gc.collect = _collect_but_for_keras  # type: ignore[assignment]


COLLECT = gc.collect


def _collect_but_for_keras(generation: int = 2) -> int:
    return 0 if sys._getframe(1).f_code.co_name == "__delattr__" else COLLECT(generation)


def _is_generator(value: object) -> bool:
    return isinstance(value, np.random.Generator)


def pytest_report_header() -> str:
    return f"keras {keras.__version__}, backend {keras.backend.backend()}"


@pytest.fixture(autouse=True)
def _shapes_are_right() -> Iterator[None]:
    """No call in a test has shapes that annotations forbid, even if its error was caught."""
    yield
    assert not list(shape_checks.taken())


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Each test has the same random data, in whatever order they run."""
    for generator, state in GENERATORS:
        generator.bit_generator.state = state
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float32")
