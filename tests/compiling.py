"""How tests that compile many tiny models spend less time on it."""

from contextlib import contextmanager

import keras

# option of jax: while such tests run, and jax's own default
_OPTIONS = {
    "jax_persistent_cache_min_compile_time_secs": (0.05, 1.0),
    "jax_disable_most_optimizations": (True, False),
}


@contextmanager
def lean_compilation(folder):
    """On jax, XLA compiles once what equal models share, and without its costly passes."""
    if keras.backend.backend() != "jax":
        yield
        return
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder))
    for name, (lean, _) in _OPTIONS.items():
        jax.config.update(name, lean)
    yield
    jax.config.update("jax_compilation_cache_dir", None)
    for name, (_, default) in _OPTIONS.items():
        jax.config.update(name, default)
