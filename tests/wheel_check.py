"""Checks an installed keras_graphattn: `KERAS_BACKEND=jax python wheel_check.py FOLDER VERSION`.

`make wheel` runs it in an empty environment that has the wheel and one backend only, outside of the
repository.
"""

import sys
from importlib.metadata import version
from pathlib import Path

import keras
import numpy as np

import keras_graphattn
from keras_graphattn.layers import GraphFilterAttention


def main(folder, expected):
    root = Path(keras_graphattn.__file__).parent
    assert "site-packages" in root.parts, f"This is no installed package: {root}"
    versions = {version("keras-graphattn"), keras_graphattn.__version__}
    assert versions == {expected}, f"versions {versions}, expected {expected}"
    assert (root / "py.typed").is_file()
    tokens = keras.Input((5, 8))
    model = keras.Model(tokens, GraphFilterAttention(2, 4, filter="chebyshev")(tokens, tokens))
    model.compile("adam", "mse")
    draw = np.random.default_rng(0)
    model.fit(draw.normal(size=(4, 5, 8)), draw.normal(size=(4, 5, 8)), verbose=0)
    path = Path(folder) / "model.keras"
    model.save(path)
    data = draw.normal(size=(2, 5, 8)).astype("float32")
    loaded = keras.saving.load_model(path)
    np.testing.assert_allclose(model.predict(data, verbose=0), loaded.predict(data, verbose=0))
    assert keras.backend.backend() in sys.modules
    print(f"keras_graphattn {expected} from its wheel works on {keras.backend.backend()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
