"""Experiments of the papers, each a command that trains with `model.fit` and writes a table."""
