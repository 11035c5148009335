"""`python -m recipes.long_range_arena`."""

from recipes.common.program import run_program

run_program("recipes.long_range_arena.command")
