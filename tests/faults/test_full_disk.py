"""A full disk gives one clear error and leaves what was there before whole."""

import resource
from contextlib import contextmanager

import keras
import pytest

from keras_graphattn import export_saved_model
from recipes.common.storage import check_room, write_json
from recipes.time_series.__main__ import RECIPE
from tests.faults.test_kills import contents
from tests.recipes.conftest import tiny_arguments, tiny_folder  # noqa: F401


@contextmanager
def files_of_at_most(size):
    """The system refuses to write beyond `size` in any file: what a full disk does to a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def wide_model():
    inputs = keras.Input((300,), name="series")
    return keras.Model(inputs, keras.layers.Dense(300, name="classes")(inputs))


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="exports in another process")
def test_an_export_that_does_not_fit(tmp_path):
    directory, model = tmp_path / "served", wide_model()
    small = keras.Sequential([keras.Input((3,), name="series"), keras.layers.Dense(2)])
    first = export_saved_model(small, directory)
    before = contents(directory)
    with files_of_at_most(200_000), pytest.raises(OSError, match="intact") as caught:
        export_saved_model(model, directory)
    assert f"'{directory}'" in str(caught.value)
    assert "File too large" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(directory) == before
    assert first.name == "1"
    assert export_saved_model(model, directory).name == "2"


def test_a_file_of_a_recipe_that_does_not_fit(tmp_path):
    path = tmp_path / "results.json"
    write_json(path, {"table": [1]})
    with files_of_at_most(1000), pytest.raises(OSError, match="File too large"):
        write_json(path, {"table": list(range(1000))})
    writing = tmp_path / ".writing-model.weights.h5"
    with files_of_at_most(1000), pytest.raises(OSError, match=r"File too large.*model.weights"):
        check_room(writing, 100_000)
    check_room(writing, 100_000)
    assert list(contents(tmp_path)) == ["results.json"]
    assert '"table"' in path.read_text()


@pytest.mark.slow_on("jax", "tensorflow")
def test_a_recipe_on_a_full_disk_says_so_and_goes_on_later(request, tmp_path, capfd):
    arguments = request.getfixturevalue("tiny_arguments")
    arguments = [*arguments, "--attention", "softmax", "--epochs", "1", "--skip-saved-model"]
    arguments += ["--output", str(tmp_path)]
    with files_of_at_most(2_000):  # less than a checkpoint
        assert RECIPE.main(arguments) == 1
    printed = capfd.readouterr().err.splitlines()
    errors = [line for line in printed if line.startswith("error:")]
    assert len(errors) == 1
    assert "File too large" in errors[0]
    assert not list(tmp_path.rglob(".writing-*"))
    assert RECIPE.main(arguments) == 0
    assert (tmp_path / "results.png").exists()
