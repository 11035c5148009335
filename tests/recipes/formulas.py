"""Layers and models of the recipes against formulas in float64, and what the formulas share."""

import keras
import torch

from tests.numerics import (
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)


def weights_of(layer):
    """The trained weights by their paths in the layer or in the model."""
    variables = {variable.path: variable for variable in layer.trainable_variables}
    if isinstance(layer, keras.Model):
        return variables
    return {path.partition("/")[2]: variable for path, variable in variables.items()}


def assert_is_formula(layer, formula, inputs, *others, bounds=(1e-5, 3e-5)):
    """The layer's values and gradients are those of `formula(*inputs, weights)`.

    Gradients are for the inputs and for the weights, which the formula gets by their names;
    `others` are further arguments of the call, without gradients.
    """
    weights, count = weights_of(layer), len(inputs)
    arrays = [*inputs, *map(to_numpy, weights.values())]

    def naive(*arrays):
        return formula(*arrays[:count], dict(zip(weights, arrays[count:], strict=True)))

    value, gradients = with_gradients(layer, inputs, *others)
    expected, expected_gradients = reference_value_and_gradients(naive, *arrays)
    assert_close(value, expected, bounds[0])
    expected_gradients = dict(zip(gradients, expected_gradients.values(), strict=True))
    assert_all_close(gradients, expected_gradients, bounds[1])


def with_gradients(layer, inputs, *others):
    """The layer's outputs, and its gradients for the inputs and the weights, by their names."""
    weights, count = weights_of(layer), len(inputs)

    def outputs(*arrays):
        arguments = (*arrays[:count], *others)
        return layer.stateless_call(arrays[count:], layer.non_trainable_variables, *arguments)[0]

    value, gradients = value_and_gradients(outputs, *inputs, *map(to_numpy, weights.values()))
    names = [*(f"input {number}" for number in range(count)), *weights]
    return value, dict(zip(names, gradients.values(), strict=True))


def dense(x, weights, name):
    return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]


def in_heads(x, weights, name):
    """(B, T, d) -> (B, N, T, H)."""
    heads = torch.einsum("btd,dnh->bnth", x, weights[f"{name}/kernel"])
    return heads + weights[f"{name}/bias"][:, None]


def joined(heads, weights, name):
    """(B, N, T, H) -> (B, T, d)."""
    kernel, bias = weights[f"{name}/kernel"], weights[f"{name}/bias"]
    return torch.einsum("bnth,nhd->btd", heads, kernel) + bias


def projections(x, weights, prefix=""):
    return (in_heads(x, weights, f"{prefix}{part}") for part in ("query", "key", "value"))


def filtered(a, weights, order, prefix=""):
    """GFSA's filter of A; A itself without an order."""
    if order is None:
        return a
    w_0, w_1, w_k = (
        weights[f"{prefix}{name}_coefficient"][:, None, None]
        for name in ("identity", "linear", "power")
    )
    identity = torch.eye(a.shape[-1], dtype=a.dtype)
    return w_0 * identity + w_1 * a + w_k * (a + (order - 1) * (a @ a - a))


def talking_heads(x, weights, order, prefix=""):
    """Attention whose heads are mixed before and after the softmax."""

    def mixed(scores, name):
        kernel, bias = weights[f"{prefix}{name}/kernel"], weights[f"{prefix}{name}/bias"]
        return torch.einsum("bnts,nm->bmts", scores, kernel) + bias.reshape(-1, 1, 1)

    query, key, value = projections(x, weights, prefix)
    scores = mixed(query @ key.transpose(-1, -2) / key.shape[-1] ** 0.5, "mix_before")
    a = filtered(mixed(torch.softmax(scores, dim=-1), "mix_after"), weights, order, prefix)
    return joined(a @ value, weights, f"{prefix}attention_output")


def normed(x, weights, name):
    x = x - x.mean(dim=-1, keepdim=True)
    x = x / (x.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
    return x * weights[f"{name}_norm/gamma"] + weights[f"{name}_norm/beta"]


def feed_forward(x, weights, name):
    return dense(
        torch.nn.functional.gelu(dense(x, weights, f"{name}_hidden")), weights, f"{name}_output"
    )


def patches(images, weights, side):
    """Linear maps of the patches of 2 x 2 pixels, row by row: (B, side^2, d)."""
    batch, channels = images.shape[0], images.shape[-1]
    pixels = images.reshape(batch, side, 2, side, 2, channels).permute(0, 1, 3, 2, 4, 5)
    kernel = weights["patches/kernel"].flatten(0, 2)
    return pixels.reshape(batch, side * side, -1) @ kernel + weights["patches/bias"]
