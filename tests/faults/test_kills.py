"""SIGKILL at random moments of training and of exports: nothing finished is lost, ever."""

import hashlib
import json
import multiprocessing
import os
import random
import signal
import threading
import time

import keras
import numpy as np
import pytest

from keras_graphattn import export_saved_model
from keras_graphattn.layers import GraphFilterAttention
from tests.faults import children
from tests.recipes.conftest import tiny_arguments, tiny_folder  # noqa: F401

KILLS = 20
START = 0.3  # seconds at least before a kill: until the child runs, nothing can be lost


@pytest.fixture(scope="module")
def processes():
    """Children that have imported everything when they start, so that kills hit the work."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "keras", "recipes.time_series.__main__"])
    return context


def run(processes, target, arguments, seconds=None):
    """Runs a child to its end or for some seconds, then kills it; the seconds it took."""
    start = time.monotonic()
    child = processes.Process(target=target, args=arguments)
    child.start()
    child.join(seconds if seconds is not None else 300)
    if child.is_alive():
        assert seconds is not None, "the child hangs"
        os.kill(child.pid, signal.SIGKILL)
        child.join()
    return time.monotonic() - start


def contents(folder, pattern="*"):
    """Hashes of the files in a folder by their names."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob(pattern))
        if path.is_file()
    }


@pytest.mark.slow
def test_training_killed_at_random_moments(processes, tiny_arguments, tmp_path):  # noqa: F811
    arguments = [*tiny_arguments, "--attention", "softmax,agf", "--skip-saved-model"]
    arguments += ["--epochs", "6", "--patience", "6", "--dropout", "0.3"]
    whole, moments, kills, round_number = tmp_path / "whole", random.Random(0), 0, 0
    command = [[*arguments, "--output", str(whole)], str(tmp_path / "done")]
    seconds = run(processes, children.train, command)
    expected = json.loads((whole / "results.json").read_text())
    while kills < KILLS:
        round_number += 1
        output, done = (tmp_path / f"{name}-{round_number}" for name in ("broken", "done"))
        command, finished = [[*arguments, "--output", str(output)], str(done)], {}
        while not done.exists():
            latest = seconds if kills < KILLS else None
            moment = latest and moments.uniform(START, max(0.75 * latest, 2 * START))
            run(processes, children.train, command, moment)
            kills += not done.exists()
            for folder, files in finished.items():
                assert contents(folder) == files, "a finished run was touched"
            for path in output.rglob("[!.]*.json"):
                json.loads(path.read_text())  # whole
            folders = [path.parent for path in output.glob("runs/*/run.json")]
            finished = {folder: contents(folder) for folder in folders}
        assert done.read_text() == "0"
        runs = json.loads((output / "results.json").read_text())["runs"]
        assert [one["epochs"] for one in runs] == [6, 6]
        for one, other in zip(runs, expected["runs"], strict=True):
            assert one.keys() == other.keys()
            for name, value in other.items():
                if name == "costs":  # measured
                    continue
                is_name = isinstance(value, str)
                near = value if is_name else pytest.approx(value, rel=1e-4, abs=1e-4)
                assert one[name] == near, name
        assert {path.name for path in output.iterdir()} == {path.name for path in whole.iterdir()}
    print(f"{kills} kills in {round_number} trainings of {seconds:.1f} s")


class Watcher(threading.Thread):
    """Looks at a folder all the time, as a model server does, and at new versions at once."""

    def __init__(self, folder):
        super().__init__(daemon=True)
        self.folder, self.versions, self.stopped = folder, {}, threading.Event()

    def run(self):
        while not self.stopped.wait(0.001):
            for name in os.listdir(self.folder) if self.folder.exists() else []:
                if name.isdigit() and name not in self.versions:
                    self.versions[name] = contents(self.folder / name)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="exports in another process")
def test_exports_killed_at_random_moments(processes, tmp_path):
    inputs = keras.Input((None, 6), name="series")
    model = keras.Model(inputs, GraphFilterAttention(2, 3, name="attention")(inputs))
    model.save(tmp_path / "model.keras")
    directory, reference = tmp_path / "served", tmp_path / "reference"
    series = np.ones((1, 5, 6), "float32")
    expected = keras.ops.convert_to_numpy(model(series))
    layout = set(contents(export_saved_model(model, reference)))
    command = (str(tmp_path / "model.keras"), str(directory), 1)
    seconds = run(processes, children.export, command)
    moments, watcher = random.Random(1), Watcher(directory)
    watcher.start()
    for _ in range(KILLS):
        run(processes, children.export, command, moments.uniform(START, 1.1 * seconds))
    last = export_saved_model(model, directory)
    time.sleep(1.0)
    watcher.stopped.set()
    watcher.join()
    versions = sorted(path.name for path in directory.iterdir() if path.name.isdigit())
    assert sorted(watcher.versions) == versions
    for name, files in watcher.versions.items():  # whole when first seen, and as it was then
        assert set(files) == layout
        assert contents(directory / name) == files
    assert sorted(path.name for path in directory.iterdir()) == versions  # nothing left aside
    import tensorflow as tf

    served = tf.saved_model.load(str(last)).signatures["serving_default"]
    (answer,) = served(series=tf.constant(series)).values()
    np.testing.assert_allclose(answer.numpy(), expected, atol=1e-5)
    print(f"{KILLS} kills, {len(versions)} whole versions, {seconds:.1f} s for one export")
