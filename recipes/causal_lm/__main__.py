"""`python -m recipes.causal_lm`."""

from recipes.common.program import run_program

run_program("recipes.causal_lm.command")
