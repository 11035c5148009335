"""Kernel attention: features, Algorithm 1, and sums in chunks.

Entry points: `kernel.attention`, `kernel.chunks` and `kernel.features`. Naive twins:
`tests/reference_kernel.py`.
"""
