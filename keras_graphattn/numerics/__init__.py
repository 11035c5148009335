"""Accurate numbers: float32 and float64 inside, NaN that spreads, and custom gradients.

Entry points: `at_least_float32`, `masked_softmax`, `FunctionWithGradient`.
"""
