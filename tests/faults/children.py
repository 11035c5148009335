"""What the processes that get killed do: train the tiny recipe, export versions one by one."""

import os
from pathlib import Path


def train(arguments, done):
    """The recipe's command, quietly; leaves its exit code in the file `done`."""
    from recipes.time_series.__main__ import RECIPE

    with open(os.devnull, "w") as silence:
        os.dup2(silence.fileno(), 1)
        code = RECIPE.main(arguments)
    Path(done).write_text(str(code))


def export(file, directory, count):
    """Exports a saved model `count` times."""
    import keras

    from keras_graphattn import export_saved_model

    model = keras.saving.load_model(file, compile=False)
    for _ in range(count):
        export_saved_model(model, directory)
