"""What the fuzz tests throw at an argument, and what they accept as an answer."""

import re

import keras
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

REFUSALS = (ValueError, TypeError)
# JAX compiles, and TensorFlow is slow without compiling; the checks are the same on all backends.
FEW = settings(max_examples=12 if keras.backend.backend() == "torch" else 2, derandomize=True)
MANY = settings(max_examples=60, derandomize=False)
# Some examples always, many in the slow tests
HOW_OFTEN = pytest.mark.parametrize(
    "how_often",
    [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.slow)],
)


def tried(how_often, attack, *arguments):
    """Runs `attack(*arguments, data)` with what hypothesis draws."""

    @how_often
    @given(data=st.data())
    def once(data):
        attack(*arguments, data)

    once()


ODD = [
    None,
    True,
    -1,
    0,
    2,
    1.5,
    float("nan"),
    float("inf"),
    10**30,
    "wrong",
    b"wrong",
    1j,
    [],
    {},
    [[1.0], [1.0, 2.0]],
    ["a", None],
    {"unhashable": []},
    {1, 2},
    np.array("text"),
    np.array([None, 1.0]),
    object(),
]


def odd_values(for_function=False):
    """Values of wrong types for anything; what a user's own function does is the user's."""
    return st.sampled_from(ODD if for_function else [*ODD, len])


def odd_arrays(data, array):
    """The array with something wrong, or unusual, about it; and the kind of change."""
    kind = data.draw(
        st.sampled_from(
            ["rank -1", "rank +1", "size", "int", "bool", "complex", "text", "nan", "inf", "false"]
        ),
        label="kind",
    )
    array = np.asarray(array)
    if kind == "rank -1":
        return kind, array[0] if array.ndim and array.shape[0] else np.zeros((), array.dtype)
    if kind == "rank +1":
        return kind, array[..., None]
    if kind == "size" and array.ndim:
        axis = data.draw(st.integers(0, array.ndim - 1), label="axis")
        padding = [(0, int(axis == other)) for other in range(array.ndim)]
        return kind, np.pad(array, padding)
    changed = {
        "int": lambda: array.astype("int32"),
        "bool": lambda: array.astype(bool),
        "complex": lambda: array.astype("complex64"),
        "text": lambda: array.astype(str),
        "nan": lambda: np.full(array.shape, np.nan, "float32"),
        "inf": lambda: np.full(array.shape, np.inf, "float32"),
        "false": lambda: np.zeros(array.shape, array.dtype),
    }
    return (kind, changed[kind]()) if kind in changed else (kind, array)


def one_wrong(data, arguments):
    """The name of one of the arguments, what is wrong about it, and the wrong value."""
    name = data.draw(st.sampled_from(sorted(arguments)), label="argument")
    right = arguments[name]
    is_array = isinstance(right, (np.ndarray, list)) and np.asarray(right).dtype.kind in "biuf"
    if is_array and data.draw(st.booleans(), label="as an array"):
        return name, *odd_arrays(data, right)
    return name, "odd", data.draw(odd_values(callable(right)), label="wrong")


def names_argument(error, name):
    """Whether the error itself, not Keras' list of what was passed, names the argument."""
    text = str(error).split("Arguments received by")[0]
    return re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", text) is not None


def leaves(result):
    """The arrays of a result."""
    arrays = []
    for leaf in keras.tree.flatten(result):
        leaf = leaf.toarray() if scipy.sparse.issparse(leaf) else leaf
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            arrays.append(keras.ops.convert_to_numpy(leaf))
    return arrays


def answer_or_refusal(call, names, refusals=REFUSALS):
    """The arrays that `call` returns, or None where it refuses and says which argument."""
    try:
        return leaves(call())
    except refusals as error:
        refusal = error
    named = any(names_argument(refusal, name) for name in names)
    assert named, f"does not name {list(names)}: {refusal!r}"
    return None
