"""Runs of one command share what JAX compiled."""

from pathlib import Path

import keras
import pytest

from recipes.common.command import checks
from recipes.common.command.checks import shared_programs
from recipes.graph_classification.__main__ import RECIPE

ON_JAX = keras.backend.backend() == "jax"


@pytest.fixture
def events(monkeypatch):
    """What JAX tells of its folder of programs: hits and misses."""
    import jax

    found = []
    monkeypatch.setattr(checks, "WORTH_KEEPING", 0.0)
    jax.monitoring.register_event_listener(lambda event, **_: found.append(event.split("_")[-1]))
    return found


def compile_one(number):
    import jax

    return jax.jit(lambda x: x * number)(2.0)


@pytest.mark.skipif(not ON_JAX, reason="JAX has programs to share")
def test_the_same_program_is_compiled_once_and_another_one_is_not_taken_for_it(events):
    with shared_programs():
        assert compile_one(3.5) == 7.0
        assert not events.count("hits")
        assert compile_one(3.5) == 7.0
        assert events.count("hits") == 1
        assert compile_one(4.5) == 9.0
        assert events.count("hits") == 1
    assert compile_one(3.5) == 7.0
    assert events.count("hits") == 1


@pytest.mark.skipif(not ON_JAX, reason="JAX has programs to share")
def test_nothing_is_left_and_a_folder_of_the_user_stays(monkeypatch, tmp_path):
    import jax

    before = jax.config.jax_persistent_cache_min_compile_time_secs
    with shared_programs():
        folder = Path(jax.config.jax_compilation_cache_dir)
        assert folder.is_dir()
    assert not folder.exists()
    assert jax.config.jax_compilation_cache_dir is None
    assert jax.config.jax_persistent_cache_min_compile_time_secs == before
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    try:
        with shared_programs():
            assert jax.config.jax_compilation_cache_dir == str(tmp_path)
    finally:
        jax.config.update("jax_compilation_cache_dir", None)


@pytest.mark.skipif(not ON_JAX, reason="JAX has programs to share")
def test_a_second_seed_of_a_recipe_compiles_no_steps(events, tmp_path):
    sizes = "--graphs 60 --buckets 1 --heads 2 --key-dim 2 --layers 1 --epochs 1 --verbose 0"
    arguments = ["--attention", "gcn", *sizes.split()]
    misses = []
    for number, seeds in enumerate(("0", "1", "2,3")):
        events.clear()
        RECIPE.main([*arguments, "--seeds", seeds, "--output", str(tmp_path / str(number))])
        misses.append(events.count("misses"))
    assert 0 < misses[2] <= misses[1] < misses[0]


@pytest.mark.skipif(ON_JAX, reason="other backends have none")
def test_other_backends_go_on_as_they_are():
    with shared_programs():
        assert keras.ops.convert_to_numpy(keras.ops.ones(2)).tolist() == [1.0, 1.0]
