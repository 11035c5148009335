"""The version, in the one place that is read by both the package and its build."""

__version__ = "0.1.0"
