"""Models on several devices: layouts of weights, and sequences split over a mesh (JAX).

A layout changes no results, because XLA adds the communication that is needed. It changes the
memory per device and the amount of communication. The rules are those of Megatron: attention is
split over its heads, and a feed-forward network over its hidden units. Then a block needs only two
sums over devices: one after its attention and one after its feed-forward network.
"""

import math
import re
from collections.abc import Iterator, Sequence

import keras

from keras_graphattn.checks import instance, is_list, whole
from keras_graphattn.feature_maps import Favor
from keras_graphattn.keras_internals import compiled_metrics, layouts_of, place_again, walk
from keras_graphattn.layers.kernel_base import KernelLayer
from keras_graphattn.sequence_parallel import SequenceParallel, check_backend, size_of

__all__ = ["SequenceParallel", "check_layout_map", "distribute", "layout_map"]

SHARED_BY_HEADS = ("kernel", "lora_kernel_a")
LARGE = 2**14  # entries; for smaller matrices outside attention, communication costs too much

Axes = tuple[str | None, ...]


def layout_map(
    model: keras.Layer,
    device_mesh: keras.distribution.DeviceMesh,
    axis: str = "model",
    *,
    replicate: Sequence[str] = (),
    large: int = LARGE,
) -> keras.distribution.LayoutMap:
    """Makes a layout for every weight of a model, for `keras.distribution.ModelParallel`.

    Projections to and from attention heads are split over heads, in layers of this package, of
    Keras and of KerasHub. These are the kernels of `query`, `key`, `value` and `attention_output`,
    and where a layer has them `gate`, `singular` and the random features. Large matrices of
    `Dense`, `EinsumDense` and `Embedding` layers are split along one of their last two axes: the
    longer one that the devices can divide evenly. So a feed-forward network is split over its
    hidden units, and an embedding over its vocabulary. All other weights are whole on every
    device, such as biases, coefficients of filters, weights of masks, and norms.

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
    _check_built(model)
    devices = size_of(device_mesh, "axis", axis)
    large = whole(0, below=2**63)("large", large, {})
    paths = [variable.path for variable in model.variables]
    whole_paths = _matched(replicate, paths)
    layouts: dict[str, Axes] = {}
    for layer in walk(model):
        for variable, places in _splits(layer, large):
            if variable.path in whole_paths:
                continue
            place = next((at for at in places if variable.shape[at] % devices == 0), None)
            if place is None:
                raise ValueError(
                    f"The {devices} devices of the mesh axis {axis!r} cannot evenly divide "
                    f"{variable.path!r} along its axis {' or '.join(map(str, places))}. Received: "
                    f"a weight of shape {tuple(variable.shape)}. Choose another size of that axis "
                    "of the mesh, or leave the weight whole with "
                    f"replicate=[{re.escape(variable.path)!r}]."
                )
            rank = len(variable.shape)
            layouts[variable.path] = tuple(axis if at == place else None for at in range(rank))
    rules = keras.distribution.LayoutMap(device_mesh)
    for path, axes in layouts.items():
        # one rule for names that differ only in numbers, if they have the same layout
        pattern = "/".join(map(_numbered, path.split("/")))
        alike = {layouts.get(other) for other in paths if re.fullmatch(pattern, other)}
        rule = pattern if alike == {axes} else re.escape(path)
        if rule not in list(rules):
            rules[rule] = axes
    check_layout_map(model, rules)
    return rules


def _matched(replicate: Sequence[str], paths: Sequence[str]) -> set[str]:
    """The paths that one of the regular expressions matches. Each of these must match one."""
    try:
        if not is_list(replicate):
            raise TypeError("it is no list")
        matches = {x: [path for path in paths if re.search(x, path)] for x in replicate}
    except (TypeError, re.error, OverflowError) as error:
        raise ValueError(
            f"`replicate` must be a list of regular expressions. Received: {replicate!r}: {error}"
        ) from error
    for pattern, matched in matches.items():
        if not matched:
            raise ValueError(
                f"`replicate` names {pattern!r}, which matches no weight. The first weights are "
                f"{list(paths[:3])}"
            )
    return {path for matched in matches.values() for path in matched}


def _splits(layer: keras.Layer, large: int) -> Iterator[tuple[keras.Variable, list[int]]]:
    """The weights of one layer that are split, and along which axes they can be."""
    if isinstance(layer, KernelLayer) and isinstance(layer.feature_map, Favor):
        yield layer.directions, [0]  # (N, H, m), split over N
    if not isinstance(
        layer, (keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Embedding)
    ):
        return
    heads = _heads(layer.equation) if isinstance(layer, keras.layers.EinsumDense) else None
    for variable in layer.variables:
        rank = len(variable.shape)
        if heads is not None:
            if variable.name in SHARED_BY_HEADS and rank == 3:  # not if quantised and packed
                yield variable, [heads]
        elif rank >= 2 and math.prod(variable.shape) >= large:
            last, other = rank - 1, rank - 2
            longer_last = variable.shape[last] >= variable.shape[other]
            yield variable, [last, other] if longer_last else [other, last]


def _heads(equation: str) -> int | None:
    """The axis of the heads in the kernel of a projection to or from heads, else `None`.

    Such a projection replaces one axis by two (heads, channels), or these two by one. The heads
    are always the first of the two.
    """
    inputs, kernel, outputs = re.split(",|->", equation.replace(".", "").replace(" ", ""))
    # For example "abc,cde->abde": d and e are new, and c is summed.
    made = [letter for letter in outputs if letter in kernel and letter not in inputs]
    summed = [letter for letter in inputs if letter in kernel and letter not in outputs]
    pair = {(2, 1): made, (1, 2): summed}.get((len(made), len(summed)))
    return None if pair is None or len(kernel) != 3 else kernel.index(pair[0])


def _numbered(name: str) -> str:
    """Returns a regular expression that matches a name with any numbers in it or at its end."""
    stem = re.sub(r"_\d+$", "", name)
    return re.sub(r"\d+", lambda _: r"\d+", re.escape(stem)) + r"(_\d+)?"


def check_layout_map(model: keras.Layer, rules: keras.distribution.LayoutMap) -> dict[str, Axes]:
    """Checks that each rule of a layout map matches a weight of this model.

    Keras leaves a weight whole that no rule matches, and does not say so.

    Args:
        model: A built model or layer.
        rules: A `keras.distribution.LayoutMap`, from `layout_map` or written by hand.

    Returns:
        The axes of the mesh over which each weight is split, by its path: one axis or `None` for
        each axis of the weight. Weights that are whole are left out.

    Raises:
        ValueError: If a rule matches no weight, or a weight matches several rules.
    """
    _check_built(model)
    instance(keras.distribution.LayoutMap, "a keras.distribution.LayoutMap")("rules", rules, {})
    layouts = {variable.path: rules[variable.path] for variable in model.variables}
    unused = [
        rule
        for rule in rules
        if rule not in layouts and not any(re.fullmatch(rule, path) for path in layouts)
    ]
    if unused:
        raise ValueError(
            f"These rules of the layout map match no weight of '{model.name}': {sorted(unused)}. "
            "Without an error, its weights would silently stay whole. Make the map from a model "
            "whose layers have the same names. Here the first weights are "
            f"{list(layouts)[:3]}."
        )
    return {path: tuple(layout.axes) for path, layout in layouts.items() if layout is not None}


def distribute(model: keras.Layer) -> keras.Layer:
    """Places the weights of a built model according to the current distribution, in place.

    Keras places weights when it creates them. If a model was built, loaded or converted before
    `keras.distribution.set_distribution`, all or some of its weights are on one device, and
    training fails. After this call it trains like a model that was built within the
    distribution's scope. If a model does not fit into the memory of one device, build it under
    `keras.device("cpu")` or within the scope.

    Args:
        model: A built model or layer. It may be compiled, but not trained yet.

    Returns:
        The model itself.

    Raises:
        ValueError: If the backend is not JAX, no distribution is set, a rule of its layout map
            matches no weight of the model, or the optimizer already has slot variables.

    Example:

    >>> if keras.backend.backend() == "jax":
    ...     layer = GraphFilterAttention(num_heads=2, key_dim=8)
    ...     outputs = layer(keras.random.normal((1, 4, 16)))
    ...     with keras.distribution.DataParallel().scope():
    ...         layer = distribute(layer)
    """
    check_backend()
    _check_built(model)
    distribution = keras.distribution.distribution()
    if distribution is None:
        raise ValueError(
            "No distribution is set. Call keras.distribution.set_distribution(...) first, or call "
            "this within the distribution's scope. Training needs the distribution as well."
        )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and optimizer.built:
        raise ValueError(
            f"The optimizer of '{model.name}' already has slot variables, on the devices where the "
            "weights were. Place the model before training, or compile it with a new optimizer."
        )
    rules = layouts_of(distribution)
    if rules is not None:
        check_layout_map(model, rules)
    compiled = [] if optimizer is None else list(optimizer.variables)
    compiled += getattr(model, "metrics_variables", ())
    for metric in compiled_metrics(model):
        compiled += getattr(metric, "variables", ())
    for variable in [*model.variables, *compiled]:
        place_again(variable, distribution)
    return model


def _check_built(model: keras.Layer) -> None:
    if not isinstance(model, keras.Layer) or not model.built or not model.variables:
        raise ValueError(
            f"`model` must be a built Keras model or layer, with weights. Received: "
            f"model={model!r}. Call it on data first."
        )
