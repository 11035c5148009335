"""The steps of a call of a mask: check the signal and the inputs, choose a path, compute, mark.

These functions are the same for all masks. They call the methods that subclasses of `Mask` write.
"""

from typing import TYPE_CHECKING, Any

from keras import ops

from keras_graphattn.checks import Sizes, whole
from keras_graphattn.masks.call_inputs import Prepared, Tensors
from keras_graphattn.masks.formed import FORMED_PATHS, formed_product
from keras_graphattn.masks.input_checks import checked_positions, marked
from keras_graphattn.masks.precision import in_one_dtype, widest_dtype

if TYPE_CHECKING:
    from keras_graphattn.masks.mask import Mask

Tensor = Any


def check_heads(mask: "Mask", shape: Any) -> None:
    """Raises a `ValueError` if a built mask has another number of heads than a signal."""
    if shape[2] != mask.num_heads:
        raise ValueError(
            f"This {type(mask).__name__} was built for {mask.num_heads} heads. Received: a "
            f"signal `x` of shape (batch, length, heads, width) = {tuple(shape)}. Use another mask "
            "for another number of heads."
        )


def prepared_signal(mask: "Mask", x: Tensor, inputs: Tensors, sizes: Sizes) -> Prepared:
    """Checks a signal and the inputs that come with it. Builds the mask if it has no weights yet.

    Args:
        mask: The mask that is called.
        x: The signal, of shape (B, T, N, D).
        inputs: The tensors of `mask.inputs_at_call`.
        sizes: The sizes that are known from the signal.

    Raises:
        ValueError: For a wrong number of heads, a wrong length, and wrong inputs.
    """
    shape = x.shape
    if isinstance(shape[1], int):
        mask._check_length(shape[1])
    if not mask.built:
        mask.build(tuple(shape))
    check_heads(mask, shape)
    found = mask._checked_inputs(inputs, sizes)
    return mask._without_wrong_entries(inputs, found, ops.shape(x)[1])


def prepared_matrix(mask: "Mask", length: int | None, inputs: Tensors) -> tuple[Any, Prepared]:
    """Returns the number of tokens T and the checked inputs of a call that has no signal."""
    found = mask._checked_inputs(inputs)
    mask._check_built()
    if isinstance(length, (int, float, str)):
        length = whole(0)("length", length, {})
    if length is None:
        length = mask._known_length(found)
    if isinstance(length, int):
        mask._check_length(length)
    return length, mask._without_wrong_entries(inputs, found, length)


def product_of_call(
    mask: "Mask",
    path: str,
    query_features: Tensor | None,
    key_features: Tensor | None,
    x: Tensor,
    prepared: Prepared,
    feature_chunk: int | None = None,
) -> Tensor:
    """Returns M x or, with features, [(phi(Q) phi(K)^T) o M] x.

    Args:
        mask: The mask that is called.
        path: One of `mask.paths`, or "auto".
        query_features: phi(Q), of shape (B, T, N, m), or `None`.
        key_features: phi(K), of shape (B, T, N, m), or `None`.
        x: Tensor of shape (B, T, N, D).
        prepared: The checked inputs.
        feature_chunk: Number of features at a time; all by default.

    Returns:
        A tensor of the shape and dtype of `x`, with NaN for examples that hold a wrong entry.
    """
    features = None if query_features is None else query_features.shape[-1]
    path = _checked_path(mask, path, x.shape[1], features, x.shape[3])
    if 0 in tuple(x.shape):
        return x  # no sequences, or sequences of no tokens
    if features == 0:
        return ops.zeros_like(x)  # the sum over no features
    features_given = () if query_features is None else (query_features, key_features)
    (signal, *pair), parameters, inputs = in_one_dtype(
        (x, *features_given), mask.parameters(), prepared.tensors
    )
    query, key = pair or (None, None)
    if path in FORMED_PATHS:
        result = formed_product(mask, path, query, key, signal, parameters, inputs)
    elif query is None:
        result = mask._signal(signal, path, parameters, inputs)
    else:
        result = mask._attend(query, key, signal, path, parameters, inputs, feature_chunk)
    return ops.cast(marked(result, prepared.wrong), x.dtype)  # (B, T, N, D)


def matrix_of_call(
    mask: "Mask", positions: Tensor | None, length: Any, prepared: Prepared
) -> Tensor:
    """Returns M, or only its rows at some positions.

    Args:
        mask: The mask that is called.
        positions: Integers of shape (R,), not checked yet; `None` for all T rows.
        length: Number of tokens T.
        prepared: The checked inputs.

    Returns:
        A tensor of shape (1 or B, 1 or N, R, T). It is float64 if the mask's weights or its
        `dtype` are float64, else float32.
    """
    _, parameters, inputs = in_one_dtype((), mask.parameters(), prepared.tensors)
    dtype = widest_dtype(parameters.values(), mask.compute_dtype)
    right = None
    if positions is not None:
        positions, right = checked_positions(positions, length)
    count = length if positions is None else ops.shape(positions)[0]
    if _is_empty(length, inputs) or (positions is not None and positions.shape[0] == 0):
        examples = ops.shape(next(iter(inputs.values())))[0] if inputs else 1
        return ops.zeros((examples, 1, count, length), dtype)
    if positions is None:
        found = mask._matrix(length, parameters, inputs)
    else:
        found = mask._rows(positions, length, parameters, inputs)
    if right is not None:
        found = ops.where(right[:, None], found, ops.cast(float("nan"), found.dtype))
    return ops.cast(marked(found, prepared.wrong), dtype)


def _checked_path(
    mask: "Mask", path: str, length: int | None, features: int | None, width: int | None
) -> str:
    """Returns one of `mask.paths`: the given one, or for "auto" the mask's choice."""
    if path == "auto":
        known = length if isinstance(length, int) else None
        return mask.choose_path(known, features, width)
    if path not in mask.paths:
        raise ValueError(
            f'`path` of the mask {type(mask).__name__} must be "auto" or one of '
            f"{list(mask.paths)}. Received: path={path!r}"
        )
    return path


def _is_empty(length: Any, inputs: Tensors) -> bool:
    """Whether a matrix has no entries: there are no tokens, or the inputs have no examples."""
    return (isinstance(length, int) and length == 0) or any(
        x.shape[0] == 0 for x in inputs.values()
    )


def no_state_error(mask: "Mask") -> ValueError:
    """The error for a mask that cannot compute token by token."""
    reason = "causal, but needs all earlier tokens" if mask.is_causal else "not causal"
    return ValueError(
        "Token by token, attention needs a causal mask with a state of fixed size. Received: "
        f"the mask {type(mask).__name__}, which is {reason}. Use `Causal`, `Exponential("
        "causal=True)` or a product of these."
    )
