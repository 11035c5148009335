"""`inspect_smoothing`: what each attention layer of a model does to its tokens."""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_graphattn.analysis.smoothing.collect import LayerCollector
from keras_graphattn.analysis.smoothing.passes import Recorder
from keras_graphattn.analysis.smoothing.report import SmoothingReport
from keras_graphattn.checks import flag, optional, whole

Tensor = Any
ARRAYS = (dict, list, tuple)  # of arrays: the inputs of one model


def inspect_smoothing(
    model: Any,
    data: Any,
    *,
    batch_size: int = 32,
    max_batches: int | None = None,
    max_sequences: int = 8,
    max_tokens: int = 512,
    eigenvalues: bool = True,
    token_mask: str | Callable[[Any], Any] | None = None,
) -> SmoothingReport:
    """Measures oversmoothing in a model: what each attention layer does to the tokens.

    The model may be any Keras or KerasHub model: functional or subclassed, converted or not. It
    runs once over the data, not compiled, with `training=False`. For the time of each batch,
    hooks around its layers see what goes in and out. They are then gone, also after an error, and
    the model is as it was.

    For each attention layer, the report has the similarity of the tokens, their constant component
    and their singular values, at three places: before the attention, after it (before any residual
    connection), and after its block. The block is the largest layer around this attention only,
    such as a `TransformerEncoder`. Without one with outputs of the tokens' shape, it ends
    at the input of the next attention layer with tokens of the same shape; that of the last one
    ends at the last output of any layer that has the shape of its tokens.

    For each head, it has the attention matrix A and the operator H that the layer applies to its
    values: their response to the frequencies of the Fourier basis and to the eigenvectors of A,
    the entropy of A, its sink, the filter's coefficients and its response curve. No layer has to
    form a matrix: H is found by probing, which applies the layer to unit signals. The report has it
    only if H times the layer's values is what the layer has computed from them, and if no token
    sees padding. Where an operator cannot be found, the report says why.

    Padding is left out. Its mask is the one that the attention layers get, or `token_mask`.

    Memory does not grow with the number of batches. All sequences count in the similarity and the
    constant component; the first `max_sequences` in all else, which takes more time.

    Args:
        model: A `keras.Model`, or a layer that contains attention layers.
        data: Inputs of the model, as arrays (or a dictionary or list of them); a tuple of inputs
            and targets; or an iterable of batches, such as a `keras.utils.PyDataset` or a
            `tf.data.Dataset`, with or without targets. Inputs of KerasHub tasks must be
            preprocessed.
        batch_size: Number of sequences in a batch, for arrays.
        max_batches: Number of batches to measure; all of them by default.
        max_sequences: Number of sequences whose operators and singular values are measured, the
            first of the data. At least 1.
        max_tokens: Of longer sequences, as many tokens at equal distances are measured, and no
            operators. At least 2.
        eigenvalues: Whether to find the eigenvalues of A, which takes most of the time for long
            sequences.
        token_mask: The name of the input that is `False` or 0 in padding, (B, T), or a function
            from the inputs of a batch to such a mask. By default, each layer's own masks.

    Returns:
        A `SmoothingReport`.

    Raises:
        ValueError: For a model without attention layers, data without a batch, inputs that are
            text, and arguments out of their ranges.

    Example:

    >>> inputs = keras.Input((6, 8))
    >>> outputs = keras.layers.LayerNormalization()(GraphFilterAttention(2, 4)(inputs))
    >>> model = keras.Model(inputs, outputs)
    >>> report = inspect_smoothing(model, np.random.default_rng(0).normal(size=(3, 6, 8)))
    >>> layer = report.layers[0]
    >>> layer.kind, layer.heads.operator_fourier.shape, 0.0 < layer.block.dc_share < 1.0
    ('GraphFilterAttention', (2, 4), True)

    Source: the figures are those of Choi et al., arXiv 2312.04234, and Wang et al., arXiv
    2203.05962; `keras_graphattn.analysis.smoothing.measures` has each formula with its source.
    """
    if not isinstance(model, keras.Layer):
        raise ValueError(f"`model` must be a Keras model or layer. Received: model={model!r}")
    check_data(data)
    batch_size = whole()("batch_size", batch_size, {})
    max_batches = optional(whole())("max_batches", max_batches, {})
    max_sequences = whole()("max_sequences", max_sequences, {})
    max_tokens = whole(2)("max_tokens", max_tokens, {})
    flag("eigenvalues", eigenvalues)
    collectors: dict[str, LayerCollector] = {}
    recorder: Recorder | None = None
    sequences = sampled = 0
    for number, inputs in enumerate(_batches(data, batch_size)):
        if number == max_batches:
            break
        tensors = _tensors(inputs)
        if recorder is None:
            recorder = _recorder(model, tensors, max_tokens)
        size = int(keras.tree.flatten(tensors)[0].shape[0])
        wanted = min(size, max_sequences - sampled)
        seen: dict[str, int] = {}
        for call in recorder.run(tensors, wanted, _given_mask(token_mask, inputs)):
            path = call.layer.path or call.layer.name
            seen[path] = seen.get(path, 0) + 1
            name = path if seen[path] == 1 else f"{path} ({seen[path]})"
            if name not in collectors:
                collectors[name] = LayerCollector(call.layer, name, max_tokens, eigenvalues)
            collectors[name].add(call, wanted)
        sequences, sampled = sequences + size, sampled + wanted
    if recorder is None:
        raise ValueError("`data` must have at least one batch. Received none.")
    layers = [collector.result() for collector in collectors.values()]
    return SmoothingReport(model.name, layers, recorder.not_measured, sequences, sampled)


