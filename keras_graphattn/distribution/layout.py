"""Layouts: which weights of a model are split over a mesh of devices, and how.

A layout changes no results, because XLA adds the communication that is needed. It changes the
memory per device and the amount of communication. The rules are those of Megatron: attention is
split over its heads, and a feed-forward network over its hidden units. Then a block needs only two
sums over devices: one after its attention and one after its feed-forward network.
"""

import math
import re
import warnings
from collections.abc import Sequence
from typing import Any

import keras

from keras_graphattn.distribution.checks import (
    axis_of,
    built,
    check_backend,
    mesh,
    paths_in,
    rules_on,
    size_of_matrix,
)
from keras_graphattn.distribution.table import Row, Table
from keras_graphattn.feature_maps import Favor
from keras_graphattn.keras_internals import walk
from keras_graphattn.layers.masked_kernel_attention import MaskedKernelAttention
from keras_graphattn.masks.mask import Mask

LARGE = 2**14  # entries; for smaller matrices outside attention, communication costs too much
SHARED_BY_HEADS = ("kernel", "lora_kernel_a")

Axes = tuple[str | None, ...]


def layout_map(
    model: Any,
    device_mesh: Any,
    axis: str = "model",
    *,
    replicate: Sequence[str] = (),
    large: int = LARGE,
) -> Any:
    """Makes a layout for every weight of a model, for `keras.distribution.ModelParallel`.

    Projections to and from attention heads are split over heads, in layers of this package, of
    Keras and of KerasHub. These are `query`, `key`, `value` and `attention_output`, and where a
    layer has them `gate`, `singular` and the random features. Large matrices of `Dense`,
    `EinsumDense`, `Embedding` and convolution layers are split along one of their last two axes:
    the longer one that the devices can divide evenly. So a feed-forward network is split over its
    hidden units, and an embedding over its vocabulary. All other weights are whole on every
    device, such as coefficients of filters, weights of masks, and norms.

    The rules are regular expressions. They also match the names in another instance of the same
    model, so you can build that instance within the distribution's scope. `check_layout_map`
    checks that they match. To place a model that already exists, use `distribute`.

    Args:
        model: A built model or layer. For a converted model, the current layers count.
        device_mesh: A `keras.distribution.DeviceMesh`.
        axis: The axis of the mesh over which weights are split.
        replicate: Regular expressions that are searched for in the paths of weights. Weights that
            match stay whole.
        large: A matrix outside attention is split if it has at least this number of entries.

    Returns:
        A `keras.distribution.LayoutMap`. Each of its rules matches at least one weight, and no
        weight matches two rules.

    Raises:
        ValueError: If the backend is not JAX, because only there Keras has model parallelism. If
            the model is not built, the mesh has no such axis, or an entry of `replicate` matches
            nothing. If the devices of the axis cannot evenly divide the heads, or either axis of
            a large matrix.

    Example:

    >>> if keras.backend.backend() == "jax":
    ...     layer = GraphFilterAttention(num_heads=2, key_dim=8, name="attention")
    ...     outputs = layer(keras.random.normal((1, 4, 16)))
    ...     mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), ["cpu:0"])
    ...     layouts = layout_map(layer, mesh)
    ...     assert layouts["attention/query/kernel"].axes == (None, "model", None)
    ...     assert layouts["attention/power_coefficient"] is None

    Source: Shoeybi et al., "Megatron-LM", arXiv 1909.08053, Section 3, for the split of a block.
    """
    check_backend()
    built("model", model, {})
    mesh("device_mesh", device_mesh, {})
    axis_of(device_mesh)("axis", axis, {})
    paths_in(model)("replicate", replicate, {})
    size_of_matrix("large", large, {})
    devices = _size_of(device_mesh, axis)
    wanted: dict[str, Axes] = {}
    for layer in walk(model):
        for variable, axes in _layouts_of(layer, devices, axis, replicate, large):
            if wanted.setdefault(variable.path, axes) != axes:
                raise ValueError(
                    f"Two weights have the path {variable.path!r} but need different layouts. Give "
                    "their layers different names."
                )
    rules = keras.distribution.LayoutMap(device_mesh)
    for pattern, axes in _patterns(model, wanted).items():
        rules[pattern] = axes
    check_layout_map(model, rules, replicate=replicate, large=large)
    return rules


