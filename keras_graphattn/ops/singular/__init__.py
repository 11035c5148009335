"""Attention in a learned singular-value domain (AGF), over whole sequences and causal.

Entry points: `singular_value_context` with `attend_to_context`, and
`causal_singular_value_attention`. Naive forms for
comparison: `tests/reference_singular.py`.
"""
