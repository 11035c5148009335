"""Every tiny backbone of the hub's tests in one table, with the task that stands for its tasks."""

import functools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import keras_hub
import pytest

import keras_graphattn
from tests.hub import (
    biased_decoders,
    composed_models,
    encoders,
    image_towers,
    models,
    rotary_decoders,
    sequence_to_sequence,
    vision_models,
)
from tests.hub.models import moved, randomised

# Of the tasks of a backbone, one of the first of these kinds stands for all.
KINDS = (
    *("CausalLM", "Seq2SeqLM", "TextClassifier", "ImageClassifier", "MaskedLM"),
    *("ImageSegmenter", "DepthEstimator"),
)
CLASSIFIERS = (keras_hub.models.TextClassifier, keras_hub.models.ImageClassifier)
# Tiny models by name, and what makes their inputs.
TABLES = (
    (models.BACKBONES, models.random_inputs),
    (rotary_decoders.BACKBONES, models.random_inputs),
    (biased_decoders.DECODERS, models.random_inputs),
    (encoders.ENCODERS, encoders.inputs_of),
    (vision_models.VISION, vision_models.images),
    (sequence_to_sequence.MODELS, sequence_to_sequence.inputs_of),
    (composed_models.COMPOSED, composed_models.inputs_of),
)
SEEDS = {**biased_decoders.SEEDS, **sequence_to_sequence.SEEDS}
BY_FAN_IN = (
    *(*vision_models.VISION, *composed_models.COMPOSED),
    *(*composed_models.VARIANTS, *image_towers.TOWERS),
)
SIZES = {**dict.fromkeys(BY_FAN_IN, models.by_fan_in), **sequence_to_sequence.SIZES}


def drawn(name, make, **options):
    """A backbone with random weights; those of a variant are as its family's."""
    name = name.removesuffix("_borrowing").removesuffix("_mixed")
    return randomised(make(**options), SEEDS.get(name, 0), SIZES.get(name, 0.4))


def rows(table, inputs):
    """What makes a random backbone, and what makes inputs for it, by name."""
    return {name: (partial(drawn, name, make), inputs) for name, make in table.items()}


FAMILIES = {}
for table, inputs in TABLES:
    FAMILIES |= rows(table, inputs)
# Further forms of these, and towers that are models of their own. They are not in the table of
# reach.
VARIANTS = rows(biased_decoders.VARIANTS, models.random_inputs)
VARIANTS |= rows(composed_models.VARIANTS, composed_models.inputs_of)
for name, make in image_towers.TOWERS.items():
    VARIANTS |= rows({name: make}, partial(image_towers.inputs_of, name))
# One of each kind of attention and of input; in the fast suite, they stand for all.
REPRESENTATIVE = ("bert", "llama", "gemma2", "deberta_v3", "t5", "swin")
NO_TASK_OF_ITS_OWN = ("Gemma4AssistantCausalLM",)  # proposes tokens to another model
WITHOUT_TASK = ("gemma3_embedding",)  # sees the future, so that it generates nothing
HOLDERS = (vision_models, sequence_to_sequence, composed_models, biased_decoders)
WHERE = {name: where for holder in HOLDERS for name, where in holder.WHERE.items()}


class Family(NamedTuple):
    """One backbone.

    Attributes:
        name: Its name.
        kind: Its class.
        make: Makes a random one.
        inputs: Makes its inputs by name, of two examples.
        task: The class of its task, or `None`.
    """

    name: str
    kind: type
    make: Callable[[], Any]
    inputs: Callable[[Any], dict[str, Any]]
    task: Any = None

    @property
    def where(self):
        """The layers that can be converted."""
        return WHERE.get(self.name, "all")

    def make_task(self, backbone):
        """The task around a backbone."""
        if self.name == "parseq":
            return sequence_to_sequence.parseq_task(backbone)
        if self.name in sequence_to_sequence.TASKS:
            return sequence_to_sequence.task(self.name, backbone)
        if self.name in composed_models.TASKS:
            return composed_models.TASKS[self.name](backbone)
        options = {"num_classes": 3} if issubclass(self.task, CLASSIFIERS) else {}
        return self.task(backbone=backbone, preprocessor=None, **options)


def task_class(backbone_class):
    """The class of a task of this backbone, or `None` if KerasHub has none of the usual kinds."""
    public = [cls for cls in vars(keras_hub.models).values() if isinstance(cls, type)]
    for kind in KINDS:
        for cls in public:
            of_kind = issubclass(cls, getattr(keras_hub.models, kind))
            if cls.__name__ in NO_TASK_OF_ITS_OWN:
                continue
            if of_kind and getattr(cls, "backbone_cls", None) is backbone_class:
                return cls
    return None


@functools.cache
def family(name):
    """The family of this name."""
    make, inputs = {**FAMILIES, **VARIANTS}[name]
    kind = type(make())
    task = None if name in WITHOUT_TASK else task_class(kind)
    return Family(name, kind, make, inputs, task)


def converted(name, attention="graph_filter", **options):
    """A converted backbone; the coefficients of its filters are away from their start."""
    options = {"order": 4, **options} if attention == "graph_filter" else options
    kind = family(name)
    return moved(keras_graphattn.convert(kind.make(), attention, kind.where, **options))


def fast_for(names, chosen=REPRESENTATIVE):
    """Cases of which only the chosen ones are in the fast suite."""
    return [
        name if name in chosen else pytest.param(name, marks=pytest.mark.slow) for name in names
    ]


def all_but(names, later):
    """Cases of which the fast suite leaves some out."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in later else name for name in names]
