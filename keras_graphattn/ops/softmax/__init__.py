"""Softmax attention as an operator: dense, in blocks of query rows, fused, cached; and p-Laplacian
attention.

Entry points: `softmax_operator`, `BlockwiseOperator`, `fused_operator`, `p_laplacian_attention`.
Naive twins: `tests/reference_dense.py`.
"""
