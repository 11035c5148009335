"""Checks of arguments: errors for wrong arguments of functions, layers and calls."""
