"""Files of LoRA weights of converted backbones: the coefficients are in them, too.

A converted backbone trains its coefficients beside the LoRA factors, and KerasHub's file holds the
factors only. So both stand in a group of the file that the original does not know: it refuses the
file, where it would read the factors without the coefficients. (Biases that train are not in
KerasHub's file either way.)
"""

import functools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

from keras_graphattn.hub.sites import attention_sites
from keras_graphattn.hub.spec import KEY
from keras_graphattn.hub.surgery import added_variables

FACTORS, COEFFICIENTS = "lora", "coefficients"  # the first is KerasHub's name


def lora_file_methods(plain: Any) -> dict[str, Any]:
    """What a converted subclass of `plain` overrides so that no file loses the coefficients."""
    if not hasattr(plain, "save_lora_weights"):
        return {}

    @functools.wraps(plain.save_lora_weights)
    def save_lora_weights(self: Any, filepath: Any) -> None:
        import h5py

        if not str(filepath).endswith(".lora.h5"):
            plain.save_lora_weights(self, filepath)  # its error says what the name must be
        with _beside(filepath) as scratch:
            plain.save_lora_weights(self, scratch)
            with h5py.File(scratch, "a") as file:
                group = file.create_group(KEY)
                file.move(FACTORS, f"{KEY}/{FACTORS}")
                for name, variable in _added(self).items():
                    array = keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32"))
                    group[f"{COEFFICIENTS}/{name}"] = array
            os.replace(scratch, filepath)

    @functools.wraps(plain.load_lora_weights)
    def load_lora_weights(self: Any, filepath: Any) -> None:
        import h5py

        with h5py.File(filepath, "r") as file, tempfile.TemporaryDirectory() as folder:
            if KEY not in file:  # of a model that is not converted
                plain.load_lora_weights(self, filepath)
                return
            added, found = _added(self), _coefficients(file[KEY])
            shapes, expected = (
                {name: tuple(x.shape) for name, x in each.items()} for each in (found, added)
            )
            if shapes != expected:
                raise ValueError(
                    "The model must be converted as the one whose LoRA weights were saved. "
                    f"Received: a file with coefficients of shapes {shapes}, for a model with "
                    f"coefficients of shapes {expected}: filepath={str(filepath)!r}"
                )
            scratch = str(Path(folder) / Path(filepath).name)
            with h5py.File(scratch, "w") as factors:
                file.copy(f"{KEY}/{FACTORS}", factors)
            try:
                plain.load_lora_weights(self, scratch)
            except ValueError as error:  # it names the file
                raise ValueError(str(error).replace(scratch, str(filepath))) from None
            for name, variable in added.items():
                variable.assign(found[name])

    return {"save_lora_weights": save_lora_weights, "load_lora_weights": load_lora_weights}


def _added(backbone: Any) -> dict[str, Any]:
    """The weights that the conversion added, by the number of their layer and their own."""
    layers = [site.layer for site in attention_sites(backbone)]
    return {
        f"{index}/{number}": variable
        for index, layer in enumerate(layers)
        for number, variable in enumerate(added_variables(layer))
    }


def _coefficients(group: Any) -> dict[str, Any]:
    layers = group.get(COEFFICIENTS, {})
    return {
        f"{index}/{number}": layers[index][number][()]
        for index in layers
        for number in layers[index]
    }


@contextmanager
def _beside(path: Any) -> Iterator[str]:
    """The name of a file in the same folder, which is gone in the end."""
    scratch = Path(path).with_name(f".{os.getpid()}-{Path(path).name}")
    try:
        yield str(scratch)
    finally:
        scratch.unlink(missing_ok=True)
