"""The folder layout that a server watches. A small function replaces the graph here."""

import importlib.util
import os
import re
import tempfile
import threading
import time

import keras
import numpy as np
import pytest

from keras_graphattn.export import export_saved_model, saved_model
from keras_graphattn.version import INSTALL_EXTRA


@pytest.fixture
def model():
    return keras.Sequential([keras.Input((3,), name="series"), keras.layers.Dense(2)])


@pytest.fixture
def writer(monkeypatch):
    """Replaces the writing of the graph; `writer.during(path)` runs in the middle of it."""

    class Writer:
        def during(self, path):
            pass

        def __call__(self, model, path, signature):
            path.mkdir()
            (path / "variables").mkdir()
            self.during(path)
            (path / "saved_model.pb").write_text(model.name)

    writer = Writer()
    monkeypatch.setattr(saved_model, "write_graph", writer)
    return writer


def listing(directory):
    return sorted(entry.name for entry in directory.iterdir())


def test_versions_count_on_from_the_highest(model, writer, tmp_path):
    directory = tmp_path / "models" / "mine"
    assert export_saved_model(model, directory) == directory / "1"
    assert export_saved_model(model, str(directory)) == directory / "2"
    assert export_saved_model(model, directory, version=10).name == "10"
    (directory / "notes").mkdir()
    (directory / "0012").mkdir()  # a server reads this as 12
    assert export_saved_model(model, directory).name == "13"
    assert export_saved_model(model, directory, version=0).name == "0"
    assert (directory / "13" / "saved_model.pb").is_file()
    assert listing(directory) == ["0", "0012", "1", "10", "13", "2", "notes"]


@pytest.mark.parametrize("existing", ["3", "03"])
def test_an_existing_version_is_not_overwritten(model, writer, tmp_path, existing):
    (tmp_path / existing).mkdir()
    writer.during = lambda path: pytest.fail("the graph is written before the version is refused")
    for version in (3, np.int64(3)):
        with pytest.raises(FileExistsError, match=r"Version 3 already exists .* never overwritten"):
            export_saved_model(model, tmp_path, version=version)
    assert listing(tmp_path) == [existing]


def test_a_watching_server_sees_no_half_export(model, writer, tmp_path):
    directory = tmp_path / "served"
    export_saved_model(model, directory)
    seen = []
    writer.during = lambda path: seen.extend(listing(directory))
    export_saved_model(model, directory)
    assert [name for name in seen if not name.startswith(".export-")] == ["1"]
    assert len(seen) == 2
    assert listing(directory) == ["1", "2"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_nothing_behind(model, writer, tmp_path, error):
    def fail(path):
        raise error("half-way")

    writer.during = fail
    with pytest.raises(error, match="half-way"):
        export_saved_model(model, tmp_path / "models" / "mine")
    assert listing(tmp_path) == []
    (tmp_path / "1").mkdir()
    with pytest.raises(error, match="half-way"):
        export_saved_model(model, tmp_path)
    assert listing(tmp_path) == ["1"]


def test_two_exports_at_a_time(model, writer, tmp_path):
    writer.during = lambda path: (tmp_path / "1" / "variables").mkdir(parents=True)
    assert export_saved_model(model, tmp_path).name == "2"
    writer.during = lambda path: (tmp_path / "3" / "variables").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="Version 3 already exists"):
        export_saved_model(model, tmp_path, version=3)
    assert listing(tmp_path) == ["1", "2", "3"]


def test_an_export_waits_for_another_and_removes_what_a_killed_one_left(model, writer, tmp_path):
    started, order = threading.Event(), []
    (tmp_path / ".export-killed" / "saved_model").mkdir(parents=True)

    def during(path):
        order.append("begins")
        started.set()
        time.sleep(0.2)
        order.append("ends")

    writer.during = during
    other = threading.Thread(target=export_saved_model, args=(model, tmp_path))
    other.start()
    started.wait()
    assert not (tmp_path / ".export-killed").exists()
    assert export_saved_model(model, tmp_path).name == "2"
    other.join()
    assert order == ["begins", "ends"] * 2
    assert listing(tmp_path) == ["1", "2"]


def test_an_unwritable_directory(model, writer, tmp_path, monkeypatch):
    def refuse(**kwargs):
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(PermissionError, match=rf"'{tmp_path}/served': Permission denied"):
        export_saved_model(model, tmp_path / "served")
    assert listing(tmp_path) == []


def test_without_tensorflow(model, writer, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=re.escape(INSTALL_EXTRA.format("serving"))):
        export_saved_model(model, tmp_path)
