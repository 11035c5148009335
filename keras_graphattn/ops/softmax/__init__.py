"""Softmax attention as an operator (dense, blockwise, fused or cached), and p-Laplacian attention.

Entry points: `softmax_operator`, `BlockwiseOperator`, `fused_operator`, `p_laplacian_attention`.
Naive forms for comparison: `tests/reference_dense.py`.
"""
