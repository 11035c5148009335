"""Products with matrices of a tree's distances, in less than quadratic time.

Entry points: `exponential_tree_product`, `depth_table_product`, `centroid_product`,
`spine_product`; `trees.choice` picks one. Naive twins: `tests/reference_topology.py`.
"""
