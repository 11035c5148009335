"""The largest tensor that a function and its gradients form."""

import numpy as np

from tests.numerics import BACKEND


def largest_tensor(function, arrays):
    """Number of entries of the largest tensor in a function and its gradients for all arrays."""
    if BACKEND == "jax":
        import jax
        from jax.extend.core import jaxprs_in_params

        def sizes(jaxpr):
            for equation in jaxpr.eqns:
                yield from (np.prod(v.aval.shape) for v in equation.outvars)
                for inner in jaxprs_in_params(equation.params):
                    yield from sizes(inner)

        gradient = jax.grad(lambda *a: function(*a).sum(), tuple(range(len(arrays))))
        return max(sizes(jax.make_jaxpr(gradient)(*arrays).jaxpr))
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Sizes(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, call, types, args=(), kwargs=None):
            found = call(*args, **(kwargs or {}))
            every = found if isinstance(found, (tuple, list)) else [found]
            for tensor in every:
                if isinstance(tensor, torch.Tensor):
                    dense = tensor.layout == torch.strided
                    self.largest = max(self.largest, tensor.numel() if dense else tensor._nnz())
            return found

    arrays = [torch.tensor(array, requires_grad=True) for array in arrays]
    with Sizes() as seen:
        function(*arrays).sum().backward()
    assert all(array.grad is not None for array in arrays)
    return seen.largest
