"""`python -m recipes.text_classification`."""

from recipes.common.program import run_program

run_program("recipes.text_classification.command")
