"""Every tiny backbone of the hub's tests in one table, with the task that stands for its tasks."""

import functools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import keras_hub
import pytest

from tests.hub import (
    biased_decoders,
    composed_models,
    encoders,
    models,
    rotary_decoders,
    sequence_to_sequence,
    vision_models,
)

# Of the tasks of a backbone, one of the first of these kinds stands for all.
KINDS = (
    *("CausalLM", "Seq2SeqLM", "TextClassifier", "ImageClassifier", "MaskedLM"),
    *("ImageSegmenter", "DepthEstimator"),
)
CLASSIFIERS = (keras_hub.models.TextClassifier, keras_hub.models.ImageClassifier)
# What makes a random backbone, and what makes inputs for it.
TABLES = (
    (models.BACKBONES, models.random_backbone, models.random_inputs),
    (rotary_decoders.BACKBONES, rotary_decoders.tiny, models.random_inputs),
    (biased_decoders.DECODERS, biased_decoders.random_decoder, models.random_inputs),
    (encoders.ENCODERS, encoders.random_encoder, encoders.inputs_of),
    (vision_models.VISION, vision_models.random_vision, vision_models.images),
    (
        sequence_to_sequence.MODELS,
        sequence_to_sequence.random_model,
        sequence_to_sequence.inputs_of,
    ),
    (
        composed_models.COMPOSED,
        composed_models.random_composed,
        composed_models.inputs_of,
    ),
)
FAMILIES = {name: (partial(make, name), inputs) for table, make, inputs in TABLES for name in table}
# Further forms of these, which the table of reach leaves out.
VARIANTS = {
    name: (partial(biased_decoders.random_decoder, name), models.random_inputs)
    for name in biased_decoders.VARIANTS
}
# One of each kind of attention and of input; in the fast suite, they stand for all.
REPRESENTATIVE = ("bert", "llama", "gemma2", "deberta_v3", "t5", "swin")
NO_TASK_OF_ITS_OWN = ("Gemma4AssistantCausalLM",)  # proposes tokens to another model
WITHOUT_TASK = ("gemma3_embedding",)  # sees the future, so that it generates nothing


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
        holders = vision_models, sequence_to_sequence, composed_models, biased_decoders
        tables = [holder.WHERE for holder in holders]
        return next((table[self.name] for table in tables if self.name in table), "all")

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


def fast_families():
    """The names of all, of which only the representative ones are in the fast suite."""
    return [
        name if name in REPRESENTATIVE else pytest.param(name, marks=pytest.mark.slow)
        for name in FAMILIES
    ]
