"""Graphs as data, and products with matrices of diffusion and of random walks.

Entry points: `read_graph`, `graph_operator`, `spectral_product`, `walk_product`,
`graph_random_product`. The naive versions are in `tests/reference_topology.py`.
"""
