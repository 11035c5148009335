"""Trains on eight devices, which hold parts of the weights, and saves: `... FOLDER`."""

import os
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

from keras_graphattn.distribution import distribute, layout_map
from tests.layers.test_checkpoints import MODELS, fit, made


def main(folder):
    mesh = keras.distribution.DeviceMesh((4, 2), ("batch", "model"))
    for name in MODELS:
        model, *data = made(name)
        rules = layout_map(model, mesh, large=1)
        parallel = keras.distribution.ModelParallel(layout_map=rules, batch_dim_name="batch")
        with parallel.scope():
            distribute(model)
            fit(model, *data, 1, batch_size=4)
            assert any(
                v.value.addressable_shards[0].data.size < v.value.size for v in model.weights
            )
            np.save(folder / f"{name}.npy", np.asarray(model(data[0])))
            model.save(folder / f"{name}.keras")
            model.save_weights(folder / f"{name}.weights.h5")
            model.save_weights(folder / f"{name}.weights.json", max_shard_size=1e-6)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
