"""Pure functions on tensors: no weights, any Keras backend."""

from keras_graphattn.ops.filters.operator_filters import (
    filter_matrix,
    first_order_filter,
    plain_attention_coefficients,
    polynomial_filter,
)
from keras_graphattn.ops.filters.polynomials import (
    BASES,
    check_basis,
    check_order,
    polynomial,
    recurrence,
)
from keras_graphattn.ops.graphs.diffusion import (
    chebyshev_coefficients,
    chebyshev_matrix,
    chebyshev_terms,
    spectral_product,
)
from keras_graphattn.ops.graphs.graphs import graph_operator, read_graph, transition_matrix
from keras_graphattn.ops.graphs.sparse import SparseMatrix, sparse_product, sum_rows
from keras_graphattn.ops.graphs.walks import (
    expected_features,
    features_of_walks,
    random_walks,
    walk_product,
)
from keras_graphattn.ops.precision.float32 import (
    at_least_float32,
    hidden_logit,
    masked_softmax,
    zero_where_masked,
)
from keras_graphattn.ops.singular.attention import (
    attend_to_context,
    left_singular_vectors,
    orthogonality_penalty,
    right_singular_vectors,
    singular_value_attention,
    singular_value_context,
    singular_value_filter,
    singular_value_matrix,
)
from keras_graphattn.ops.singular.causal import causal_singular_value_attention
from keras_graphattn.ops.singular.running_sums import RunningSum, empty_running_sum
from keras_graphattn.ops.softmax.attention import (
    attention_matrix,
    fused_operator,
    matrix_operator,
    softmax_operator,
)
from keras_graphattn.ops.softmax.blocks import map_query_blocks
from keras_graphattn.ops.softmax.blockwise import BlockwiseOperator
from keras_graphattn.ops.softmax.caching import (
    CachedOperator,
    initial_cache,
    step_mask,
    update_keys,
)
from keras_graphattn.ops.softmax.distances import squared_distances
from keras_graphattn.ops.softmax.masks import AttentionMask, joined_mask, zero_blind_rows
from keras_graphattn.ops.softmax.p_laplacian import p_laplacian_attention, p_laplacian_weights
from keras_graphattn.ops.toeplitz.hypercube import hypercube_product
from keras_graphattn.ops.trees.distances import depth_table_product
from keras_graphattn.ops.trees.doubling import doubling_plan, doubling_plan_of_batch
from keras_graphattn.ops.trees.exponential import exponential_tree_product
from keras_graphattn.ops.trees.forests import (
    Forest,
    forest_distances,
    forest_from_graph,
    forest_from_parents,
)
from keras_graphattn.ops.trees.hankel import centroid_plan, centroid_product
from keras_graphattn.ops.trees.levels import level_plan, scan_plan
from keras_graphattn.ops.trees.spines import spine_plan, spine_product

__all__ = [
    "BASES",
    "AttentionMask",
    "BlockwiseOperator",
    "CachedOperator",
    "Forest",
    "RunningSum",
    "SparseMatrix",
    "at_least_float32",
    "attend_to_context",
    "attention_matrix",
    "causal_singular_value_attention",
    "centroid_plan",
    "centroid_product",
    "chebyshev_coefficients",
    "chebyshev_matrix",
    "chebyshev_terms",
    "check_basis",
    "check_order",
    "depth_table_product",
    "doubling_plan",
    "doubling_plan_of_batch",
    "empty_running_sum",
    "expected_features",
    "exponential_tree_product",
    "features_of_walks",
    "filter_matrix",
    "first_order_filter",
    "forest_distances",
    "forest_from_graph",
    "forest_from_parents",
    "fused_operator",
    "graph_operator",
    "hidden_logit",
    "hypercube_product",
    "initial_cache",
    "joined_mask",
    "left_singular_vectors",
    "level_plan",
    "map_query_blocks",
    "masked_softmax",
    "matrix_operator",
    "orthogonality_penalty",
    "p_laplacian_attention",
    "p_laplacian_weights",
    "plain_attention_coefficients",
    "polynomial",
    "polynomial_filter",
    "random_walks",
    "read_graph",
    "recurrence",
    "right_singular_vectors",
    "scan_plan",
    "singular_value_attention",
    "singular_value_context",
    "singular_value_filter",
    "singular_value_matrix",
    "softmax_operator",
    "sparse_product",
    "spectral_product",
    "spine_plan",
    "spine_product",
    "squared_distances",
    "step_mask",
    "sum_rows",
    "transition_matrix",
    "update_keys",
    "walk_product",
    "zero_blind_rows",
    "zero_where_masked",
]
