"""Where the sources of the site are, and where it is built."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
GUIDES = ROOT / "guides"
OUTPUT = ROOT / "build" / "docs"  # the pages as Markdown
OUTPUTS_OF_GUIDES = ROOT / "build" / "guides"
CONFIG = ROOT / "build" / "mkdocs.yml"
IDENTIFIERS = ROOT / "build" / "identifiers.json"  # of public classes, by their names
# The repository on GitHub, "owner/name". No address is written down: a workflow of GitHub sets this
# variable. Without it, pages have no links to Colab.
REPOSITORY = os.environ.get("GITHUB_REPOSITORY", "")
NOTEBOOKS_ON_GITHUB = f"{REPOSITORY}/blob/gh-pages/latest/guides"  # where mike puts the site
