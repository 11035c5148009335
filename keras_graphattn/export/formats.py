"""`check_export`: says by name what `Model.export` cannot write, before it writes a file.

The limits are those of the programs that write and run a format, for what this package asks of
them. `tests/export/test_formats.py` runs the files, and holds these limits to what it finds.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import keras

from keras_graphattn.checks import one_of
from keras_graphattn.keras_internals import walk
from keras_graphattn.layers import AttentiveGraphFilter, EdgeAttention, GatedDeltaRule
from keras_graphattn.layers.conversion_mark import ConversionMark
from keras_graphattn.layers.kernel_base import KernelLayer
from keras_graphattn.layers.token_layer import TokenLayer
from keras_graphattn.operators.p_laplacian import PLaplacian

# The backends from which Keras 3.15 writes each format
WRITERS = {
    "tf_saved_model": ("tensorflow", "jax"),
    "onnx": ("tensorflow", "jax", "torch"),
    "litert": ("tensorflow", "torch"),
    "openvino": ("tensorflow", "torch"),
    "torch": ("torch",),
}
LENGTHS, SIZES, NOTHING = "fixed lengths", "fixed sizes, also of the batch", "nothing"

BLOCKWISE, MASK_BY_BLOCKS = 'attention_path="blockwise"', 'path="blockwise"'
CHUNKED, FFT, CAUSAL = 'path="chunked"', 'path="fft"', "causal=True"
ROWS_OF_DISTANCES = "distances of values by blocks of rows"
DELTA, EDGES, SEVERAL = "its recurrence", "its edges", "several inputs"
LAYER = "the backend torch"  # any layer, where Keras has the same limit for its own
EDGE_FEATURES, EDGE_FILTER = "features of its edges", "a filter over its edges"
EDGES_OF_CALL = "`edges` of each call"
MASK_OF_EDGES, MASK_OF_PARENTS, MASK_OF_WALKS = (
    f"a mask of the `{name}` of each call" for name in ("edges", "parents", "walks")
)
TREE_PATHS = tuple(f'path="{path}"' for path in ("levels", "scan", "doubling", "depths"))
FIXES = {  # with the same weights and outputs
    BLOCKWISE: 'attention_path="dense"',
    ROWS_OF_DISTANCES: 'attention_path="dense"',
    **dict.fromkeys((MASK_BY_BLOCKS, CHUNKED, FFT, *TREE_PATHS), 'path="dense"'),
}


class Limit(NamedTuple):
    """What a format needs for layers of some form."""

    needs: str  # LENGTHS, SIZES or NOTHING
    reason: str
    forms: tuple[str, ...]  # of `forms_of`


LIMITS: dict[tuple[str, str], tuple[Limit, ...]] = {
    ("tf_saved_model", "jax"): (
        Limit(
            LENGTHS,
            "JAX does not know that their lengths are equal; `export_saved_model` tells it",
            (SEVERAL,),
        ),
        Limit(LENGTHS, "a Fourier transform needs a known length", (FFT,)),
    ),
    ("tf_saved_model", "tensorflow"): (
        Limit(LENGTHS, "a Fourier transform needs a known length", (FFT,)),
    ),
    ("onnx", "jax"): (
        Limit(
            LENGTHS,
            "jax2onnx cannot cut an open length into blocks",
            (BLOCKWISE, MASK_BY_BLOCKS, ROWS_OF_DISTANCES, CHUNKED, CAUSAL),
        ),
        Limit(LENGTHS, "jax2onnx does not know that their lengths are equal", (SEVERAL,)),
        Limit(
            SIZES,
            "jax2onnx cannot join open sizes",
            (DELTA, EDGES, MASK_OF_EDGES, MASK_OF_PARENTS, MASK_OF_WALKS),
        ),
        Limit(NOTHING, "jax2onnx writes wrong sums over their edges", (EDGE_FEATURES, EDGE_FILTER)),
        Limit(NOTHING, "jax2onnx has no inverse Fourier transform", (FFT,)),
    ),
    ("onnx", "tensorflow"): (
        Limit(LENGTHS, "tf2onnx has no loop in a condition in a loop", (ROWS_OF_DISTANCES,)),
        Limit(LENGTHS, "tf2onnx has no recurrence of an open length", (DELTA,)),
        Limit(NOTHING, "tf2onnx writes no Fourier transform of real numbers", (FFT,)),
    ),
    ("onnx", "torch"): (Limit(SIZES, "a Fourier transform needs known sizes", (FFT,)),),
    ("litert", "tensorflow"): (
        Limit(
            LENGTHS,
            "LiteRT has no lists of tensors, and no products with several open sizes",
            (
                *(BLOCKWISE, MASK_BY_BLOCKS, ROWS_OF_DISTANCES, CHUNKED, CAUSAL),
                *(MASK_OF_PARENTS, MASK_OF_WALKS, EDGE_FEATURES),
            ),
        ),
        Limit(SIZES, "LiteRT cannot prepare its products", (MASK_OF_EDGES,)),
        Limit(NOTHING, "LiteRT's numbers differ from the fourth digit on", (DELTA,)),
        Limit(NOTHING, "LiteRT has no complex numbers", (FFT,)),
    ),
    ("litert", "torch"): (
        Limit(SIZES, "Keras writes files that run with the sizes of its trace only", (LAYER,)),
        Limit(NOTHING, "LiteRT has no complex numbers", (FFT,)),
        Limit(NOTHING, "LiteRT does not have the operations that PyTorch writes", (DELTA,)),
        Limit(
            NOTHING,
            "the converter of PyTorch cannot write their rows",
            (EDGES, MASK_OF_EDGES, MASK_OF_WALKS, *TREE_PATHS),
        ),
    ),
    ("openvino", "tensorflow"): (
        Limit(
            LENGTHS,
            "OpenVINO has no lists of tensors",
            (BLOCKWISE, MASK_BY_BLOCKS, ROWS_OF_DISTANCES),
        ),
        Limit(LENGTHS, "over several chunks OpenVINO's outputs differ by more than 1e-5", (DELTA,)),
        Limit(NOTHING, "OpenVINO reads no inverse Fourier transform of TensorFlow", (FFT,)),
    ),
    ("openvino", "torch"): (
        Limit(
            NOTHING,
            "Keras traces the model with ones, and no node is its own parent or neighbour",
            (MASK_OF_PARENTS, MASK_OF_EDGES, EDGES_OF_CALL),
        ),
        Limit(
            LENGTHS,
            "Keras traces the model with ones, and a graph of one node has no node 1",
            (MASK_OF_WALKS,),
        ),
        Limit(NOTHING, "a Fourier transform needs sizes that are known in the trace", (FFT,)),
    ),
    ("torch", "torch"): (Limit(LENGTHS, "a Fourier transform needs a known length", (FFT,)),),
}


def check_export(model: keras.Model, format: str, input_signature: Any = None) -> None:
    """Raises an error if `model.export(path, format)` cannot write a file that runs.

    It says which layer of this package is the reason, and what to do. It knows nothing of the
    model's other layers. Use it before `Model.export`, which may take minutes to fail.

    Args:
        model: A built model.
        format: `"tf_saved_model"`, `"onnx"`, `"litert"`, `"openvino"` or `"torch"`.
        input_signature: As for `Model.export`. By default the sizes are those of the model's
            inputs, with an open batch.

    Raises:
        ValueError: If Keras does not write the format from this backend, or a layer needs lengths
            or a batch that are fixed, or another path. Also if the inputs of the model are not
            known.

    Example:

    >>> tokens = keras.Input((None, 8))
    >>> model = keras.Model(tokens, GraphFilterAttention(num_heads=2, key_dim=4)(tokens))
    >>> check_export(model, "onnx")
    """
    one_of(*WRITERS)("format", format, {})
    backend = keras.backend.backend()
    if backend not in WRITERS[format]:
        raise ValueError(
            f"Keras writes the format {format!r} from {' and '.join(WRITERS[format])}. Received: "
            f"the backend {backend}. Save the model with `model.save`, and load and export it on "
            "one of these backends"
            + (", as `export_saved_model` does." if format == "tf_saved_model" else ".")
        )
    shapes = _shapes(model, input_signature)
    known = [size for shape in shapes for size in shape[1:2] if size is not None]
    is_open = any(None in shape[1:] for shape in shapes)
    length = max(known) if known and not is_open else None
    several = sum(None in shape[1:] for shape in shapes) > 1
    for layer in walk(model):
        forms = [*forms_of(layer, length)]
        if isinstance(layer, (ConversionMark, TokenLayer)):
            forms += [LAYER, SEVERAL] if several else [LAYER]
        for limit in LIMITS.get((format, backend), ()):
            for form in forms:
                if form in limit.forms and not _is_met(limit.needs, shapes):
                    raise ValueError(_refusal(layer, form, limit, format, shapes))


def forms_of(layer: keras.Layer, length: int | None) -> Iterator[str]:
    """What `LIMITS` may name of a layer, for inputs of this length."""
    if isinstance(layer, GatedDeltaRule):
        yield DELTA
    if isinstance(layer, EdgeAttention):
        yield EDGES
        if layer.num_edge_features:
            yield EDGE_FEATURES
        if layer.filter is not None:
            yield EDGE_FILTER
        if layer.inputs_at_call:
            yield EDGES_OF_CALL
    for name in getattr(getattr(layer, "mask", None), "inputs_at_call", ()):
        yield f"a mask of the `{name}` of each call"
    if isinstance(layer, AttentiveGraphFilter) and layer.causal:
        yield CAUSAL
    path = getattr(layer, "attention_path", None)
    if isinstance(layer, KernelLayer):
        if layer.feature_map is None:  # it forms all scores
            return
        if path in (None, "auto") and layer.mask is not None:
            features = int(layer.feature_map.num_features(layer.num_heads, layer.key_dim))
            path = layer.mask.choose_path(length, features, layer.value_dim)
        yield f'path="{path}"'
    elif isinstance(getattr(getattr(layer, "settings", layer), "numbers", None), PLaplacian):
        # PLaplacianAttention, or a layer that `convert` has changed to it
        if path == "blockwise" or (path is None and not layer.dropout):
            yield ROWS_OF_DISTANCES
    else:
        yield f'attention_path="{path}"'


def _shapes(model: keras.Model, input_signature: Any) -> list[tuple[int | None, ...]]:
    if not isinstance(model, keras.Model):
        raise ValueError(f"`model` must be a keras.Model. Received: model={model!r}")
    if input_signature is not None:
        specs = keras.tree.flatten(input_signature)
        if not specs or any(getattr(spec, "shape", None) is None for spec in specs):
            raise ValueError(
                "`input_signature` must be a structure of objects with a shape, such as "
                f"keras.InputSpec. Received: input_signature={input_signature!r}"
            )
        return [tuple(spec.shape) for spec in specs]
    inputs = getattr(model, "inputs", None)
    if not inputs:
        raise ValueError(
            f"The inputs of the model '{model.name}' are not known. Build it from a keras.Input, "
            "or give `input_signature` as for `Model.export`."
        )
    return [(None, *tensor.shape[1:]) for tensor in inputs]


def _is_met(needs: str, shapes: list[tuple[int | None, ...]]) -> bool:
    if needs == NOTHING:
        return False
    first = 1 if needs == LENGTHS else 0
    return all(size is not None for shape in shapes for size in shape[first:])


def _refusal(
    layer: keras.Layer, form: str, limit: Limit, format: str, shapes: list[tuple[int | None, ...]]
) -> str:
    fix = {
        LENGTHS: "Build the model for one length, and pad the data.",
        SIZES: "Fix the batch and the length with `input_signature`.",
        NOTHING: "",
    }[limit.needs]
    if form in FIXES and hasattr(layer, "attention_path"):
        way = f"make the layer with {FIXES[form]}: the weights and outputs stay the same."
        fix = f"{fix} Or {way}" if fix else f"M{way[1:]}"
    does = "cannot be" if limit.needs == NOTHING else f"needs {limit.needs} to be"
    return (
        f"{type(layer).__name__} '{layer.name}' with {form} {does} exported to {format!r}: "
        f"{limit.reason}. Received: inputs of shapes {shapes}. {fix}"
    )
