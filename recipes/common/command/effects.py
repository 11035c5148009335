"""Which options have an effect only beside others: one that is given without them is refused.

Here are the options that several recipes have; those of one recipe are its `effects`. Does not
import Keras.
"""

import argparse
from collections.abc import Container, Sequence
from typing import Any

from recipes.common.attentions import ATTENTIONS, RATE
from recipes.common.command.options import OF_WALKS, WITHOUT_STRUCTURE
from recipes.common.command.parsing import UsageError, flags


class Except:
    """All values but some."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __contains__(self, value: Any) -> bool:
        return value not in self.values


GIVEN = Except(None, False)
WITHOUT_HEADS = ("gcn", "sgc", "gin", *WITHOUT_STRUCTURE)
_WITH_RATE = {name for name, one in ATTENTIONS.items() if RATE in one.options}


class Effect:
    """Options that have an effect only if one of some other options has one of its values.

    Of a list, such as `--attention`, one value is enough. In a recipe without one of the other
    options, they always have an effect.
    """

    def __init__(self, *options: str, **beside: Container[Any]) -> None:
        self.options, self.beside = options, beside

    def refuse(
        self, given: Container[str], options: argparse.Namespace, attentions: Container[str]
    ) -> None:
        """Raises `UsageError` if one of the options is given and has no effect."""
        idle = [name for name in self.options if name in given]
        if not idle or not all(hasattr(options, name) for name in self.beside):
            return
        values = {name: getattr(options, name) for name in self.beside}
        if any(_meets(values[name], wanted) for name, wanted in self.beside.items()):
            return
        now = " and ".join(_shown(name, value) for name, value in values.items())
        needed = []
        for name, wanted in self.beside.items():
            texts = [one for one in wanted if one] if isinstance(wanted, tuple) else []
            texts = [one for one in texts if name != "attention" or one in attentions]
            needed += [f"{flags([name])} {' or '.join(texts)}"] if texts else []
        only = f"; it is for {', or '.join(needed)}" if needed else ""
        raise UsageError(f"{flags(idle[:1])} has no effect {now}{only}")


def _meets(value: Any, wanted: Container[Any]) -> bool:
    return any(one in wanted for one in (value if isinstance(value, list) else [value]))


def _shown(name: str, value: Any) -> str:
    if value is None or value is False:
        return f"without {flags([name])}"
    values = [] if value is True else value if isinstance(value, list) else [value]
    return " ".join([f"with {flags([name])}", *[",".join(map(str, values))] * bool(values)])


EFFECTS = (
    Effect("patience", validation_fraction=Except(0.0)),
    Effect("patience", choose_by=Except("last_epoch")),
    Effect("where", attention=Except("softmax")),
    Effect(RATE, mask=Except("none"), attention=_WITH_RATE - {"masked_kernel"}),
    Effect(RATE, filter=GIVEN, attention=_WITH_RATE - {"edges"}),
    # of models of graphs
    Effect("walks", "walk_length", attention=OF_WALKS),
    Effect(
        *("layers", "heads", "key_dim", "dropout", "embedding", "skip"),
        attention=Except(*WITHOUT_STRUCTURE),
    ),
    Effect("last_heads", layers=Except(1)),
    Effect("last_heads", attention=Except(*WITHOUT_HEADS)),
    Effect("feed_forward", linear_head=Except(True), attention=("deep_multisets",)),
    Effect("relu_head", linear_head=Except(True)),
    Effect("penalise_biases", penalty=Except(0.0)),
)


def refuse_without_effect(
    options: argparse.Namespace,
    given: Container[str],
    attentions: Container[str],
    effects: Sequence[Effect],
) -> None:
    """Raises `UsageError` for an option of the command line that has no effect beside the others.

    `attentions` are those of the recipe, and `effects` those of its own.
    """
    for effect in (*EFFECTS, *effects):
        effect.refuse(given, options, attentions)
