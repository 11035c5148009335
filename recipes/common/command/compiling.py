"""Programs that JAX compiled for one run, kept for the next runs of the same command.

Every run has a model of its own, so JAX compiles its steps again, although those of two seeds are
the same program. Imports no Keras by itself.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

WORTH_KEEPING = 0.2  # seconds that a program took to compile


@contextmanager
def shared_programs() -> Iterator[None]:
    """Runs in here share their compiled programs, in a folder that is removed at the end.

    Does nothing on other backends, nor if the user has set JAX's own `JAX_COMPILATION_CACHE_DIR`.
    """
    import keras

    if keras.backend.backend() != "jax":
        yield
        return
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    if jax.config.jax_compilation_cache_dir:
        yield
        return
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    with tempfile.TemporaryDirectory(prefix="keras_graphattn-") as folder:
        try:
            jax.config.update("jax_compilation_cache_dir", folder)
            jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH_KEEPING)
            compilation_cache.reset_cache()  # or a compilation before this one has settled it
            yield
        finally:
            jax.config.update("jax_compilation_cache_dir", None)
            jax.config.update("jax_persistent_cache_min_compile_time_secs", before)
            compilation_cache.reset_cache()
