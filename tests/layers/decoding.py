"""Decoding in parts, as a user does it, with a cache or with a state of fixed size."""

import keras
from keras import ops

from tests.compiling import jit


def initial_state(layer, batch, length):
    """The layer's cache for this many tokens, or its state; `None` for a layer without either."""
    if hasattr(layer, "get_initial_cache"):
        return layer.get_initial_cache(batch, length)
    return layer.get_initial_state(batch) if hasattr(layer, "get_initial_state") else None


def decoded(layer, x, sizes, mask=None, inputs=None, state=None, compiled=False, **bias):
    """The outputs of decoding `sizes` tokens at a time, and the last state."""
    step, start, outputs = jit(layer.decode) if compiled else layer.decode, 0, []
    state = initial_state(layer, len(x), x.shape[1]) if state is None else state
    shapes = [tuple(leaf.shape) for leaf in keras.tree.flatten(state)]
    for size in sizes:
        part = slice(start, start + size)
        arguments = [ops.convert_to_tensor(x[:, part]), state]
        if hasattr(layer, "get_initial_cache"):
            arguments.append(ops.convert_to_tensor(start, "int32") if compiled else start)
        arguments.append(None if mask is None else ops.convert_to_tensor(mask[:, part]))
        if inputs:
            arguments.append({name: value[:, part] for name, value in inputs.items()})
        output, state = step(*arguments, **bias)
        outputs.append(output)
        start += size
    assert start == x.shape[1]
    assert [tuple(leaf.shape) for leaf in keras.tree.flatten(state)] == shapes
    return ops.concatenate(outputs, axis=1), state
