"""What a converted backbone must be able to do: one function for each column of the table of reach.

Each takes a `Case` and an empty folder. It fails where the ability is broken, and calls `lacks`
where the original does not have it.
"""

import functools

import keras
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn.hub.families import view
from keras_graphattn.hub.slots import added_variables, attention_slots
from tests.hub.containers import OPTIONS
from tests.hub.decoding import greedy, logits, of_decoder, prompts_of
from tests.hub.families import family
from tests.hub.models import assert_equal_outputs, fit_one_step, moved, outputs
from tests.numerics import to_numpy

# Its scores have no scale: rounding of the weights changes outputs more than in other models.
UNSCALED = ("t5",)


class Case:
    """The name of a backbone and of an attention."""

    def __init__(self, name, attention=None):
        self.name, self.attention = name, attention
        self.family = family(name)

    def converted(self):
        """A converted backbone of its own, whose coefficients have moved, and its inputs.

        Without an attention, the original.
        """
        backbone = self.convert(self.family.make())
        return backbone, self.family.inputs(backbone)

    def convert(self, backbone):
        if self.attention is not None:
            options = OPTIONS.get(self.attention, {})
            keras_graphattn.convert(backbone, self.attention, self.family.where, **options)
        return moved(backbone)

    def shared(self):
        """The same for abilities that leave the model as it is, with its outputs."""
        return _shared(self.name, self.attention)

    def task(self):
        """A task around a converted backbone."""
        if self.family.task is None:
            lacks("a task")
        return self.family.make_task(self.converted()[0])


@functools.lru_cache(maxsize=2)
def _shared(name, attention):
    backbone, inputs = Case(name, attention).converted()
    return backbone, inputs, outputs(backbone, inputs)


def lacks(what):
    pytest.skip(f"KerasHub has no such thing: {what}")


def fit(case, folder):
    """A step of `fit` moves every weight that was added, and leaves no NaN."""
    backbone, inputs = case.converted()
    before = {v.path: to_numpy(v) for v in backbone.trainable_variables}
    fit_one_step(backbone, inputs)
    for variable in backbone.trainable_variables:
        now, old = to_numpy(variable), before[variable.path]
        assert np.isfinite(now).all(), variable.path
        if "coefficient" in variable.path:
            assert np.abs(now - old).max() > 1e-6, variable.path


def generate(case, folder):
    """Each generated token has the largest logit of a full pass over the tokens before it."""
    if not hasattr(case.family.task, "generate"):
        lacks("a task that generates")
    task = case.task()
    given = prompts_of(case.name, task)
    of, tokens = of_decoder(given), greedy(task, given)
    found = logits(task, given, tokens)
    chosen = np.take_along_axis(found[:, :-1], tokens[:, 1:, None], axis=-1)[..., 0]
    is_new = ~np.asarray(given[f"{of}padding_mask"], bool)[:, 1:]
    behind = (found[:, :-1].max(axis=-1) - chosen)[is_new]
    assert behind.size
    assert behind.max() <= 1e-4 * np.abs(found).max()


def lora(case, folder, converted_first=True):
    """Factors on the projections train beside the coefficients; the kernels under them stay."""
    plain, backbone = case.family.make(), case.family.make()
    steps = [case.convert, lambda x: x.enable_lora(2, target_layer_names=lora_targets(x))]
    steps[1](plain)
    for step in steps if converted_first else reversed(steps):
        step(backbone)
    before = {v.path: to_numpy(v) for v in backbone.weights}
    fit_one_step(backbone, case.family.inputs(backbone))
    moves = {v.path for v in backbone.weights if (to_numpy(v) != before[v.path]).any()}
    factors = [path for path in before if path.endswith("lora_kernel_b")]
    assert factors
    assert set(factors) <= moves
    new, trained = set(added_paths(backbone)), {v.path for v in backbone.trainable_variables}
    assert not {path for path in moves - new if path.endswith("/kernel")}
    if case.attention == "graph_filter":
        assert new
        assert new <= trained & moves
        assert len(trained) == len(plain.trainable_variables) + len(new)


def lora_targets(backbone):
    """The names of the projections of its attention that take LoRA factors."""
    found = [view(s.layer).projection_layers() for s in attention_slots(backbone)]
    names = {p.name for each in found for p in each.values() if hasattr(p, "enable_lora")}
    return sorted(names) or lacks("projections that take LoRA factors")


def int8(case, folder):
    """Quantised to eight bits, the outputs are near those of float32.

    They are at most 0.3 of the largest entry away, or twice as far as those of the original.
    """
    found = loss_in_int8(case)
    assert found > 0
    assert found <= 0.3 or found <= 2 * loss_in_int8(Case(case.name))


