"""Presets that a recipe cannot start from, and options that have no use beside one.

Imports no Keras by itself.
"""

import argparse
import importlib.util
from collections.abc import Sequence
from typing import Any

from recipes.common.command.parsing import UsageError

CONVERTED = "holds converted attention already: give the preset that it was made of"


def refuse_beside_preset(options: argparse.Namespace, names: Sequence[str]) -> None:
    """Refuses options of models that are made from scratch, and a preset without KerasHub.

    Args:
        options: The command line's options, with a preset.
        names: The options that have no use then; where one is not given it is `None` or `False`.

    Raises:
        UsageError: Naming the option, or the package.
    """
    for name in names:
        if getattr(options, name) not in (None, False):
            raise UsageError(
                f"--{name.replace('_', '-')} has no use beside --preset {options.preset}, which "
                "says what the model is"
            )
    if importlib.util.find_spec("keras_hub") is None:
        raise UsageError("--preset needs KerasHub: pip install keras-hub")


def refused_preset(preset: str, error: Exception) -> UsageError:
    """What is said of a preset that KerasHub cannot load."""
    if "GraphAttention" in str(error):
        return UsageError(f"--preset {preset} {CONVERTED}")
    return UsageError(
        f"--preset {preset} cannot be loaded: {type(error).__name__}: {str(error)[:300]}"
    )


def refuse_converted(preset: str | None, backbone: Any) -> None:
    """Raises `UsageError` for a backbone in which some attention is converted."""
    from keras_graphattn.hub.saving import conversions_of

    if conversions_of(backbone).entries:
        raise UsageError(f"--preset {preset} {CONVERTED}")
