"""The version of this release, which the build also reads, and how to install it.

No package index has the package yet. When one does, change the commands here.
"""

__version__ = "0.1.0"

INSTALL_EXTRA = 'pip install -e ".[{}]"'  # the extras; in a checkout of the repository
# The extras, and the owner and name of the repository
INSTALL_FROM_GITHUB = 'pip install "keras-graphattn[{}] @ git+https://github.com/{}"'
