"""With a topology per call, only the paths that are named for the matrix form one."""

import numpy as np
import pytest

from tests.call_inputs import MASKS, batch_for
from tests.numerics import BACKEND

COUNT = 500  # tokens: the matrix has 250000 entries
OWN = [
    (name, path)
    for name, make in MASKS.items()
    for path in make().paths
    if path not in ("dense", "blockwise")
]


def largest_tensor(function, x):
    """Number of entries of the largest tensor in a function and its gradient."""
    if BACKEND == "jax":
        import jax

        def sizes(jaxpr):
            for equation in jaxpr.eqns:
                yield from (np.prod(v.aval.shape) for v in equation.outvars)
                for inner in jax.core.jaxprs_in_params(equation.params):
                    yield from sizes(inner)

        traced = jax.make_jaxpr(jax.grad(lambda x: function(x).sum()))(x)
        return max(sizes(traced.jaxpr))
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Sizes(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, call, types, args=(), kwargs=None):
            found = call(*args, **(kwargs or {}))
            every = found if isinstance(found, (tuple, list)) else [found]
            sizes = [t.numel() for t in every if isinstance(t, torch.Tensor)]
            self.largest = max(self.largest, *sizes, 0)
            return found

    x = torch.tensor(x, requires_grad=True)
    with Sizes() as seen:
        function(x).sum().backward()
    return seen.largest


@pytest.mark.skipif(BACKEND == "tensorflow", reason="its graphs hide what they form")
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize(("name", "path"), OWN)
def test_no_matrix_is_formed(name, path, hidden, monkeypatch):
    mask = MASKS[name]()
    mask.build((None, COUNT, 1, 1))
    inputs = batch_for(mask, length=COUNT, batch=1)
    if hidden:
        monkeypatch.setattr("keras_graphattn.masks.call_inputs.known_value", lambda given: None)
    x = np.ones((1, COUNT, 1, 1), "float32")
    assert largest_tensor(lambda x: mask.apply(x, path, **inputs), x) < COUNT**2 / 2
