"""Export from a backend that makes no TensorFlow graph: by file, in a TensorFlow process."""

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
# Imported anyway, or bases of layers with nothing to register
KNOWN = ("keras", "keras_graphattn", "tensorflow", "torch", "builtins", "typing", "abc")


def write_graph_through_tensorflow(model: Model, path: Path, signature: Any = DEFAULT) -> None:
    """Writes a SavedModel of a model of any backend, in a process of its own.

    The model is saved beside `path` and loaded under safe mode by
    `python -m keras_graphattn.export` with the TensorFlow backend. That process sees no GPU,
    which belongs to this one, and imports the modules that define the model's own classes.

    Args:
        model: A built Functional or Sequential model.
        path: Folder to write, which must not exist.
        signature: As in `export_saved_model`.

    Raises:
        ValueError: If a class or function of the model is defined in `__main__`.
        RuntimeError: If the process fails; the message carries that of its last exception.
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
    return int(value) if isinstance(value, np.integer) else dict(value)


def _summary(printed: str) -> str:
    """The message of the last exception, without its traceback; else the last lines."""
    lines = [line for line in printed.splitlines() if line.strip()]
    raised = [i for i, line in enumerate(lines) if re.match(r"[\w.]+(Error|Exception)\b", line)]
    lines = lines[raised[-1] :][:SUMMARY_LINES] if raised else lines[-SUMMARY_LINES:]
    return "\n".join(
        line if len(line) <= SUMMARY_WIDTH else line[:SUMMARY_WIDTH] + " ..." for line in lines
    )


def defining_modules(model: Model) -> list[str]:
    """The modules, besides Keras and this package, that define what a model's config names.

    Args:
        model: A model that can be saved.

    Returns:
        Names of modules, all of them imported already.

    Raises:
        ValueError: If one of them is `__main__`, which no other process can import.

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
            "`__main__`: the TensorFlow process that exports it cannot import that. Move the "
            "definition to a module and import it from there."
        )
    return sorted(name for name in found if name in sys.modules)


def _collect(config: Any, found: dict[str, str]) -> None:
    """Adds module -> name of each serialised class or function, training (`compile`) apart."""
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
    """Module and name of a serialised class or function, and of the classes it derives from.

    A converted model's class is registered where the module of its plain class is imported.
    Keras writes no module for `__main__`, and `builtins` for registered functions.
    """
    is_function = config["class_name"] == "function"
    key = config["config"] if is_function else config.get("registered_name")
    registered = keras.saving.get_registered_object(key) if isinstance(key, str) else None
    if registered is not None:
        classes = registered.__mro__ if isinstance(registered, type) else [registered]
        return [(one.__module__, one.__name__) for one in classes]
    module = config.get("module") or ("__main__" if key else "builtins")
    return [(module, str(key if is_function else config["class_name"]))]
