"""Pure functions on tensors: no weights, any Keras backend."""

from keras_graphattn.numerics.blocks import map_query_blocks
from keras_graphattn.numerics.precision import (
    at_least_float32,
    hidden_logit,
    masked_softmax,
    zero_where_masked,
)
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
from keras_graphattn.ops.graphs.dynamic_walks import kernel_of_steps
from keras_graphattn.ops.graphs.graphs import graph_operator, read_graph, transition_matrix
from keras_graphattn.ops.graphs.random_features import (
    graph_random_features,
    graph_random_product,
    modulation_of_series,
)
from keras_graphattn.ops.graphs.sparse import SparseMatrix, sparse_product, sum_rows
from keras_graphattn.ops.graphs.walks import (
    expected_features,
    features_of_walks,
    random_walks,
    walk_product,
)
from keras_graphattn.ops.kernel.attention import unmasked_attention
from keras_graphattn.ops.kernel.chunks import (
    ChunkedState,
    advanced_state,
    chunked_attention,
    initial_chunked_state,
)
from keras_graphattn.ops.kernel.decays import Decay
from keras_graphattn.ops.kernel.features import (
    elu_features,
    favor_key_features,
    favor_query_features,
    orthogonal_features,
    relu_features,
    squared_relu_features,
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
from keras_graphattn.ops.softmax.additive import additive_scores
from keras_graphattn.ops.softmax.attention import (
    attention_matrix,
    fused_operator,
    matrix_operator,
    softmax_operator,
)
from keras_graphattn.ops.softmax.blockwise import BlockwiseOperator
from keras_graphattn.ops.softmax.caching import (
    CachedOperator,
    initial_cache,
    step_mask,
    update_keys,
)
from keras_graphattn.ops.softmax.distances import squared_distances
from keras_graphattn.ops.softmax.masks import AttentionMask, joined_mask, zero_blind_rows
from keras_graphattn.ops.softmax.p_laplacian import p_laplacian_attention
from keras_graphattn.ops.softmax.re_weighting import p_laplacian_weights
from keras_graphattn.ops.toeplitz.fourier import toeplitz_product
from keras_graphattn.ops.toeplitz.hypercube import hypercube_product
from keras_graphattn.ops.trees.exponential import exponential_tree_product
from keras_graphattn.ops.trees.forests import (
    Forest,
    forest_distances,
    forest_from_graph,
    forest_from_parents,
)
from keras_graphattn.ops.trees.tables import table_tree_product

__all__ = [
    "BASES",
    "AttentionMask",
    "BlockwiseOperator",
    "CachedOperator",
    "ChunkedState",
    "Decay",
    "Forest",
    "RunningSum",
    "SparseMatrix",
    "additive_scores",
    "advanced_state",
    "at_least_float32",
    "attend_to_context",
    "attention_matrix",
    "causal_singular_value_attention",
    "chebyshev_coefficients",
    "chebyshev_matrix",
    "chebyshev_terms",
    "check_basis",
    "check_order",
    "chunked_attention",
    "elu_features",
    "empty_running_sum",
    "expected_features",
    "exponential_tree_product",
    "favor_key_features",
    "favor_query_features",
    "features_of_walks",
    "filter_matrix",
    "first_order_filter",
    "forest_distances",
    "forest_from_graph",
    "forest_from_parents",
    "fused_operator",
    "graph_operator",
    "graph_random_features",
    "graph_random_product",
    "hidden_logit",
    "hypercube_product",
    "initial_cache",
    "initial_chunked_state",
    "joined_mask",
    "kernel_of_steps",
    "left_singular_vectors",
    "map_query_blocks",
    "masked_softmax",
    "matrix_operator",
    "modulation_of_series",
    "orthogonal_features",
    "orthogonality_penalty",
    "p_laplacian_attention",
    "p_laplacian_weights",
    "plain_attention_coefficients",
    "polynomial",
    "polynomial_filter",
    "random_walks",
    "read_graph",
    "recurrence",
    "relu_features",
    "right_singular_vectors",
    "singular_value_attention",
    "singular_value_context",
    "singular_value_filter",
    "singular_value_matrix",
    "softmax_operator",
    "sparse_product",
    "spectral_product",
    "squared_distances",
    "squared_relu_features",
    "step_mask",
    "sum_rows",
    "table_tree_product",
    "toeplitz_product",
    "transition_matrix",
    "unmasked_attention",
    "update_keys",
    "walk_product",
    "zero_blind_rows",
    "zero_where_masked",
]
