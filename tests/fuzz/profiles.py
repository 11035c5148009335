"""How many examples the fuzz tests try: some always, many in the slow tests."""

import keras
from hypothesis import settings

# JAX compiles, and TensorFlow is slow without compiling; the checks are the same on all backends.
EXAMPLES = {"torch": 12, "tensorflow": 2, "jax": 2}

cheap = settings(max_examples=EXAMPLES.get(keras.backend.backend(), 2), derandomize=True)
wide = settings(max_examples=60, derandomize=False)
