"""The product with [f(dist(i, j))] for any f of the number of edges between two nodes."""

from typing import Any

from keras_graphattn.checks import checked, instance, one_of, optional, tensor
from keras_graphattn.ops.trees.choice import distance_path
from keras_graphattn.ops.trees.distances import depth_product
from keras_graphattn.ops.trees.forests import Forest
from keras_graphattn.ops.trees.hankel import centroid_product
from keras_graphattn.ops.trees.spines import is_caterpillar, spine_product

Tensor = Any

PRODUCTS = {"depths": depth_product, "centroids": centroid_product, "spines": spine_product}


@checked(
    x=tensor("n N C"),
    table=tensor("K N"),
    forest=instance(Forest, "a Forest", "n", lambda forest: forest.size),
    path=optional(one_of(*PRODUCTS)),
)
def table_tree_product(x: Tensor, table: Tensor, forest: Forest, path: str | None = None) -> Tensor:
    """[table[dist(i, j)]] x within each tree; 0 across trees and beyond the table.

    Args:
        x: float32 tensor of shape (n, N, C): nodes in the user's order, heads, columns.
        table: Tensor of shape (K + 1, N): f(0) ... f(K) of each head.
        forest: The trees. Edge weights are ignored.
        path: `"depths"`, O(n K); `"centroids"`, O(n log^2 n); or `"spines"`, O(n log n), for trees
            that become a path when their leaves are removed. By default the fastest of them.

    Returns:
        A tensor of shape (n, N, C), with gradients for `x` and `table`.

    Raises:
        ValueError: If a tree is not one that the path is for.

    Example:

    >>> from keras_graphattn.ops.trees.forests import forest_from_parents
    >>> forest = forest_from_parents([-1, 0, 1])
    >>> x = np.array([1.0, 0.0, 0.0], "float32").reshape((3, 1, 1))
    >>> table = np.array([[7.0], [5.0], [3.0]], "float32")
    >>> found = table_tree_product(x, table, forest)
    >>> keras.ops.convert_to_numpy(found).ravel().round(4).tolist()
    [7.0, 5.0, 3.0]

    Source: Choromanski et al., arXiv 2107.07999, Lemma 6.2 (depths). Spines and centroids are ours.
    """
    if path is None:
        path = own_path(forest, int(table.shape[0]) - 1)
    return PRODUCTS[path](x, table, forest)


def own_path(forest: Forest, last: int) -> str:
    """The fastest path for a table that ends at the distance `last`."""
    return "spines" if is_caterpillar(forest) else distance_path(forest, last)
