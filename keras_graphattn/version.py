"""The version of this release, which the build also reads, and how to install it."""

__version__ = "0.1.0"

# In a checkout of the repository, as no package index has the package.
INSTALL_EXTRA = 'pip install -e ".[{}]"'
