"""Base classes and functions that the public layers are built from."""
