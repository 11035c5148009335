"""One training step of every layer, mask, bias and of converted models, compiled for a device.

`STEPS` names what is trained. A function of `COMPILERS` compiles a step as the backend does it on
a GPU or TPU, and fails where something in it keeps the backend from that. No function needs such a
device: jax lowers for a platform that is not there, XLA of TensorFlow compiles for the CPU by the
same rules, and torch traces one graph of the forward and of the backward pass.
"""

import inspect
import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_graphattn.keras_internals import walk
from tests.layers.unseen_cases import BATCH, CASES, CHANNELS, LENGTH, scene
from tests.numerics import assert_all_close, dtype_policy, randomise, to_numpy

TOKENS = np.random.default_rng(0).standard_normal((BATCH, LENGTH, CHANNELS)).astype("float32")
# Families of KerasHub, and the attentions that replace theirs
HUB = {
    "bert": ("graph_filter", "p_laplacian", "attentive_graph_filter", "masked_kernel"),
    "vit": ("graph_filter", "p_laplacian", "attentive_graph_filter", "masked_kernel"),
    "gpt2": ("graph_filter", "p_laplacian"),
    "llama": ("graph_filter", "p_laplacian"),
}
DTYPES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


class Step(NamedTuple):
    """What is trained, with the arguments of its call."""

    model: Any
    inputs: Any
    call: dict[str, Any]  # arrays
    flags: dict[str, bool]

    def loss(self, inputs: Any, call: Any) -> Any:
        """The mean square of all outputs, in float32."""
        outputs = keras.tree.flatten(self.model(inputs, **call, **self.flags))
        return sum(ops.mean(ops.square(ops.cast(x, "float32"))) for x in outputs)


def layer_step(name: str) -> Step:
    """A layer under padding, with the inputs of its mask and of its bias."""
    layer = CASES[name].make()
    layer.build(TOKENS.shape)
    randomise(layer)
    has_training = "training" in inspect.signature(layer.call).parameters
    flags = {"training": True} if has_training else {}
    return Step(layer, TOKENS, scene(name, "padding", layer).call, flags)


def _model_step(name: str, attention: str) -> Step:
    from tests.hub.families import converted, family  # KerasHub takes seconds to import
    from tests.hub.models import as_given

    model = converted(name, attention)
    return Step(model, as_given(model, family(name).inputs(model)), {}, {"training": True})


STEPS: dict[str, Callable[[], Step]] = {
    **{name: partial(layer_step, name) for name in CASES},
    **{
        f"{name}, {attention}": partial(_model_step, name, attention)
        for name, attentions in HUB.items()
        for attention in attentions
    },
}


def on_jax(step: Step, platform: str) -> None:
    """The step of loss, gradients and Adam, lowered for "cuda" or "tpu".

    The module calls nothing on the host, and has no number of 64 bits but integers.
    """
    import jax

    model, optimizer = step.model, keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    def train(trained: Any, slots: Any, state: Any, inputs: Any, call: Any) -> Any:
        def loss(trained: Any) -> Any:
            pairs = zip(model.trainable_variables, trained, strict=True)
            others = zip(model.non_trainable_variables, state, strict=True)
            with keras.StatelessScope(state_mapping=[*pairs, *others]) as scope:
                total = step.loss(inputs, call)
            now = [scope.get_current_value(v) for v in model.non_trainable_variables]
            return total, now

        (total, now), gradients = jax.value_and_grad(loss, has_aux=True)(trained)
        if trained:
            trained, slots = optimizer.stateless_apply(slots, gradients, trained)
        return total, trained, slots, now

    groups = (model.trainable_variables, optimizer.variables, model.non_trainable_variables)
    values = [[variable.value for variable in group] for group in groups]
    compiled = jax.jit(train)
    module = jax.export.export(compiled, platforms=[platform])(*values, step.inputs, step.call)
    assert module.platforms == (platform,)
    text = module.mlir_module()
    assert not re.findall(r"\w*callback\w*|\w*infeed\w*|\w*outfeed\w*", text)
    assert not re.findall(r"\bf64\b|xf64\b|complex<f64>", text)


def on_tensorflow(step: Step) -> None:
    """The step of loss, gradients and Adam, compiled by XLA. It runs on the CPU."""
    import tensorflow as tf

    model, optimizer = step.model, keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=True)
    def train(inputs: Any, call: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = step.loss(inputs, call)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        if gradients:
            optimizer.apply(gradients, model.trainable_variables)
        return loss, gradients

    _check(*train(*keras.tree.map_structure(tf.constant, (step.inputs, step.call))))


def on_torch(step: Step, in_parts: bool = False) -> None:
    """The loss as one graph, with the graph of its gradients, and without a warning.

    In float32, the gradients are those without a compiler. The backend traces both graphs as
    Inductor gets them. Inductor would make kernels of them. With `in_parts`, there may be several
    graphs, with Python between them.
    """
    import torch

    torch.compiler.reset()
    weights = [variable.value for variable in step.model.trainable_variables]
    tensors = keras.tree.map_structure(torch.as_tensor, (step.inputs, step.call))
    compiled = torch.compile(
        step.loss, backend="aot_eager_decomp_partition", fullgraph=not in_parts
    )
    with warnings.catch_warnings():
        # such as those of the compiler
        warnings.simplefilter("ignore" if in_parts else "error", UserWarning)
        loss = compiled(*tensors)
        gradients = torch.autograd.grad(loss, weights, allow_unused=True) if weights else []
    _check(loss, gradients)
    dropouts = (part for part in walk(step.model) if isinstance(part, keras.layers.Dropout))
    is_random = any(part.rate for part in dropouts)
    if weights and step.model.compute_dtype == "float32" and not is_random:
        expected = torch.autograd.grad(step.loss(*tensors), weights, allow_unused=True)
        paths = [variable.path for variable in step.model.trainable_variables]
        both = (zip(paths, some, strict=True) for some in (gradients, expected))
        compiled_ones, others = ({p: to_numpy(x) for p, x in g if x is not None} for g in both)
        assert compiled_ones.keys() == others.keys()
        assert_all_close(compiled_ones, others, 1e-4)


def _check(loss: Any, gradients: Any) -> None:
    assert np.isfinite(to_numpy(loss))
    for gradient in gradients:
        assert gradient is None or np.isfinite(to_numpy(gradient)).all()


COMPILERS: dict[str, dict[str, Callable[[Step], None]]] = {
    "jax": {"CUDA": lambda step: on_jax(step, "cuda"), "TPU": lambda step: on_jax(step, "tpu")},
    "tensorflow": {"XLA": on_tensorflow},
    "torch": {"torch.compile": on_torch},
}
IN_PARTS = {"torch.compile": partial(on_torch, in_parts=True)}  # where one graph is not possible


def compiled(name: str, target: str, dtype: str, in_parts: bool = False) -> None:
    """Compiles the step of this name for one target of the backend."""
    keras.utils.set_random_seed(0)
    compilers = IN_PARTS if in_parts else COMPILERS[keras.backend.backend()]
    with dtype_policy(DTYPES[dtype]):
        compilers[target](STEPS[name]())
