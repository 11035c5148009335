"""What the SavedModel of a KerasHub task takes."""

from typing import Any

import keras


def served_inputs(task: Any, length: int) -> dict[str, Any]:
    """Inputs of open length, which is `length` where jax writes the SavedModel.

    KerasHub's position embeddings cannot leave JAX at an open length.
    """
    size = length if keras.backend.backend() == "jax" else None
    return {
        name: keras.Input((size,), dtype=tensor.dtype, name=name)
        for name, tensor in task.input.items()
    }
