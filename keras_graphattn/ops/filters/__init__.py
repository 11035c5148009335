"""Graph filters of any operator, and their polynomials.

Entry points: `first_order_filter`, `polynomial_filter`, `recurrence`. Naive forms for comparison:
`tests/reference_dense.py` and `tests/filters/reference.py`.
"""
