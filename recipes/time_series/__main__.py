"""`python -m recipes.time_series`."""

from recipes.common.program import run_program

run_program("recipes.time_series.command")
