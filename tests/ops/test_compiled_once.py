"""A second eager call with equal shapes compiles nothing again on jax, forward and backward."""

import numpy as np
import pytest
from keras import ops

from keras_graphattn.layers import GraphFilterAttention
from tests.masks.registry import CASES as MASKS
from tests.masks.registry import EVERY, HEADS
from tests.numerics import BACKEND
from tests.ops.test_second_derivatives import CASES, normal

pytestmark = pytest.mark.skipif(BACKEND != "jax", reason="the others compile nothing eagerly")

COMPILED = "/jax/core/compile/backend_compile_duration"
FAST = ("once", "sparse", "p-Laplacian, blockwise")
counted = []


@pytest.fixture(autouse=True)
def _counter():
    import jax

    def count(event, duration, **_):
        if event == COMPILED:
            counted.append(duration)

    counted.clear()
    jax.monitoring.register_event_duration_secs_listener(count)
    yield
    jax.monitoring.unregister_event_duration_listener(count)


def compiled_by_second_call(function, arrays):
    import jax

    places = tuple(range(len(arrays)))

    def call(seed):
        moved = [ops.convert_to_tensor(a + 0.01 * normal(*a.shape, seed=seed)) for a in arrays]
        function(*moved)
        jax.grad(lambda *inputs: ops.sum(function(*inputs) ** 2), places)(*moved)

    call(1)
    assert counted
    counted.clear()
    call(2)
    return len(counted)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in CASES]
)
def test_functions_with_a_gradient_of_their_own(name):
    assert compiled_by_second_call(*CASES[name][:2]) == 0


@pytest.mark.parametrize(
    "filter", ["first_order", pytest.param("chebyshev", marks=pytest.mark.slow)]
)
def test_blockwise_layer_with_padding(filter):
    layer = GraphFilterAttention(2, 4, attention_path="blockwise", block_size=3, filter=filter)
    layer.build((2, 7, 8))
    padding = ops.convert_to_tensor(np.arange(7)[None] < np.array([[5], [7]]))

    def function(x):
        return layer(x, use_causal_mask=True, query_mask=padding, value_mask=padding)

    assert compiled_by_second_call(function, (normal(2, 7, 8),)) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "k"), EVERY)
def test_masks(name, k):
    import jax

    case = MASKS[name][k](np.random.default_rng(0), 13)
    for path in case.mask.paths:
        jax.clear_caches()  # what another path or case has compiled

        def functions(query, key, x, path=path):
            product = case.mask.apply(x, path, **case.inputs)
            return product + case.mask.attend(query**2, key**2, x, path, **case.inputs)

        arrays = [normal(case.batch, case.length, HEADS, size) for size in (2, 2, 3)]
        assert compiled_by_second_call(functions, arrays) == 0, path
