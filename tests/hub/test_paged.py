"""No converted layer calls, or passes by, the paged kernel of vLLM in silence."""

import pytest
from keras import ops

import keras_graphattn
from tests.hub import rotary_decoders
from tests.hub.biased_decoders import GENERATING, prompts
from tests.hub.containers import OPTIONS
from tests.hub.decoding import seeded_cache
from tests.hub.families import family
from tests.hub.models import random_inputs

CACHED = ("gpt2", "opt", "llama", "llama3", *rotary_decoders.BACKBONES, *GENERATING)
ROUTED = ("gpt2", "opt", "llama", "llama3", "mistral", "qwen", "qwen3", "gemma", "gemma2", "gemma3")


def serving(called):
    from keras_hub.src.vllm.context import vllm_context_scope

    return vllm_context_scope(
        paged_attention_func=called.append, positions=ops.zeros((2,), "int32")
    )


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("name", CACHED)
def test_decoding_refuses_the_paged_kernel(name, attention):
    task = family(name).make_task(family(name).make())
    keras_graphattn.convert(task, attention, **OPTIONS[attention])
    ids = ops.convert_to_tensor(prompts()["token_ids"])
    cache, called = seeded_cache(task, ids), []
    index = ops.convert_to_tensor(0, "int32")
    with serving(called), pytest.raises(ValueError, match=r"vLLM.*keras_graphattn.revert"):
        task.call_with_cache(ids[:, :1], cache, index)
    assert not called


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", ROUTED)
def test_a_full_pass_refuses_the_paged_kernel_where_the_original_calls_it(name):
    backbone = keras_graphattn.convert(family(name).make(), order=4)
    inputs, called = random_inputs(backbone), []
    with serving(called), pytest.raises(ValueError, match=r"vLLM.*keras_graphattn.revert"):
        backbone(inputs)
    assert not called
