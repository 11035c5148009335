"""Pure functions on tensors: no weights, any Keras backend."""

from keras_graphattn.ops.attention import (
    attention_matrix,
    fused_operator,
    matrix_operator,
    softmax_operator,
)
from keras_graphattn.ops.attention_mask import AttentionMask, joined_mask, zero_blind_rows
from keras_graphattn.ops.blocks import map_query_blocks
from keras_graphattn.ops.blockwise import BlockwiseOperator
from keras_graphattn.ops.caching import CachedOperator, initial_cache, step_mask, update_keys
from keras_graphattn.ops.causal_singular import (
    RunningSum,
    causal_singular_value_attention,
    empty_running_sum,
)
from keras_graphattn.ops.filters import (
    filter_matrix,
    first_order_filter,
    plain_attention_coefficients,
    polynomial_filter,
)
from keras_graphattn.ops.p_laplacian import (
    centred_values,
    p_laplacian_attention,
    p_laplacian_weights,
    squared_distances,
)
from keras_graphattn.ops.polynomials import BASES, check_basis, check_order, polynomial, recurrence
from keras_graphattn.ops.precision import (
    at_least_float32,
    hidden_logit,
    masked_log_softmax,
    masked_softmax,
    zero_where_masked,
)
from keras_graphattn.ops.singular import (
    attend_to_context,
    left_singular_vectors,
    orthogonality_penalty,
    right_singular_vectors,
    singular_value_attention,
    singular_value_context,
    singular_value_filter,
    singular_value_matrix,
)

__all__ = [
    "BASES",
    "AttentionMask",
    "BlockwiseOperator",
    "CachedOperator",
    "RunningSum",
    "at_least_float32",
    "attend_to_context",
    "attention_matrix",
    "causal_singular_value_attention",
    "centred_values",
    "check_basis",
    "check_order",
    "empty_running_sum",
    "filter_matrix",
    "first_order_filter",
    "fused_operator",
    "hidden_logit",
    "initial_cache",
    "joined_mask",
    "left_singular_vectors",
    "map_query_blocks",
    "masked_log_softmax",
    "masked_softmax",
    "matrix_operator",
    "orthogonality_penalty",
    "p_laplacian_attention",
    "p_laplacian_weights",
    "plain_attention_coefficients",
    "polynomial",
    "polynomial_filter",
    "recurrence",
    "right_singular_vectors",
    "singular_value_attention",
    "singular_value_context",
    "singular_value_filter",
    "singular_value_matrix",
    "softmax_operator",
    "squared_distances",
    "step_mask",
    "update_keys",
    "zero_blind_rows",
    "zero_where_masked",
]
