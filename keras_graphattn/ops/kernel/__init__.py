"""Kernel attention: features, Algorithm 1, and sums in chunks.

Entry points: `kernel.attention`, `kernel.chunks` and `kernel.features`. The naive versions are in
`tests/reference_kernel.py`.
"""
