"""Lets tests on jax spend less time on compiling thousands of small programs."""

from contextlib import contextmanager

import keras


def leave_costly_passes_out():
    """Makes XLA compile faster, to slower programs. The slow tests run with all passes."""
    if keras.backend.backend() == "jax":
        import jax

        jax.config.update("jax_disable_most_optimizations", True)


@contextmanager
def compiled_once(folder):
    """Compiles equal models only once, because these tests make many of them."""
    if keras.backend.backend() != "jax":
        yield
        return
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
    yield
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)


def jit(function):
    """The function compiled, where the backend compiles quickly: its tensors have no values."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True)
    return function
