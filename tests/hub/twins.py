"""A converted layer against its formulas, in values and in all gradients."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import torch

from tests.numerics import (
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)


class LayerCase(NamedTuple):
    """One attention layer of a model, how it is called, and its formulas.

    Attributes:
        layer: The layer.
        arrays: What is differentiated beside the weights, by name.
        call: The function of `arrays`, in their order, that calls the layer.
        twin: The function of the exponents of p-LaT, which are `None` for a graph filter, of the
            weights by name, and of `arrays`: tensors of torch, float64.
        names: The weights as the twin calls them; by default their paths in the layer.
    """

    layer: keras.Layer
    arrays: dict[str, Any]
    call: Callable[..., Any]
    twin: Callable[..., Any]
    names: list[str] | None = None


def rotated(x, angles, size=1.0, interleaved=False):
    """x (..., T, H), its first 2 P features turned in pairs by angles (T, P); the others stay.

    Feature i is paired with feature i + P, or with its neighbour where they are interleaved.
    """
    count = angles.shape[-1]
    pairs = x[..., : 2 * count].unflatten(-1, (count, 2) if interleaved else (2, count))
    axis = -1 if interleaved else -2
    first, second = pairs.unbind(axis)
    cosine, sine = angles.cos() * size, angles.sin() * size
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return torch.cat([torch.stack(turned, axis).flatten(-2), x[..., 2 * count :]], dim=-1)


def projected(x, weights, name, head, heads):
    """One of the heads of a projection, (B, T, H), of tokens (B, T, d)."""
    kernel, bias = weights[f"{name}/kernel"], weights.get(f"{name}/bias")
    found = x @ kernel.reshape(kernel.shape[0], heads, -1)[:, head]
    return found if bias is None else found + bias.reshape(heads, -1)[head]


def joined(heads, weights, name):
    """The output projection of all heads, (B, T, H) each."""
    x, kernel = torch.cat(heads, dim=-1), weights[f"{name}/kernel"]
    return x @ kernel.reshape(x.shape[-1], -1) + weights.get(f"{name}/bias", torch.tensor(0.0))


def paths_of_weights(layer):
    """The layer's trainable weights by their paths in it, in their order."""
    # T5's bias is made before its layer is built, and so has a shorter path.
    return [v.path.rpartition(f"{layer.name}/")[2] for v in layer.trainable_variables]


def assert_is_twin(layer, call, twin, names=None, **inputs):
    """Values and gradients of `call(*inputs)`, which calls the layer, are those of its formulas.

    Args:
        twin: A function of the weights by name, and of the inputs: tensors of torch, float64.
        names: The weights as the twin calls them; by default their paths in the layer.
        inputs: What is differentiated beside the weights, in the order of the arguments.
    """
    names = paths_of_weights(layer) if names is None else names
    trained, count = layer.trainable_variables, len(inputs)
    frozen = [(v, v.value) for v in layer.non_trainable_variables]

    def ours(*given):
        pairs = list(zip(trained, given[count:], strict=True))
        with keras.StatelessScope(state_mapping=pairs + frozen):
            return call(*given[:count])

    def theirs(*given):
        return twin(dict(zip(names, given[count:], strict=True)), *given[:count])

    arrays = (*inputs.values(), *(to_numpy(v) for v in trained))
    value, gradients = value_and_gradients(ours, *arrays)
    expected, right = reference_value_and_gradients(theirs, *arrays)
    assert_close(value, expected, 1e-5)
    called = dict(enumerate([*inputs, *names]))
    assert_all_close(
        {called[i]: g for i, g in gradients.items()}, {called[i]: g for i, g in right.items()}, 1e-5
    )
