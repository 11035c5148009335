"""Products with functions of the distances in a tree, in less than quadratic time.

Entry points: `exponential_tree_product` and `table_tree_product`; `trees.choice` chooses their
path. The naive versions are in
`tests/reference_topology.py`.
"""
