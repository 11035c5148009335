"""Every tiny backbone of the hub's tests in one table, with the task that stands for its tasks."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import keras_hub

from tests.hub import biased_decoders, encoders, models, rotary_decoders

# Of the tasks of a backbone, one of the first of these kinds stands for all.
KINDS = ("CausalLM", "Seq2SeqLM", "TextClassifier", "ImageClassifier", "MaskedLM")


class Family(NamedTuple):
    """One backbone: a function that makes a random one, and the class of its task, if any."""

    make: Callable[[], Any]
    task: Any = None

    def make_task(self, backbone):
        """The task around a backbone."""
        if issubclass(
            self.task, (keras_hub.models.TextClassifier, keras_hub.models.ImageClassifier)
        ):
            return self.task(backbone=backbone, num_classes=3, preprocessor=None)
        return self.task(backbone=backbone, preprocessor=None)


def task_class(backbone_class):
    """The class of a task of this backbone, or `None` if KerasHub has none of the usual kinds."""
    public = [cls for cls in vars(keras_hub.models).values() if isinstance(cls, type)]
    for kind in KINDS:
        for cls in public:
            of_kind = issubclass(cls, getattr(keras_hub.models, kind))
            if of_kind and getattr(cls, "backbone_cls", None) is backbone_class:
                return cls
    return None


TABLES = (
    (models.BACKBONES, models.random_backbone),
    (rotary_decoders.BACKBONES, rotary_decoders.tiny),
    (biased_decoders.DECODERS, biased_decoders.random_decoder),
    (encoders.ENCODERS, encoders.random_encoder),
)
FAMILIES = {name: partial(make, name) for table, make in TABLES for name in table}
WITHOUT_TASK = ("gemma3_embedding",)  # sees the future, so that it generates nothing


def family(name):
    """The family of this name."""
    make = FAMILIES[name]
    return Family(make, None if name in WITHOUT_TASK else task_class(type(make())))
