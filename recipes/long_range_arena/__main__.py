"""`python -m recipes.long_range_arena`."""

import sys

from recipes.long_range_arena.command import main

sys.exit(main())
