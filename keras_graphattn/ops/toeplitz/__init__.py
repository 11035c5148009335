"""Products with Toeplitz, block-Toeplitz and hypercube matrices, by FFT, by rows and by tiles.

Entry point: `toeplitz_product`. Naive twins: `tests/reference_toeplitz.py`.
"""
