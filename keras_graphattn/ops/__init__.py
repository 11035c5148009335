"""Pure functions on tensors: no weights, any Keras backend."""

from keras_graphattn.ops.filters import first_order_filter
from keras_graphattn.ops.polynomials import BASES, check_basis, check_order, polynomial, recurrence
from keras_graphattn.ops.precision import at_least_float32, masked_softmax, zero_where_masked
from keras_graphattn.ops.singular import (
    left_singular_vectors,
    orthogonality_penalty,
    right_singular_vectors,
    singular_value_attention,
    singular_value_filter,
    singular_value_matrix,
)

__all__ = [
    "BASES",
    "at_least_float32",
    "check_basis",
    "check_order",
    "first_order_filter",
    "left_singular_vectors",
    "masked_softmax",
    "orthogonality_penalty",
    "polynomial",
    "recurrence",
    "right_singular_vectors",
    "singular_value_attention",
    "singular_value_filter",
    "singular_value_matrix",
    "zero_where_masked",
]
