"""The hub's tests compile many tiny models."""

import pytest

from tests.compiling import compiled_once

pytest.importorskip("keras_hub")


@pytest.fixture(scope="package", autouse=True)
def _compiled_once(tmp_path_factory):
    with compiled_once(tmp_path_factory.mktemp("xla")):
        yield
