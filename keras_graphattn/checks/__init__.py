"""Checks of the arguments of functions, layers and calls."""
