"""`python -m keras_graphattn.export FILE PATH [MODULE ...]`: makes a SavedModel of a file."""

import argparse
import importlib
import json
from pathlib import Path

import keras

import keras_graphattn  # noqa: F401  registers the classes
from keras_graphattn.export.saved_model import write_graph
from keras_graphattn.export.signature import DEFAULT


def main() -> None:
    """Imports each MODULE, loads FILE in safe mode, and writes the SavedModel to PATH."""
    parser = argparse.ArgumentParser(prog="python -m keras_graphattn.export", description=__doc__)
    parser.add_argument("file", type=Path, help="a model saved by Keras")
    parser.add_argument("path", type=Path, help="the folder to write")
    parser.add_argument("modules", nargs="*", help="modules that register the model's classes")
    parser.add_argument(
        "--signature",
        type=json.loads,
        default=json.dumps(DEFAULT),  # argparse reads it as if it were given
        help="the argument `signature` of `export_saved_model`, as JSON",
    )
    arguments = parser.parse_args()
    for module in arguments.modules:
        importlib.import_module(module)
    model = keras.saving.load_model(arguments.file, compile=False, safe_mode=True)
    write_graph(model, arguments.path, arguments.signature)


if __name__ == "__main__":
    main()
