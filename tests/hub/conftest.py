"""XLA programs that two equal models share are compiled once, where the backend is jax."""

import keras
import pytest

pytest.importorskip("keras_hub")


@pytest.fixture(scope="session", autouse=True)
def _compiled_once(tmp_path_factory):
    if keras.backend.backend() == "jax":
        import jax

        jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("xla")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
