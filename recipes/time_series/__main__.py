"""`python -m recipes.time_series`."""

import sys

from recipes.time_series.command import main

sys.exit(main())