def loss_in_int8(case):
    """How far the outputs are from those of float32."""
    return loss_of(*case.converted(), "int8")


def loss_of(backbone, inputs, mode, model=None):
    """How far the outputs are from those of float32 once the backbone, or its task, is quantised.

    Three calls with data give float8 its scales.
    """
    exact = outputs(backbone, inputs)
    (model or backbone).quantize(mode)
    for _ in range(3 if mode == "float8" else 0):
        backbone(inputs, training=True)
    return distance(outputs(backbone, inputs), exact)


def bfloat16(case, folder):
    """The whole model in bfloat16, its outputs near those of float32.

    They are at most 0.2 of the largest entry away (T5: 0.3), or twice as far as those of the
    original.
    """
    found = _loss_in_bfloat16(case)
    limit = 0.3 if case.name in UNSCALED else 0.2
    assert found > 0
    assert found <= limit or found <= 2 * _loss_in_bfloat16(Case(case.name))


def _loss_in_bfloat16(case):
    model, inputs, exact = case.shared()
    backbone = type(model).from_config({**model.get_config(), "dtype": "bfloat16"})
    backbone.set_weights([to_numpy(v) for v in model.weights])
    return distance(outputs(backbone, inputs), exact)


def distance(rounded, exact):
    """The largest difference, where the largest entry of each output counts as 1."""
    pairs = zip(rounded, exact, strict=True)
    return max(np.abs(new - old).max() / np.abs(old).max() for new, old in pairs)


def keras_file(case, folder):
    case.shared()[0].save(folder / "model.keras")
    _check_loaded(keras.saving.load_model(folder / "model.keras"), *case.shared())


def preset(case, folder):
    case.shared()[0].save_to_preset(str(folder))
    _check_loaded(case.family.kind.from_preset(str(folder)), *case.shared())


def task_preset(case, folder):
    """A preset of the task, and its file, have the same layers and weights."""
    task = case.task()
    task.save_to_preset(str(folder / "preset"))
    task.save(folder / "task.keras")
    for loaded in (
        case.family.task.from_preset(str(folder / "preset"), preprocessor=None),
        keras.saving.load_model(folder / "task.keras"),
    ):
        assert _rows(loaded) == _rows(task)
        for new, old in zip(loaded.weights, task.weights, strict=True):
            np.testing.assert_array_equal(to_numpy(new), to_numpy(old))


def _check_loaded(loaded, backbone, inputs, expected):
    assert type(loaded) is type(backbone)
    conversions = [model.get_config().get("graph_attention") for model in (loaded, backbone)]
    assert conversions[0] == conversions[1]
    assert _rows(loaded) == _rows(backbone)
    assert added_names(loaded) == added_names(backbone)
    assert_equal_outputs(outputs(loaded, inputs), expected)


def added_paths(model):
    """The paths of the weights that a conversion has added."""
    return [v.path for site in attention_slots(model) for v in added_variables(site.layer)]


def added_names(model):
    """These paths in their layers. Those of layers may differ: Keras numbers what it names."""
    slots = attention_slots(model)
    return [v.path.removeprefix(slot.path) for slot in slots for v in added_variables(slot.layer)]


def _rows(model):
    """What the attention layers are; their names may have numbers that differ."""
    return [(row.class_name, row.parameters_added) for row in keras_graphattn.inspect(model)]


def saved_model(case, folder):
    """The exported graph, without Keras, gives the outputs of the model."""
    import tensorflow as tf

    backbone, inputs, expected = case.shared()
    path = keras_graphattn.export_saved_model(backbone, folder / "served")
    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    wanted = signature.structured_input_signature[1]
    given = {
        name: tf.constant(inputs.get(name, next(iter(inputs.values()))), spec.dtype)
        for name, spec in wanted.items()
    }
    found = signature(**given)
    served = [np.asarray(found[name], "float64") for name in sorted(found)]
    masks = [value for name, value in inputs.items() if "mask" in name]
    for index, array in enumerate(served):
        if masks and array.ndim == 3 and array.shape[1] == masks[0].shape[1]:
            served[index] = array * masks[0][:, :, None]
    tolerance = 5e-5 if case.name in UNSCALED else 1e-5
    assert_equal_outputs(served, expected, tolerance=tolerance)


ABILITIES = {
    "fit": fit,
    "generate": generate,
    "LoRA": lora,
    "int8": int8,
    "bfloat16": bfloat16,
    ".keras": keras_file,
    "preset": preset,
    "task preset": task_preset,
    "SavedModel": saved_model,
}
