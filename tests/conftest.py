"""Shared set-up: one backend per process (KERAS_BACKEND), the same random data every run."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import torch  # noqa: F401, I001  # before TensorFlow: the other order crashes in one process
import keras
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    max_examples=15,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_report_header() -> str:
    return f"keras {keras.__version__}, backend {keras.backend.backend()}"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float32")
