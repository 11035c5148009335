"""Runs KerasHub's own tests of models on converted models.

    KERAS_BACKEND=torch python tests/hub/keras_hub_tests.py path/to/keras-hub --models llama gpt2

The tests come from a checkout of keras-hub, the code from the installed package: use a checkout of
the installed version. KerasHub's tests need the packages grain and portpicker. Each test file runs
twice. First as it is. Then every backbone that `convert` reaches is converted as soon as it is
made, but for the layers that it refuses. The table counts the tests that pass on plain models, and
those of them whose model holds a layer that can be converted, and those that pass on converted
models. The others are named below it. Tests that need presets from the network are left out.
"""

import argparse
import functools
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ATTENTION = "KERAS_GRAPHATTN_CONVERT_TO"  # what the tests' process converts to
FROM_THE_NETWORK = "not large and not extra_large and not kaggle_key_required"


def pytest_configure(config):
    """As a plugin of pytest: converts each backbone that is made."""
    attention = os.environ.get(ATTENTION)
    if not attention:
        return
    import keras_hub

    from keras_graphattn.hub.families import names_of

    for name in names_of("backbones"):
        if hasattr(keras_hub.models, name):
            convert_instances_of(getattr(keras_hub.models, name), attention)


def pytest_collection_finish():
    """As a plugin of pytest: what is imported is no garbage, which Keras' `quantize` looks for."""
    gc.freeze()


def convert_instances_of(plain, attention):
    """Makes the constructor of a class of backbones convert what it has made."""
    import keras_graphattn
    from keras_graphattn.hub.slots import attention_slots

    original = plain.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        # A subclass's own constructor goes on; a backbone around others finds them converted.
        found = attention_slots(self)
        is_done = any(site.is_converted for site in found)
        if type(self) is plain and not is_done:
            where = [i for i, s in enumerate(found) if s.refusal_reason is None]
            if not where:
                pytest.skip("the model holds no layer that can be converted")
            keras_graphattn.convert(self, attention, where)

    plain.__init__ = __init__


def outcomes(folder, models, attention, extra):
    """Runs the tests of some models. Returns the outcome of each test by its name."""
    files = [str(path) for name in models for path in sorted((folder / name).rglob("*_test.py"))]
    if not files:
        sys.exit(f"{folder} has no tests of {', '.join(models)}")
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    environment = {
        **os.environ,
        ATTENTION: attention or "",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]]),
    }
    options = ["-p", "tests.hub.keras_hub_tests", "-q", "--tb=short", f"--junitxml={report}"]
    options += ["-m", FROM_THE_NETWORK]
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(folder), *extra, *files]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
    if not report.exists():
        sys.exit(found.stdout + found.stderr)
    result = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname').split('.')[-1]}.{case.get('name')}"
        problem = case.find("failure") if case.find("failure") is not None else case.find("error")
        outcome = "failed" if problem is not None else "passed"
        if case.find("skipped") is not None:
            outcome = "skipped"
        result[name] = (outcome, "" if problem is None else problem.get("message") or "")
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="a checkout of keras-hub")
    parser.add_argument(
        "--models", nargs="+", required=True, help="folders of keras_hub/src/models"
    )
    parser.add_argument("--attention", default="graph_filter")
    parser.add_argument("--keyword", help="pytest's -k")
    options = parser.parse_args()
    extra = ["-k", options.keyword] if options.keyword else []
    worse = []
    print("| model | pass plain | can be converted | pass converted |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in options.models:
            source = options.checkout / "keras_hub" / "src" / "models" / name
            if not source.is_dir():
                sys.exit(f"{source} is not a folder")
            for path in source.rglob("*_test.py"):
                target = folder / name / path.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
            plain = outcomes(folder, [name], None, extra)
            converted = outcomes(folder, [name], options.attention, extra)
            passed = [test for test, (outcome, _) in plain.items() if outcome == "passed"]
            ours = {test: converted.get(test, ("missing", "")) for test in passed}
            ours = {test: found for test, found in ours.items() if found[0] != "skipped"}
            lost = {test: why for test, (outcome, why) in ours.items() if outcome != "passed"}
            print(f"| {name} | {len(passed)} | {len(ours)} | {len(ours) - len(lost)} |", flush=True)
            worse += [(name, test, why) for test, why in lost.items()]
    for name, test, message in worse:
        print(f"{name}: {test}: {message.strip().splitlines()[0][:160] if message else ''}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
