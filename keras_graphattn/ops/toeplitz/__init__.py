"""Products with Toeplitz, block-Toeplitz and hypercube matrices, by FFT, by rows and by tiles.

Entry point: `toeplitz_product`. The naive versions are in `tests/reference_toeplitz.py`.
"""
