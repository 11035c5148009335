"""Where the original calls a fused kernel, so does its graph filter."""

import importlib

import keras
import pytest

import keras_graphattn
from tests.hub.families import family
from tests.hub.models import assert_equal_outputs, outputs

UTILITIES = "keras_hub.src.utils.keras_utils"
ENCODERS = ("dinov3", "esm", "roformer_v2")  # they call the backend's attention on any device
WITH_KERNEL = ("llama", "mistral", "phi3", "smollm3", "gpt_neo_x", "gemma", *ENCODERS)
WITHOUT = ("gemma2", "bloom", "falcon", "gpt_oss")  # a soft cap, a bias or a sink: A is formed


@pytest.fixture
def calls(monkeypatch):
    """The calls of the backend's attention, on a machine that seems to have a graphics card."""
    utilities = importlib.import_module(UTILITIES)
    gemma = importlib.import_module("keras_hub.src.models.gemma.gemma_attention")
    for module in (utilities, gemma):
        monkeypatch.setattr(module, "running_on_gpu", lambda: True)
        monkeypatch.setattr(module, "gpu_supports_fused_attention_op", lambda: True)
    found, original = [], keras.ops.dot_product_attention

    def counted(*arguments, **options):
        found.append(arguments)
        return original(*arguments, **options)

    for module in (keras.ops, keras.ops.nn):
        monkeypatch.setattr(module, "dot_product_attention", counted)
    return found


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", [*WITH_KERNEL, *WITHOUT])
def test_a_filter_calls_the_kernel_once_for_each_application(name, calls):
    has_kernel = name in WITH_KERNEL and (
        name in ENCODERS or keras.backend.backend() != "tensorflow"
    )
    backbone = family(name).make()
    inputs = family(name).inputs(backbone)
    expected = outputs(backbone, inputs)
    plain = len(calls)
    assert bool(plain) == has_kernel
    calls.clear()
    keras_graphattn.convert(backbone, "graph_filter", order=4)
    assert_equal_outputs(outputs(backbone, inputs), expected, tolerance=1e-5)
    assert len(calls) == 2 * plain
