"""Shared set-up: one backend per process (KERAS_BACKEND), the same random data every run."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import torch  # noqa: F401, I001  # before TensorFlow: the other order crashes in one process
import keras
import pytest
from hypothesis import HealthCheck, settings

from tests.compiling import leave_costly_passes_out

settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    max_examples=10 if keras.backend.backend() == "jax" else 15,  # every example compiles there
    suppress_health_check=list(HealthCheck),
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr == "not slow":
        leave_costly_passes_out()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`slow_on` names backends on which a test takes long, mostly jax, which compiles each case."""
    for item in items:
        slow = [name for mark in item.iter_markers("slow_on") for name in mark.args]
        if keras.backend.backend() in slow:
            item.add_marker(pytest.mark.slow)


def pytest_report_header() -> str:
    return f"keras {keras.__version__}, backend {keras.backend.backend()}"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float32")
