"""`python -m recipes.causal_lm`."""

import sys

from recipes.causal_lm.command import main

sys.exit(main())
