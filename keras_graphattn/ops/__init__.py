"""Pure functions on tensors: no weights, any Keras backend."""

from keras_graphattn.ops.causal_singular import (
    RunningSum,
    causal_singular_value_attention,
    empty_running_sum,
)
from keras_graphattn.ops.filters import first_order_filter
from keras_graphattn.ops.polynomials import BASES, check_basis, check_order, polynomial, recurrence
from keras_graphattn.ops.precision import (
    at_least_float32,
    hidden_logit,
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
    "RunningSum",
    "at_least_float32",
    "attend_to_context",
    "causal_singular_value_attention",
    "check_basis",
    "check_order",
    "empty_running_sum",
    "first_order_filter",
    "hidden_logit",
    "left_singular_vectors",
    "masked_softmax",
    "orthogonality_penalty",
    "polynomial",
    "recurrence",
    "right_singular_vectors",
    "singular_value_attention",
    "singular_value_context",
    "singular_value_filter",
    "singular_value_matrix",
    "zero_where_masked",
]