def check_layout_map(
    model: Any, rules: Any, *, replicate: Sequence[str] = (), large: int = LARGE
) -> Table:
    """Checks that the rules of a layout map match this model.

    Args:
        model: A built model or layer.
        rules: A `keras.distribution.LayoutMap`, from `layout_map` or written by hand.
        replicate: Regular expressions for weights that are meant to be whole.
        large: A matrix that no rule matches causes a warning if it has at least this number of
            entries.

    Returns:
        A table of all weights: path, shape, axes of the mesh, and entries on each device.

    Raises:
        ValueError: If a rule matches no weight, or a weight matches several rules. If a rule's
            rank differs from that of a weight that it matches, its devices cannot divide the
            weight evenly, or it uses an axis of the mesh twice. If an entry of `replicate`
            matches nothing.

    Warns:
        UserWarning: If neither a rule nor `replicate` matches a large matrix.
    """
    built("model", model, {})
    rules_on()("rules", rules, {})
    paths_in(model)("replicate", replicate, {})
    size_of_matrix("large", large, {})
    unused = set(rules)
    masks = {id(v) for layer in walk(model) if isinstance(layer, Mask) for v in layer.variables}
    rows, whole = [], []
    for variable in model.variables:
        layout = rules[variable.path]
        shape = tuple(int(size) for size in variable.shape)
        axes = (None,) * len(shape) if layout is None else tuple(layout.axes)
        if len(axes) != len(shape):
            raise ValueError(
                f"`rules` give {variable.path!r} {len(axes)} axes: {axes}. Expected one axis or "
                f"None for each axis of the weight. Received a weight of shape {shape}."
            )
        for name in list(unused):
            if name == variable.path or re.fullmatch(name, variable.path):
                unused.discard(name)
        named = [axis for axis in axes if axis is not None]
        if len(set(named)) < len(named):
            raise ValueError(
                f"`rules` give {variable.path!r} an axis of the mesh twice. Received: {axes}. Use "
                "each axis at most once."
            )
        parts = [1 if a is None else _size_of(layout.device_mesh, a) for a in axes]
        if any(size % devices for size, devices in zip(shape, parts, strict=True)):
            raise ValueError(
                f"`rules` give {variable.path!r} the axes {axes}, which are {parts} devices. "
                f"Received a weight of shape {shape}, which they cannot divide evenly. Split "
                "another axis, or leave the weight whole."
            )
        is_meant = id(variable) in masks or _matches(variable.path, replicate)
        if layout is None and _is_large(shape, large) and not is_meant:
            whole.append(f"{variable.path} {shape}")
        rows.append(Row(variable.path, shape, axes, math.prod(shape) // math.prod(parts)))
    if unused:
        raise ValueError(
            f"These rules of the layout map match no weight of '{model.name}': {sorted(unused)}. "
            "Without an error, its weights would silently stay whole. Make the map from a model "
            "whose layers have the same names. Here the first weights are "
            f"{[row.path for row in rows[:3]]}."
        )
    if whole:
        warnings.warn(
            "These large matrices are whole on every device, because no rule matches them: "
            f"{'; '.join(whole)}. Add rules for them, or name them in `replicate`.",
            stacklevel=3,
        )
    return Table(rows)


def _layouts_of(
    layer: Any, devices: int, axis: str, replicate: Sequence[str], large: int
) -> list[tuple[Any, Axes]]:
    """Returns the weights of one layer that are split, with their layouts; no sublayers."""
    if isinstance(layer, keras.layers.EinsumDense) and layer.built:
        letters = _head_letter(layer.equation)
        if letters is not None:
            return _of_heads(layer, letters, devices, axis, replicate)
    if isinstance(layer, MaskedKernelAttention) and isinstance(layer.feature_map, Favor):
        is_whole = _matches(layer.directions.path, replicate)  # (N, H, m), split over N
        return [] if is_whole else [(layer.directions, (axis, None, None))]
    is_known = isinstance(layer, (keras.layers.Dense, keras.layers.EinsumDense))
    is_known = is_known or isinstance(layer, keras.layers.Embedding)
    is_known = is_known or any("BaseConv" in base.__name__ for base in type(layer).__mro__)
    if not is_known and "Embedding" not in type(layer).__name__:
        return []
    found: list[tuple[Any, Axes]] = []
    for variable in _own_variables(layer):
        shape = tuple(int(size) for size in variable.shape)
        if not _is_large(shape, large) or _matches(variable.path, replicate):
            continue
        at = _shared_axis(variable.path, shape, devices, axis)
        found.append((variable, _only(at, len(shape), axis)))
        # A bias of the axis that is split must be split with it.
        bias = getattr(layer, "bias", None)
        if at == len(shape) - 1 and bias is not None and tuple(bias.shape) == shape[-1:]:
            found.append((bias, (axis,)))
    return [(variable, axes) for variable, axes in found if not _matches(variable.path, replicate)]


def _head_letter(equation: str) -> tuple[str, str, str] | None:
    """Returns the letters of the kernel, of the output and of the heads in an equation, if any.

    A projection to heads replaces one axis by two (heads, channels). A projection from heads
    replaces these two by one. The heads are always the first of the two. For all other equations
    the result is `None`.
    """
    inputs, kernel, outputs = re.split(",|->", equation.replace(".", "").replace(" ", ""))
    # For example "abc,cde->abde": made are d and e, and c is summed.
    made = [letter for letter in outputs if letter in kernel and letter not in inputs]
    summed = [letter for letter in inputs if letter in kernel and letter not in outputs]
    if len(made) == 2 and len(summed) == 1:
        return kernel, outputs, made[0]
    if len(made) == 1 and len(summed) == 2:
        return kernel, outputs, summed[0]
    return None


def _of_heads(
    layer: Any,
    letters: tuple[str, str, str],
    devices: int,
    axis: str,
    replicate: Sequence[str],
) -> list[tuple[Any, Axes]]:
    """Returns the weights of a projection to or from heads that are split over heads."""
    kernel, outputs, heads = letters
    found: list[tuple[Any, Axes]] = []
    for variable in _own_variables(layer):
        if _matches(variable.path, replicate):
            continue
        at = None
        if variable.name in SHARED_BY_HEADS and len(variable.shape) == len(kernel):
            at = kernel.index(heads)
        elif variable.name == "bias" and heads in outputs:
            # The bias has only the last axes of the output.
            first = min(outputs.index(letter) for letter in layer.bias_axes)
            at = outputs.index(heads) - first
        if at is None or at < 0:
            continue
        if int(variable.shape[at]) % devices:
            raise ValueError(
                f"{variable.path!r} has {variable.shape[at]} heads, which the {devices} devices "
                f"of the mesh axis {axis!r} cannot divide evenly. Received: a weight of shape "
                f"{tuple(variable.shape)}. Choose a size of that axis that divides "
                f"{variable.shape[at]}, and give the other devices to another axis. Or leave these "
                f"weights whole with replicate=[{re.escape(layer.path)!r}]."
            )
        found.append((variable, _only(at, len(variable.shape), axis)))
    return found


def _shared_axis(path: str, shape: tuple[int, ...], devices: int, axis: str) -> int:
    """Returns the longer of the last two axes that the devices can divide evenly.

    If both have the same size, it is the last one.
    """
    last, other = len(shape) - 1, len(shape) - 2
    for at in (last, other) if shape[last] >= shape[other] else (other, last):
        if shape[at] % devices == 0:
            return at
    raise ValueError(
        f"The {devices} devices of the mesh axis {axis!r} cannot divide either of the last two "
        f"axes of {path!r} evenly. Received: a weight of shape {shape}. Use another mesh, pad the "
        f"size, or leave the weight whole with replicate=[{re.escape(path)!r}]."
    )


def _patterns(model: Any, wanted: dict[str, Axes]) -> dict[str, Axes]:
    """Returns one rule for names that differ only in numbers, if they have the same layout."""
    rules: dict[str, Axes] = {}
    paths = {variable.path for variable in model.variables}
    for path, axes in wanted.items():
        *layers, name = path.split("/")
        pattern = "/".join([*map(_numbered, layers), re.escape(name)])
        alike = [other for other in paths if re.fullmatch(pattern, other)]
        if all(wanted.get(other) == axes for other in alike):
            rules[pattern] = axes
        else:
            rules[re.escape(path)] = axes
    return rules


def _numbered(name: str) -> str:
    """Returns a regular expression that matches a name with any numbers in it or at its end."""
    stem = re.sub(r"_\d+$", "", name)
    return re.sub(r"\d+", lambda _: r"\d+", re.escape(stem)) + r"(_\d+)?"


def _own_variables(layer: Any) -> list[Any]:
    """Returns the variables of a layer without those of its sublayers."""
    within = {id(v) for child in walk(layer) if child is not layer for v in child.variables}
    return [variable for variable in layer.variables if id(variable) not in within]


def _only(at: int, rank: int, axis: str) -> Axes:
    return tuple(axis if place == at else None for place in range(rank))


def _size_of(device_mesh: Any, axis: str) -> int:
    return int(device_mesh.shape[list(device_mesh.axis_names).index(axis)])


def _is_large(shape: tuple[int, ...], large: int) -> bool:
    return len(shape) >= 2 and math.prod(shape) >= large


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(re.search(pattern, path) for pattern in patterns)