def _recorder(model: Any, tensors: Any, max_tokens: int) -> Recorder:
    if not model.built:
        model(tensors, training=False)  # makes the layers in which attention is looked for
    recorder = Recorder(model, max_tokens)
    if not recorder.layers:
        raise ValueError(
            f"`model` has no attention layers that Keras tracks. Received: model='{model.name}' "
            f"({type(model).__name__}). Layers must be attributes of a model or a layer, and the "
            'names of their own classes must contain "Attention" if they are not derived from '
            "keras.layers.MultiHeadAttention."
        )
    return recorder


def check_data(data: Any) -> None:
    """Raises a `ValueError` for data that are neither arrays nor an iterable of batches."""
    known = isinstance(data, (keras.utils.PyDataset, *ARRAYS)) or hasattr(data, "__iter__")
    arrays = keras.tree.flatten(data) if isinstance(data, ARRAYS) else []
    if isinstance(data, ARRAYS):
        known = bool(arrays) and all(len(getattr(x, "shape", ())) for x in arrays if x is not None)
    if not known or isinstance(data, (str, bytes, set)) or getattr(data, "shape", None) == ():
        raise ValueError(
            "`data` must be the model's inputs as arrays, or an iterable of batches. Received: "
            f"data={data!r}"
        )


def _batches(data: Any, batch_size: int) -> Iterator[Any]:
    """The inputs of each batch, without targets."""
    if isinstance(data, keras.utils.PyDataset) and data.num_batches is not None:
        data = map(data.__getitem__, range(data.num_batches))
    elif isinstance(data, ARRAYS) or hasattr(data, "shape"):
        inputs = data if isinstance(data, list) else keras.utils.unpack_x_y_sample_weight(data)[0]
        arrays = keras.tree.flatten(inputs)
        length = len(arrays[0]) if arrays else 0
        for start in range(0, length, batch_size):
            yield keras.tree.map_structure(lambda x, s=start: x[s : s + batch_size], inputs)
        return
    for batch in data:
        yield keras.utils.unpack_x_y_sample_weight(batch)[0]


def _tensors(inputs: Any) -> Any:
    """Inputs as tensors of the backend."""

    def convert(x: Any) -> Tensor:
        kind = x.dtype.kind if isinstance(x, np.ndarray) else str(x.dtype)
        if kind in "USO" or "string" in kind:
            raise ValueError(
                "`data` must hold numbers, not text. Run the model's preprocessor first: "
                "`inspect_smoothing(model, model.preprocessor(texts))`."
            )
        if isinstance(x, np.ndarray) and x.dtype == np.float64:
            x = x.astype(keras.config.floatx())
        return ops.convert_to_tensor(x)

    return keras.tree.map_structure(convert, inputs)


def _given_mask(token_mask: Any, inputs: Any) -> np.ndarray[Any, Any] | None:
    if token_mask is None:
        return None
    if callable(token_mask):
        found = token_mask(inputs)
    elif isinstance(inputs, dict) and token_mask in inputs:
        found = inputs[token_mask]
    else:
        names = sorted(inputs) if isinstance(inputs, dict) else type(inputs).__name__
        raise ValueError(
            "`token_mask` must be the name of an input, or a function of the inputs. Received: "
            f"token_mask={token_mask!r}, inputs: {names}"
        )
    mask = np.asarray(ops.convert_to_numpy(found)).astype(bool)
    if mask.ndim != 2:
        raise ValueError(f"`token_mask` must give a mask (B, T). Received: shape {mask.shape}")
    return mask
