"""A task that is made around a converted backbone comes back from its preset as it was."""

import json

import keras_hub
import numpy as np
import pytest

import keras_graphattn
from tests.hub.families import family
from tests.hub.models import outputs, random_inputs


def classifier():
    backbone = keras_graphattn.convert(family("bert").make(), order=4)
    return keras_hub.models.BertTextClassifier(backbone, num_classes=3, preprocessor=None)


@pytest.mark.parametrize("kind", ["TextClassifier", "BertTextClassifier"])
@pytest.mark.slow_on("jax")
def test_loads_with_its_head(kind, tmp_path):
    task = classifier()
    assert type(task) is keras_hub.models.BertTextClassifier
    task.save_to_preset(str(tmp_path))
    loaded = getattr(keras_hub.models, kind).from_preset(str(tmp_path), preprocessor=None)
    assert isinstance(loaded, keras_hub.models.BertTextClassifier)
    inputs = random_inputs(task.backbone)
    for new, old in zip(outputs(loaded, inputs), outputs(task, inputs), strict=True):
        np.testing.assert_allclose(new, old, rtol=0, atol=1e-6)
    other = getattr(keras_hub.models, kind).from_preset(
        str(tmp_path), preprocessor=None, num_classes=5
    )
    assert outputs(other, inputs)[0].shape == (2, 5)


def test_an_older_file_of_another_backbone_stays_as_it_is(tmp_path):
    plain = keras_hub.models.BertTextClassifier(family("bert").make(), 3, preprocessor=None)
    plain.save_to_preset(str(tmp_path))
    before = (tmp_path / "task.json").read_text()
    classifier().backbone.save_to_preset(str(tmp_path))
    assert (tmp_path / "task.json").read_text() == before
    assert json.loads(before)["class_name"] == "BertTextClassifier"
