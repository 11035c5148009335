"""Every public function of `keras_graphattn.ops`, called with one wrong argument at a time."""

import numpy as np
import pytest

import keras_graphattn
from tests.fuzz.attacks import HOW_OFTEN, answer_or_refusal, leaves, one_wrong, tried
from tests.fuzz.cases_of_ops import CASES

# An answer to other sizes than the right call's: the axes may all be of any size.
ANY_SIZE = ("rank -1", "rank +1", "size")


def test_every_public_function_has_a_case():
    assert set(keras_graphattn.ops.__all__) == {name.partition(",")[0] for name in CASES}


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_right_call_is_right(name):
    function, arguments = CASES[name]
    for array in leaves(function(**arguments)):
        assert array.dtype == bool or np.isfinite(array).all()


def attack(name, data):
    function, arguments = CASES[name]
    argument, kind, wrong = one_wrong(data, arguments)
    # sizes that do not go together are those of two arguments: the error may name the other
    names = arguments if kind in ANY_SIZE else [argument]
    answer = answer_or_refusal(lambda: function(**{**arguments, argument: wrong}), names)
    if answer is None:
        return
    if kind in ("int", "bool", "false") and np.asarray(arguments[argument]).dtype.kind == "f":
        meant = {**arguments, argument: wrong.astype("float32")}
        for array, expected in zip(answer, leaves(function(**meant)), strict=True):
            np.testing.assert_allclose(array, expected, atol=1e-5, equal_nan=True)
    elif kind not in (*ANY_SIZE, "odd"):
        expected = leaves(function(**arguments))
        assert [array.shape for array in answer] == [array.shape for array in expected]


@pytest.mark.slow_on("jax")
@HOW_OFTEN
@pytest.mark.parametrize("name", sorted(CASES))
def test_one_wrong_argument(name, how_often):
    tried(how_often, attack, name)
