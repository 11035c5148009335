"""What keeps numbers right: float32 and float64 inside, NaN kept, and gradients of our own.

Entry points: `at_least_float32`, `masked_softmax`, `FunctionWithGradient`.
"""
