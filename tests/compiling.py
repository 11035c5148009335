"""How tests on jax spend less time on compiling thousands of tiny programs."""

from contextlib import contextmanager

import keras


def leave_costly_passes_out():
    """XLA compiles faster, and slower programs. The slow tests run with all of its passes."""
    if keras.backend.backend() == "jax":
        import jax

        jax.config.update("jax_disable_most_optimizations", True)


@contextmanager
def compiled_once(folder):
    """Equal models, of which these tests make many, share what was compiled."""
    if keras.backend.backend() != "jax":
        yield
        return
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
    yield
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
