"""The smallest eigenvalues of a normalised Laplacian and their eigenvectors, by component.

Lanczos' method can miss copies of an eigenvalue that occurs several times, and converges slowly
where eigenvalues are close to each other. Both are common in graphs. So each component has its own
eigenvectors, what was found is taken out of the matrix, which shows what was missed, and where
Lanczos' method does not converge, the inverse takes the place of the matrix.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from keras_graphattn.graphs.graph import Array

Product = Callable[[Array], Array]

LARGEST_DENSE = 500  # nodes of a component up to which all its eigenvectors are computed
RESTARTS = 100  # of Lanczos' method; long paths and grids need more, and their inverse is cheap
SHIFT = 1e-3  # makes the Laplacian, whose smallest eigenvalue is 0, invertible


def smallest_eigenpairs(laplacian: Any, count: int) -> tuple[Array, Array]:
    """Returns the smallest eigenvalues (k,), ascending, and their eigenvectors (n, k).

    An eigenvector has length 1 and is exactly 0 outside one component. k is `count`, or n if there
    are no more. Of components that are as good as each other, the first ones count.

    Args:
        laplacian: A normalised Laplacian, a symmetric scipy.sparse matrix of shape (n, n).
        count: How many.

    Raises:
        ValueError: If they cannot be computed.

    Example:

    >>> values, vectors = smallest_eigenpairs(scipy.sparse.csr_array([[1.0, -1.0], [-1.0, 1.0]]), 2)
    >>> values.round(12).tolist()
    [0.0, 2.0]
    """
    matrix = scipy.sparse.csr_array(laplacian)
    number, component = connected_components(matrix, directed=False)
    order = np.argsort(component, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(component[order])) + 1)
    if number >= count:  # 0 is an eigenvalue of each component, and none is smaller
        parts, most = parts[:count], 1
    else:
        most = count
    found = []
    for nodes in parts:
        values, vectors = _of_component(matrix[nodes][:, nodes], most)
        found += [(value, nodes, vectors[:, place]) for place, value in enumerate(values)]
    found = sorted(found, key=lambda pair: pair[0])[:count]
    together = np.zeros((matrix.shape[0], len(found)))
    for place, (_, nodes, vector) in enumerate(found):
        together[nodes, place] = vector
    return np.array([value for value, _, _ in found]), together


def _of_component(matrix: Any, count: int) -> tuple[Array, Array]:
    """The smallest eigenvalues of a connected graph. The first one is exactly 0."""
    size = matrix.shape[0]
    if size <= max(LARGEST_DENSE, count + 1):
        values, vectors = np.linalg.eigh(matrix.toarray())
    else:
        vectors = _vectors(matrix, count)
        values = np.einsum("nk,nk->k", vectors, matrix @ vectors)
        order = np.argsort(values)
        values, vectors = values[order], vectors[:, order]
    values[0] = 0.0
    return values[:count], vectors[:, :count]


def _vectors(matrix: Any, count: int) -> Array:
    identity = scipy.sparse.eye_array(matrix.shape[0])
    try:
        return _largest((2.0 * identity - matrix).__matmul__, matrix.shape, count, RESTARTS)
    except ArpackError:
        pass
    try:
        inverse = scipy.sparse.linalg.splu(scipy.sparse.csc_array(matrix + SHIFT * identity))
        return _largest(inverse.solve, matrix.shape, count, None)
    except (ArpackError, RuntimeError, MemoryError) as error:
        raise ValueError(
            f"The {count} smallest eigenvalues cannot be computed for a connected graph of "
            f"{matrix.shape[0]} nodes: {error}. Ask for fewer."
        ) from error


def _largest(product: Product, shape: tuple[int, int], count: int, restarts: int | None) -> Array:
    """Eigenvectors of the largest eigenvalues of a symmetric matrix without negative ones."""
    random = np.random.default_rng(0)

    def search(product: Product, number: int) -> tuple[Array, Array]:
        start, basis = random.normal(size=shape[0]), min(shape[0], max(2 * number + 1, 40))
        operator = LinearOperator(shape, matvec=product, dtype="float64")
        options = {"which": "LA", "v0": start, "ncv": basis, "maxiter": restarts}
        found: tuple[Array, Array] = eigsh(operator, number, **options)
        return found

    values, vectors = search(product, count)
    while True:
        missed, vector = search(_without(product, values, vectors), 1)
        if missed[0] <= values.min() + 1e-10 * values.max():
            return vectors
        kept = np.argsort(values)[1:]
        values = np.append(values[kept], missed)
        vectors = np.concatenate([vectors[:, kept], vector], axis=1)


def _without(product: Product, values: Array, vectors: Array) -> Product:
    """The product with a matrix from which eigenvectors were taken out: their eigenvalue is 0."""
    return lambda x: product(x) - vectors @ (values * (vectors.T @ x))
