"""Graph filters of any operator, and the polynomials that they are made of.

Entry points: `first_order_filter`, `polynomial_filter`, `recurrence`. Naive twins:
`tests/reference_dense.py` and `tests/filters/reference.py`.
"""
