"""Exports from backends that cannot make a TensorFlow graph, through a TensorFlow process."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_graphattn.export.signature import DEFAULT

Model = Any

SUMMARY_LINES = 12
SUMMARY_WIDTH = 300
# Modules that are imported anyway, or that only hold base classes
KNOWN = ("keras", "keras_graphattn", "tensorflow", "torch", "builtins", "typing", "abc")


def write_graph_through_tensorflow(model: Model, path: Path, signature: Any = DEFAULT) -> None:
    """Writes a SavedModel of a model of any backend, in a separate process.

    This function saves the model next to `path`. Then `python -m keras_graphattn.export` loads it
    in safe mode with the TensorFlow backend. That process imports the modules that define the
    model's own classes. It sees no GPU, because this process uses the GPU.

    Args:
        model: A built Functional or Sequential model.
        path: Folder to write, which must not exist.
        signature: As in `export_saved_model`.

    Raises:
        ValueError: If a class or function of the model is defined in `__main__`.
        RuntimeError: If the process fails. The message contains that of its last exception.
    """
    modules = defining_modules(model)
    file = path.with_suffix(".keras")
    model.save(file)
    environment = {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
    }
    options = ["--signature", json.dumps(signature, default=_plain)]
    finished = subprocess.run(
        [sys.executable, "-m", "keras_graphattn.export", str(file), str(path), *modules, *options],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if finished.returncode:
        raise RuntimeError(
            f"The TensorFlow process that exports the model '{model.name}' failed with status "
            f"{finished.returncode}:\n{_summary(finished.stderr)}"
        )


def _plain(value: Any) -> Any:
    """Converts what JSON does not know: NumPy's integers, and mappings that are no dicts."""
    return int(value) if isinstance(value, np.integer) else dict(value)


def _summary(printed: str) -> str:
    """Returns the last exception's message without its traceback, or else the last lines."""
    lines = [line for line in printed.splitlines() if line.strip()]
    raised = [i for i, line in enumerate(lines) if re.match(r"[\w.]+(Error|Exception)\b", line)]
    lines = lines[raised[-1] :][:SUMMARY_LINES] if raised else lines[-SUMMARY_LINES:]
    return "\n".join(
        line if len(line) <= SUMMARY_WIDTH else line[:SUMMARY_WIDTH] + " ..." for line in lines
    )


def defining_modules(model: Model) -> list[str]:
    """Returns the modules that define the classes and functions in a model's config.

    Keras, this package and other modules that are always imported are left out.

    Args:
        model: A model that can be saved.

    Returns:
        Names of modules. All of them are imported already.

    Raises:
        ValueError: If one of them is `__main__`, which another process cannot import.

    Example:

    >>> layer = GraphFilterAttention(num_heads=2, key_dim=4)
    >>> defining_modules(keras.Sequential([keras.Input((16, 8)), layer]))
    []
    """
    found: dict[str, str] = {}
    _collect(keras.saving.serialize_keras_object(model), found)
    if "__main__" in found:
        raise ValueError(
            f"The model '{model.name}' uses '{found['__main__']}', which is defined in "
            "`__main__`. The TensorFlow process that exports the model cannot import it from "
            "there. Move the definition to a module and import it from that module."
        )
    return sorted(name for name in found if name in sys.modules)


def _collect(config: Any, found: dict[str, str]) -> None:
    """Adds the module and name of each serialised class or function, except for training."""
    if isinstance(config, dict):
        if "class_name" in config and "config" in config:
            for module, name in _origins(config):
                if module.partition(".")[0] not in KNOWN:
                    found[module] = name
        for key, value in config.items():
            if key != "compile_config":
                _collect(value, found)
    elif isinstance(config, (list, tuple)):
        for value in config:
            _collect(value, found)


def _origins(config: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns module and name of a serialised class or function, and of its base classes.

    The base classes are needed because a converted model's class is registered when the module of
    its plain class is imported. For `__main__`, Keras writes no module; for registered functions,
    it writes `builtins`.
    """
    is_function = config["class_name"] == "function"
    key = config["config"] if is_function else config.get("registered_name")
    registered = keras.saving.get_registered_object(key) if isinstance(key, str) else None
    if registered is not None:
        classes = registered.__mro__ if isinstance(registered, type) else [registered]
        return [(one.__module__, one.__name__) for one in classes]
    module = config.get("module") or ("__main__" if key else "builtins")
    return [(module, str(key if is_function else config["class_name"]))]
