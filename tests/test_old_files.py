"""Files that released versions wrote are loaded, with equal outputs."""

import keras
import numpy as np
import pytest

from keras_graphattn import layers
from tests.data.write_old_files import FOLDER, file_name
from tests.layers.capabilities import LAYERS
from tests.numerics import to_numpy

FILES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.glob("*/*.keras"))


@pytest.mark.parametrize("file", FILES)
def test_a_file_of_an_older_version(file):
    path = FOLDER / file
    arrays = dict(np.load(path.with_suffix(".npz")))
    expected = arrays.pop("outputs")
    outputs = to_numpy(keras.saving.load_model(path)(arrays))
    np.testing.assert_allclose(outputs, expected, atol=1e-5 * np.abs(expected).max())


def test_the_first_version_has_a_file_of_each_layer_and_all_are_small():
    names = {f"0.1.0/{file_name(row)}.keras" for row in LAYERS}
    assert names == {file for file in FILES if file.startswith("0.1.0/")}
    assert {name.split("`")[1] for name in LAYERS} == set(layers.__all__)
    assert sum(path.stat().st_size for path in FOLDER.glob("0.1.0/*")) < 300_000
