"""Writes the files of one version: `KERAS_BACKEND=torch python -m tests.data.write_old_files`.

They are in a folder of that name: a model of each layer, in `.keras` files whose parts are
compressed, with its inputs and outputs. Run it once for a release, and never change the files.
"""

import re
import zipfile
from pathlib import Path

import numpy as np

from keras_graphattn import __version__
from tests.layers.capabilities import LAYERS, model_of
from tests.numerics import to_numpy

FOLDER = Path(__file__).parent


def file_name(row):
    """The name of the files of a row, without what follows the dot."""
    return re.sub(r"\W+", "_", row).strip("_")


def compressed(path):
    """Compresses the parts of a `.keras` file, which Keras stores as they are."""
    with zipfile.ZipFile(path) as old:
        parts = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
        for name, data in parts.items():
            new.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)


def main():
    folder = FOLDER / __version__
    folder.mkdir()
    for row, case in LAYERS.items():
        model, inputs = model_of(case)
        path = folder / f"{file_name(row)}.keras"
        model.save(path)
        compressed(path)
        outputs = to_numpy(model(inputs)).astype("float32")
        np.savez_compressed(path.with_suffix(".npz"), outputs=outputs, **inputs)


if __name__ == "__main__":
    main()
