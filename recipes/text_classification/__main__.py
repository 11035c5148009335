"""`python -m recipes.text_classification`."""

import sys

from recipes.text_classification.command import main

sys.exit(main())
