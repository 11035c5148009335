"""Attention as a linear operator `x -> A x`, one class for each kind.

Layers make operators, filters are functions of them. `Visibility` says which pairs of positions see
each other.
"""

from keras_graphattn.operators.blockwise import BlockwiseOperator
from keras_graphattn.operators.delta_rule import DeltaRuleOperator
from keras_graphattn.operators.device_kernels import use_kernels
from keras_graphattn.operators.differential import DifferentialOperator
from keras_graphattn.operators.edges import EdgeOperator, VirtualNodes
from keras_graphattn.operators.fused import FusedOperator
from keras_graphattn.operators.kernel import KernelOperator
from keras_graphattn.operators.operator import Operator, Visibility
from keras_graphattn.operators.p_laplacian import PLaplacian, PLaplacianOperator
from keras_graphattn.operators.singular import SingularOperator
from keras_graphattn.operators.softmax import (
    Logits,
    MatrixOperator,
    SoftmaxOperator,
    WeightedSoftmaxOperator,
)

__all__ = [
    "BlockwiseOperator",
    "DeltaRuleOperator",
    "DifferentialOperator",
    "EdgeOperator",
    "FusedOperator",
    "KernelOperator",
    "Logits",
    "MatrixOperator",
    "Operator",
    "PLaplacian",
    "PLaplacianOperator",
    "SingularOperator",
    "SoftmaxOperator",
    "VirtualNodes",
    "Visibility",
    "WeightedSoftmaxOperator",
    "use_kernels",
]
