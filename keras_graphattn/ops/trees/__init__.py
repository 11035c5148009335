"""Products with functions of the distances in a tree, in less than quadratic time.

Entry points: `exponential_tree_product`, `depth_table_product`, `centroid_product`,
`spine_product`; `trees.choice` chooses one of them. The naive versions are in
`tests/reference_topology.py`.
"""
