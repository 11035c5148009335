"""Compares recipes on several devices of a CPU with one; run in a separate process.

    KERAS_BACKEND=<backend> python train_recipes.py FOLDER

The result is `differences.json`: for each recipe the largest difference of any metric after any
epoch.
"""

# ruff: noqa: E402

import json
import os
import sys
from pathlib import Path

FOLDER = Path(sys.argv[1])
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
if os.environ["KERAS_BACKEND"] == "tensorflow":
    import tensorflow as tf

    halves = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], halves)

import numpy as np

from recipes.long_range_arena.__main__ import RECIPE as long_range_arena
from recipes.time_series.__main__ import RECIPE as time_series
from tests.recipes.conftest import write_ts

MODEL = (
    "--d-model 8 --heads 4 --key-dim 4 --feed-forward 16 --layers 1 --batch-size 16 --dropout 0 "
    "--learning-rate 0.01 --verbose 0 --attention gfsa,agf"
)
RECIPES = {
    "time_series": (
        time_series.main,
        f"--dataset Tiny --data-dir {FOLDER} --epochs 4 --skip-saved-model {MODEL}",
    ),
    "long_range_arena": (
        long_range_arena.main,
        f"--task listops --cache-dir {FOLDER} --max-length 60 --train-examples 40 "
        f"--evaluation-examples 16 --epochs 3 --warm-up 2 {MODEL}",
    ),
}


def history(name, *options):
    main, arguments = RECIPES[name]
    output = FOLDER / "-".join([name, *options])
    assert main([*arguments.split(), "--output", str(output), *options]) == 0
    states = [json.loads(path.read_text()) for path in sorted(output.glob("runs/*/state.json"))]
    assert len(states) == 2
    return [row for state in states for row in state["history"]]


if __name__ == "__main__":
    random = np.random.default_rng(7)
    write_ts(FOLDER / "Tiny_TRAIN.ts", random, 30)
    write_ts(FOLDER / "Tiny_TEST.ts", random, 8)
    differences = {}
    for name in RECIPES:
        one, several = history(name), history(name, "--distribute", "data")
        assert len(several) == len(one) >= 6
        differences[name] = max(
            abs(row[key] - other[key])
            for row, other in zip(one, several, strict=True)
            for key in row
        )
    (FOLDER / "differences.json").write_text(json.dumps(differences))
