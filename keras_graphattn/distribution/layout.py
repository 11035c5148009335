"""Which weights of a model are shared out over a mesh of devices, and which are whole on each.

A layout never changes a number: XLA puts in whatever exchange is needed. It decides about memory
and about how much is exchanged. The rules are those of Megatron: attention is split over its
heads, a feed-forward network over its hidden units, so that a block needs one sum over devices
after its attention and one after its feed-forward network.
"""

import math
import re
import warnings
from collections.abc import Sequence
from typing import Any

import keras

from keras_graphattn.checks import distribution as arguments
from keras_graphattn.distribution.table import Row, Table
from keras_graphattn.feature_maps import Favor
from keras_graphattn.hub.sites import walk
from keras_graphattn.layers.masked_kernel_attention import MaskedKernelAttention
from keras_graphattn.masks.mask import Mask

LARGE = 2**14  # entries; smaller matrices outside attention are not worth an exchange
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
    """A layout for every weight of a model, for `keras.distribution.ModelParallel`.

    Projections to and from attention heads (`query`, `key`, `value`, `attention_output`, and
    `gate`, `singular`, random features of layers that have them) are split over heads, in layers
    of this package, of Keras and of KerasHub. Large matrices of `Dense`, `EinsumDense`,
    `Embedding` and convolution layers are split along the longer of their last two axes that can
    be shared evenly: a feed-forward network over its hidden units, an embedding over its
    vocabulary.
    Everything else is whole on every device: coefficients of filters, weights of masks, norms.

    The rules are regular expressions that fit the names of another instance of the same model as
    well, so that it can be built within the distribution's scope; `check_layout_map` tells
    whether they do. A model that exists already is placed by `distribute`.

    Args:
        model: A built model or layer. Converted models count with the layers they have now.
        device_mesh: A `keras.distribution.DeviceMesh`.
        axis: The axis of the mesh that weights are split over.
        replicate: Regular expressions, searched for in the paths of weights: those that match
            stay whole.
        large: Number of entries from which a matrix outside attention is split.

    Returns:
        A `keras.distribution.LayoutMap`. Each of its rules matches at least one weight, and no
        weight matches two.

    Raises:
        ValueError: On another backend than JAX, where Keras has no model parallelism; for a model
            that is not built; for an axis that the mesh lacks; for an entry of `replicate` that
            matches nothing; and where heads, or both axes of a large matrix, cannot be shared
            evenly among the devices of the axis.

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
    arguments.check_backend()
    arguments.built("model", model, {})
    arguments.mesh("device_mesh", device_mesh, {})
    arguments.axis_of(device_mesh)("axis", axis, {})
    arguments.paths_in(model)("replicate", replicate, {})
    arguments.large("large", large, {})
    devices = _size_of(device_mesh, axis)
    wanted: dict[str, Axes] = {}
    for layer in walk(model):
        for variable, axes in _layouts_of(layer, devices, axis, replicate, large):
            if wanted.setdefault(variable.path, axes) != axes:
                raise ValueError(
                    f"Two weights have the path {variable.path!r} and need different layouts. Give "
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
    """Whether the rules of a layout map are for this model.

    Args:
        model: A built model or layer.
        rules: A `keras.distribution.LayoutMap`, of `layout_map` or written by hand.
        replicate: Regular expressions of weights that are meant to be whole.
        large: Number of entries from which a matrix that no rule matches is warned of.

    Returns:
        A table of all weights: path, shape, the axes of the mesh, entries on each device.

    Raises:
        ValueError: If a rule matches no weight, if a weight matches several rules, or if a rule
            has another rank than a weight that it matches, or more devices than can share it
            evenly, or an axis of the mesh twice; for an entry of `replicate` that matches nothing.

    Warns:
        UserWarning: For each large matrix that no rule matches, nor `replicate`.
    """
    arguments.built("model", model, {})
    arguments.rules_on()("rules", rules, {})
    arguments.paths_in(model)("replicate", replicate, {})
    arguments.large("large", large, {})
    unused = set(rules)
    masks = {id(v) for layer in walk(model) if isinstance(layer, Mask) for v in layer.variables}
    rows, whole = [], []
    for variable in model.variables:
        layout = rules[variable.path]
        shape = tuple(int(size) for size in variable.shape)
        axes = (None,) * len(shape) if layout is None else tuple(layout.axes)
        if len(axes) != len(shape):
            raise ValueError(
                f"`rules` give {variable.path!r} {len(axes)} axes: {axes}. Received a weight of "
                f"shape {shape}."
            )
        for name in list(unused):
            if name == variable.path or re.fullmatch(name, variable.path):
                unused.discard(name)
        named = [axis for axis in axes if axis is not None]
        if len(set(named)) < len(named):
            raise ValueError(
                f"`rules` give {variable.path!r} an axis of the mesh twice. Received: {axes}"
            )
        parts = [1 if a is None else _size_of(layout.device_mesh, a) for a in axes]
        if any(size % devices for size, devices in zip(shape, parts, strict=True)):
            raise ValueError(
                f"`rules` give {variable.path!r} the axes {axes}, which are {parts} devices. "
                f"Received a weight of shape {shape}, which they cannot share evenly."
            )
        is_meant = id(variable) in masks or _matches(variable.path, replicate)
        if layout is None and _is_large(shape, large) and not is_meant:
            whole.append(f"{variable.path} {shape}")
        rows.append(Row(variable.path, shape, axes, math.prod(shape) // math.prod(parts)))
    if unused:
        raise ValueError(
            f"These rules of the layout map match no weight of '{model.name}': {sorted(unused)}. "
            "Its weights would stay whole in silence. Make the map from a model whose layers have "
            f"the same names; here they are like {[row.path for row in rows[:3]]}."
        )
    if whole:
        warnings.warn(
            "These large matrices are whole on every device, since no rule is for them: "
            f"{'; '.join(whole)}. Add rules of your own, or name them in `replicate`.",
            stacklevel=3,
        )
    return Table(rows)


def _layouts_of(
    layer: Any, devices: int, axis: str, replicate: Sequence[str], large: int
) -> list[tuple[Any, Axes]]:
    """The weights of one layer, not of its sublayers, that are split, with their layouts."""
    if isinstance(layer, keras.layers.EinsumDense) and layer.built:
        letters = _head_letter(layer.equation)
        if letters is not None:
            return _of_heads(layer, letters, devices, axis, replicate)
    if isinstance(layer, MaskedKernelAttention) and isinstance(layer.feature_map, Favor):
        is_whole = _matches(layer.directions.path, replicate)  # (N, H, m); N as in the kernels
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
        bias = getattr(layer, "bias", None)
        if at == len(shape) - 1 and bias is not None and tuple(bias.shape) == shape[-1:]:
            found.append((bias, (axis,)))
    return [(variable, axes) for variable, axes in found if not _matches(variable.path, replicate)]


def _head_letter(equation: str) -> tuple[str, str, str] | None:
    """Of a projection to or from heads: its kernel's and output's letters, that of the heads.

    A projection to heads makes two axes where there was one (heads, channels), and one from heads
    makes one of two. The heads come first of the two.
    """
    inputs, kernel, outputs = re.split(",|->", equation.replace(".", "").replace(" ", ""))
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
    kernel, outputs, heads = letters
    found: list[tuple[Any, Axes]] = []
    for variable in _own_variables(layer):
        if _matches(variable.path, replicate):
            continue
        at = None
        if variable.name in SHARED_BY_HEADS and len(variable.shape) == len(kernel):
            at = kernel.index(heads)
        elif variable.name == "bias" and heads in outputs:
            first = min(outputs.index(letter) for letter in layer.bias_axes)
            at = outputs.index(heads) - first
        if at is None or at < 0:
            continue
        if int(variable.shape[at]) % devices:
            raise ValueError(
                f"{variable.path!r} has {variable.shape[at]} heads, which the {devices} devices "
                f"of the mesh axis {axis!r} cannot share evenly. Received: a weight of shape "
                f"{tuple(variable.shape)}. Make that axis a divisor of {variable.shape[at]}, and "
                f"give the other devices to another axis; or leave these weights whole with "
                f"replicate=[{re.escape(layer.path)!r}]."
            )
        found.append((variable, _only(at, len(variable.shape), axis)))
    return found


def _shared_axis(path: str, shape: tuple[int, ...], devices: int, axis: str) -> int:
    """The longer of the last two axes, the last of equal ones, that the devices can share."""
    last, other = len(shape) - 1, len(shape) - 2
    for at in (last, other) if shape[last] >= shape[other] else (other, last):
        if shape[at] % devices == 0:
            return at
    raise ValueError(
        f"Neither of the last two axes of {path!r} can be shared evenly among the {devices} "
        f"devices of the mesh axis {axis!r}. Received: a weight of shape {shape}. Take another "
        f"mesh, pad the size, or leave the weight whole with replicate=[{re.escape(path)!r}]."
    )


def _patterns(model: Any, wanted: dict[str, Axes]) -> dict[str, Axes]:
    """Rules for numbered names at once, where all that they match is to be split alike."""
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
    """A regular expression for a name with other numbers in it, or at its end."""
    stem = re.sub(r"_\d+$", "", name)
    return re.sub(r"\d+", lambda _: r"\d+", re.escape(stem)) + r"(_\d+)?"


def _own_variables(layer: Any) -> list[Any]:
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
