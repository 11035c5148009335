"""The checker of shapes finds what it should, and runs; most annotations say something."""

import ast
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn.types import Bool, Float, Int, Num, Tensor
from tests import shape_checks

FILES = sorted(Path(keras_graphattn.__file__).parent.rglob("*.py"))
SHARE = 0.12  # of annotations that say nothing; it may only go down


def zeros(*shape, dtype="float32"):
    return keras.ops.zeros(shape, dtype)


@pytest.fixture
def check():
    """The decorator; what it finds does not count against the test."""
    yield shape_checks.checks_shapes
    list(shape_checks.taken())


def product(x: Float[Tensor, "B T d"], matrix: Float[Tensor, "d e"]) -> Float[Tensor, "B T e"]:
    return keras.ops.matmul(x, matrix)


def masked(
    x: Float[Tensor, "B T"], mask: Bool[Tensor, "B? T?"] | None = None, *, scale: float = 1.0
) -> Float[Tensor, "B T"]:
    return x * scale if mask is None else keras.ops.where(mask, x, 0.0)


def pair(x: Num[Tensor, "... T"]) -> tuple[Int[Tensor, " T"], Float[Tensor, "T T"] | None]:
    return zeros(x.shape[-1], dtype="int32"), None


RIGHT = [
    (product, (zeros(2, 3, 4), zeros(4, 5))),
    (product, (np.zeros((2, 3, 4), "float32"), zeros(4, 5, dtype="float64"))),
    (masked, (zeros(2, 3), zeros(1, 3, dtype="bool"))),
    (masked, (zeros(2, 3), None)),
    (pair, (zeros(5, dtype="int32"),)),
    (pair, (zeros(2, 1, 5),)),
]
WRONG = {
    "another number of axes": (product, (zeros(3, 4), zeros(4, 5)), "`x` is float (3, 4)"),
    "another size": (product, (zeros(2, 3, 4), zeros(3, 5)), "`matrix` is float (3, 5)"),
    "another kind": (masked, (zeros(2, 3), zeros(2, 3)), "`mask` is float"),
    "no tensor": (product, (zeros(2, 3, 4), None), "`matrix` is None"),
}


@pytest.mark.parametrize(("function", "arguments"), RIGHT)
def test_right_calls_pass(check, function, arguments):
    check(function)(*arguments)
    assert not list(shape_checks.taken())


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_found(check, case):
    function, arguments, message = WRONG[case]
    with pytest.raises(shape_checks.WrongShape) as error:
        check(function)(*arguments)
    assert f"{function.__qualname__}: {message}" in str(error.value)
    assert list(shape_checks.taken()) == [str(error.value)]


def test_what_a_function_refuses_in_words_is_not_wrong(check):
    calls = []

    @check
    def refusing(x: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        calls.append(x)
        raise ValueError(f"Received: x.shape={tuple(x.shape)}")

    with pytest.raises(ValueError, match="Received"):
        refusing(zeros(3))
    assert len(calls) == 1
    assert not list(shape_checks.taken())


def test_wrong_results_are_found(check):
    @check
    def turned(x: Float[Tensor, "B T"]) -> tuple[Float[Tensor, "B T"], int]:
        return keras.ops.transpose(x), 1

    turned(zeros(3, 3))
    with pytest.raises(shape_checks.WrongShape, match=r"the result\[0\] is float \(3, 2\)"):
        turned(zeros(2, 3))


def test_open_sizes_fit(check):
    outputs = check(product)(keras.KerasTensor((None, None, 4)), keras.KerasTensor((4, 5)))
    assert outputs.shape == (None, None, 5)
    with pytest.raises(shape_checks.WrongShape):
        check(product)(keras.KerasTensor((None, 4)), zeros(4, 5))


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="shapes are checked on one backend")
def test_the_package_is_loaded_with_checks():
    loaders = {type(keras_graphattn.__spec__.loader), type(keras_graphattn.ops.__spec__.loader)}
    assert loaders == {shape_checks.CheckingLoader}


def names_of_any(tree):
    """`Any`, and the names that a file gives to it."""
    return {"Any", "Tensor"} | {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.value, "id", "") in ("Any", "Tensor")
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def annotations_of(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            yield node.returns
        elif isinstance(node, ast.AnnAssign):
            yield node.annotation


def says_nothing(annotation, names):
    """Whether an annotation is `Any`, a tensor without a shape, or one of these or `None`."""
    if isinstance(annotation, ast.BinOp):
        sides = (annotation.left, annotation.right)
        return all(says_nothing(side, {*names, None}) for side in sides)
    if isinstance(annotation, ast.Constant):
        return annotation.value in names
    return getattr(annotation, "id", getattr(annotation, "attr", "")) in names


def test_most_annotations_say_something():
    trees = [ast.parse(path.read_text()) for path in FILES]
    found = [
        says_nothing(annotation, names)
        for tree in trees
        for names in [names_of_any(tree)]
        for annotation in annotations_of(tree)
    ]
    share = sum(found) / len(found)
    assert share <= SHARE, f"{share:.3f} of {len(found)} say nothing"
