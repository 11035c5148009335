"""What layers and masks can do: one function for each column of the table of capabilities.

Each takes a `Row` and an empty folder. It fails where the ability is broken, raises `Refused` where
the layer says that it does not have it, and skips where the question has no meaning.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest

from keras_graphattn import layers, masks
from tests.layers.decoding import decoded, initial_state
from tests.layers.unseen_cases import (
    BATCH,
    BIASES,
    CASES,
    CHANNELS,
    HEADS,
    LENGTH,
    MASKS,
    SIZE,
    mask_of,
    scene,
)
from tests.numerics import dtype_policy, randomise, relative_rms, to_numpy

TOKENS = np.random.default_rng(1).standard_normal((BATCH, LENGTH, CHANNELS)).astype("float32")
# How far half precision may be from float32, as relative root mean square
NEAR = {"bfloat16": 0.05, "float16": 0.01}


class Row(NamedTuple):
    make: Callable[[], Any]
    exported: str | None  # its case in tests/export/layer_cases.py

    def built(self) -> tuple[Any, dict[str, Any]]:
        """The layer with random weights, and the arguments that its call needs."""
        keras.utils.set_random_seed(0)
        layer = self.make()
        layer.build(TOKENS.shape)
        randomise(layer)
        return layer, scene("", "example", layer).call


class Refused(Exception):
    """The layer raises an error that says that it does not have the ability."""


LAYERS = {
    "`GraphFilterAttention`": Row(CASES["graph filter"].make, "gfa"),
    "`GraphFilterAttention`, blockwise": Row(
        CASES["graph filter, blockwise"].make, "gfa_blockwise"
    ),
    "`GraphFilterAttention`, fused": Row(CASES["graph filter, fused"].make, "gfa_fused"),
    "`DifferentialAttention`": Row(CASES["differential"].make, "differential"),
    "`DifferentialAttention`, version 2": Row(
        CASES["differential, version 2"].make, "differential_2"
    ),
    "`PLaplacianAttention`": Row(lambda: layers.PLaplacianAttention(HEADS, SIZE), "p_laplacian"),
    "`AttentiveGraphFilter`": Row(CASES["AGF"].make, "agf"),
    "`AttentiveGraphFilter`, causal": Row(CASES["AGF, causal"].make, "agf_causal"),
    "`GatedDeltaRule`": Row(CASES["delta rule"].make, "delta_rule"),
    "`MaskedKernelAttention`": Row(CASES["kernel, no mask, ReLU"].make, "kernel"),
    "`MaskedKernelAttention`, with a filter": Row(
        CASES["kernel, no mask, filter"].make, "kernel_filtered"
    ),
    "`EdgeAttention`": Row(CASES["edges, in the layer"].make, "edges"),
    "`EdgeAttention`, per example": Row(CASES["edges, per example"].make, "edges_per_example"),
    "`GraphKernelAttention`": Row(CASES["GKAT, RandomWalk"].make, "gkat"),
    "`GraphKernelAttention`, factored": Row(
        CASES["GKAT, factored, RandomWalk per example"].make, "gkat_factored"
    ),
    "`ScaledHighFrequencyAttention`": Row(CASES["high frequencies"].make, "high_frequency"),
    "`ContraNorm`": Row(CASES["ContraNorm"].make, "contra_norm"),
    "`ContraNormAttention`": Row(CASES["ContraNorm attention"].make, "contra_norm_attention"),
    **{
        f"`{kind.__name__}`": Row(kind, f"{name}_pooling")
        for name, kind in (
            ("mean", layers.GraphMeanPooling),
            ("sum", layers.GraphSumPooling),
            ("max", layers.GraphMaxPooling),
        )
    },
}
EXPORTED = {
    "Causal": "kernel_causal",
    "Segments": "kernel_segments",
    "DistanceTable": "kernel_distances",
    "Entries": "kernel_entries",
    "Exponential": "kernel_exponential",
    "GatedDecay": "kernel_gated",
    "ExponentialPositions": "kernel_positions",
    "LowRank": "kernel_low_rank",
    "StochasticPositions": "kernel_stochastic",
    "Toeplitz": "kernel_toeplitz_auto",
    "BlockToeplitz": "kernel_grid",
    "Hypercube": "kernel_hypercube",
    "Tree": "kernel_tree",
    "Tree per example": "kernel_tree_per_example",
    "GraphDiffusion": "kernel_diffusion",
    "GraphDiffusion per example": "kernel_diffusion_per_example",
    "RandomWalk": "kernel_walks",
    "RandomWalk per example": "kernel_walks_per_example",
    "GraphRandomFeatures": "kernel_random_features",
    "Product, segments": "kernel_packed",
}


def _under(make: Callable[[], masks.Mask]) -> Callable[[], Any]:
    return lambda: layers.MaskedKernelAttention(HEADS, SIZE, mask=make(), feature_map="favor")


def _label(name: str) -> str:
    """`Tree per example` becomes "`Tree`, per example"."""
    kind, _, variant = name.replace(" per example", ", per example").partition(", ")
    return f"`{kind}`, {variant}" if variant else f"`{kind}`"


UNDER_MASKS = {
    _label(name): Row(_under(make), EXPORTED.get(name)) for name, (make, _) in MASKS.items()
}
WITH_BIASES = {
    f"`{name}`": Row(
        lambda make=make: layers.GraphFilterAttention(HEADS, SIZE, bias=make()),
        f"gfa_{name}" if name in ("HopDecay", "RelativePositions", "Sum") else None,
    )
    for name, make in BIASES.items()
}
ROWS = {**LAYERS, **UNDER_MASKS, **WITH_BIASES}


def given_inputs(call: dict[str, Any]) -> dict[str, Any]:
    """The inputs of masks and biases of a call, by argument."""
    return {name: call[name] for name in ("mask_inputs", "bias_inputs") if name in call}


def _unchanged(
    layer: Any, call: dict[str, Any], unseen: np.ndarray, rows: np.ndarray, value: float
):
    """Whether the rows stay as they are when the unseen tokens become `value`."""
    before = to_numpy(layer(TOKENS, **call))
    after = to_numpy(layer(np.where(unseen[:, :, None], np.float32(value), TOKENS), **call))
    if before.ndim == 3:
        before, after = before[rows], after[rows]
    np.testing.assert_allclose(after, before, atol=1e-5 * np.abs(before).max())


def _refusing(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except ValueError as error:
        raise Refused(str(error)) from error


def _has(layer: Any, argument: str) -> None:
    if argument not in inspect.signature(layer.call).parameters:
        pytest.skip(f"{type(layer).__name__} has no `{argument}`")


def causal(row: Row, folder: Any) -> None:
    """Later tokens change nothing; the layer takes `use_causal_mask` or is causal anyway."""
    layer, call = row.built()
    _has(layer, "use_causal_mask")
    if not getattr(mask_of(layer), "is_causal", False):
        call["use_causal_mask"] = True
    late = np.repeat((np.arange(LENGTH) >= LENGTH // 2)[None], BATCH, axis=0)
    _refusing(lambda: layer(TOKENS, **call))
    _unchanged(layer, call, late, ~late, 30.0)


def padding(row: Row, folder: Any) -> None:
    """Padded tokens change nothing, even NaN."""
    layer, _ = row.built()
    found = scene("", "padding", layer)
    _refusing(lambda: layer(TOKENS, **found.call))
    _unchanged(layer, found.call, found.unseen, found.rows, np.nan)


def pairs(row: Row, folder: Any) -> None:
    """An `attention_mask` of pairs hides tokens from some rows."""
    layer, _ = row.built()
    _has(layer, "attention_mask")
    found = scene("", "pairs", layer)
    _refusing(lambda: layer(TOKENS, **found.call))
    _unchanged(layer, found.call, found.unseen, found.rows, 30.0)


def decode(row: Row, folder: Any) -> None:
    """Decoding token by token gives the rows of the causal full pass."""
    layer, call = row.built()
    if not hasattr(layer, "decode"):
        pytest.skip(f"{type(layer).__name__} has no `decode`")
    state = _refusing(lambda: initial_state(layer, BATCH, LENGTH))
    bias = {name: call[name] for name in ("bias_inputs",) if name in call}
    given = call.get("mask_inputs")
    outputs, _ = decoded(layer, TOKENS, [1] * LENGTH, None, given, state, **bias)
    expected = to_numpy(layer(TOKENS, **call, use_causal_mask=True))
    assert relative_rms(to_numpy(outputs), expected) < 1e-4


def _half(row: Row, dtype: str) -> None:
    layer, call = row.built()
    exact = to_numpy(layer(TOKENS, **call))
    with dtype_policy(f"mixed_{dtype}"):
        rounded, _ = row.built()
    rounded.set_weights(layer.get_weights())
    found = rounded(TOKENS, **call)
    assert keras.backend.standardize_dtype(found.dtype) == dtype
    assert relative_rms(to_numpy(found), exact) < NEAR[dtype]


def bfloat16(row: Row, folder: Any) -> None:
    """Under `mixed_bfloat16`, the outputs are near those of float32."""
    _half(row, "bfloat16")


def float16(row: Row, folder: Any) -> None:
    """Under `mixed_float16`, the outputs are near those of float32."""
    _half(row, "float16")


def chain(parts: list[Any], given: dict[str, Any], shape: Any = TOKENS.shape) -> Any:
    """A model of layers one after the other. Masks and biases of attention take what is given."""
    outputs = tokens = keras.Input(shape[1:], name="tokens")
    inputs = {
        name: keras.Input(np.shape(x)[1:], dtype=np.asarray(x).dtype.name, name=name)
        for name, x in given.items()
    }
    for layer in parts:
        takes = "bias_inputs" if getattr(layer, "bias", None) is not None else "mask_inputs"
        takes_inputs = inputs and not isinstance(layer, keras.layers.Dense)
        outputs = layer(outputs, **{takes: inputs} if takes_inputs else {})
    return keras.Model({"tokens": tokens, **inputs}, outputs)


def model_of(row: Row) -> tuple[Any, dict[str, Any]]:
    """A model of the layer, and its inputs."""
    layer, call = row.built()
    given = {key: x for inputs in given_inputs(call).values() for key, x in inputs.items()}
    first = keras.layers.Dense(CHANNELS, name="first")
    return chain([first, layer], given), {"tokens": TOKENS, **given}


def fit(row: Row, folder: Any) -> None:
    """A compiled step of `fit` moves every weight, or the gradient passes through."""
    model, inputs = model_of(row)
    before = [to_numpy(v) for v in model.trainable_variables]
    target = np.random.default_rng(2).standard_normal(np.shape(model(inputs))).astype("float32")
    model.compile(keras.optimizers.SGD(10.0), "mse")
    model.fit(inputs, target, batch_size=BATCH, epochs=1, verbose=0)
    for variable, old in zip(model.trainable_variables, before, strict=True):
        new = to_numpy(variable)
        assert np.isfinite(new).all(), variable.path
        if "key/bias" not in variable.path:  # a softmax does not depend on it
            assert (new != old).any(), variable.path


def keras_file(row: Row, folder: Any) -> None:
    """A model loaded from a `.keras` file gives the same outputs."""
    model, inputs = model_of(row)
    model.save(folder / "model.keras")
    again = keras.saving.load_model(folder / "model.keras")
    np.testing.assert_allclose(to_numpy(again(inputs)), to_numpy(model(inputs)), atol=1e-6)


ABILITIES = {
    "causal": causal,
    "padding": padding,
    "mask of pairs": pairs,
    "decode": decode,
    "bfloat16": bfloat16,
    "float16": float16,
    "fit": fit,
    ".keras": keras_file,
}
