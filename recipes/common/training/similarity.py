"""How alike the tokens of a model are by depth, in models that are not made here."""

from typing import Any

import keras

from keras_graphattn.analysis import inspect_smoothing


def similarity_by_depth(model: keras.Model, inputs: dict[str, Any]) -> list[float]:
    """Mean token similarity, before the first block and after each, without padding.

    The blocks are those that `inspect_smoothing` finds. The list is empty where it finds no tokens
    between them, as in windows.

    Args:
        model: A model whose blocks have attention.
        inputs: Its inputs, arrays by name.
    """
    measured = inspect_smoothing(model, inputs, max_sequences=1).layers
    places = [measured[0].before, *(layer.block for layer in measured)]
    return [] if None in places else [place.cosine for place in places]
