"""How far one reads to follow one call: the files and functions of the package that run in it.

`BUDGETS` are what calls take; a change that makes a call longer has to say why. They are a means:
two things that have nothing in common stay in two files.
"""

import json
import os
import sys

import keras
import keras_hub
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn import layers, masks
from tests.recipes.command_line import run_to_its_end

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="the calls are counted on one backend"
)

PACKAGE = os.path.dirname(keras_graphattn.__file__) + os.sep
TOKENS = np.random.default_rng(0).normal(size=(2, 32, 16)).astype("float32")
EDGES = np.array([[node, node + 1] for node in range(31)])
PARENTS = [-1, *(node // 2 for node in range(31))]
IDS = {"token_ids": np.ones((1, 8), int), "padding_mask": np.ones((1, 8), int)}


def layer(kind, call=None, **options):
    def make():
        built = kind(2, 8, **options)
        return lambda: built(TOKENS, TOKENS, **(call or {}))

    return make


def kernel(make):
    return lambda: layer(layers.MaskedKernelAttention, mask=make())()


def llama():
    return keras_hub.models.LlamaBackbone(
        vocabulary_size=30,
        num_layers=1,
        num_query_heads=4,
        num_key_value_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
    )


def bert():
    return keras_hub.models.BertBackbone(
        vocabulary_size=30,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=12,
    )


def converted(make, **inputs):
    def call():
        model = keras_graphattn.convert(make(), "graph_filter")
        return lambda: model({**IDS, **inputs})

    return call


def there_and_back():
    model = llama()

    def call():
        keras_graphattn.convert(model, "graph_filter")
        keras_graphattn.revert(model)

    return call


GFA, AGF = layers.GraphFilterAttention, layers.AttentiveGraphFilter
MASKED = {"use_causal_mask": True, "value_mask": np.ones((2, 32), bool)}
CALLS = {
    "graph filter": layer(GFA),
    "graph filter, causal, padded": layer(GFA, MASKED),
    "graph filter, blockwise": layer(GFA, attention_path="blockwise"),
    "graph filter, Alibi": layer(GFA, bias="alibi"),
    "differential": layer(layers.DifferentialAttention),
    "edges": layer(layers.EdgeAttention, graph=EDGES),
    "delta rule": layer(layers.GatedDeltaRule),
    "p-Laplacian": layer(layers.PLaplacianAttention),
    "AGF": layer(AGF),
    "AGF, causal": layer(AGF, causal=True),
    "kernel": layer(layers.MaskedKernelAttention),
    "kernel, Exponential": kernel(lambda: masks.Exponential(causal=True)),
    "kernel, GatedDecay": kernel(masks.GatedDecay),
    "kernel, Toeplitz": kernel(lambda: masks.Toeplitz(max_length=32)),
    "kernel, Tree": kernel(lambda: masks.Tree(PARENTS)),
    "kernel, GraphDiffusion": kernel(lambda: masks.GraphDiffusion(EDGES, None, 32)),
    "graph kernel, RandomWalk": lambda: layer(
        layers.GraphKernelAttention, mask=masks.RandomWalk(EDGES, None, 32)
    )(),
    "converted Llama": converted(llama),
    "converted BERT": converted(bert, segment_ids=np.zeros((1, 8), int)),
    "convert and revert Llama": there_and_back,
}
# Files, functions, and changes of file.
BUDGETS = {
    "graph filter": (8, 45, 42),
    "graph filter, causal, padded": (8, 51, 43),
    "graph filter, blockwise": (12, 53, 50),
    "graph filter, Alibi": (12, 76, 58),
    "differential": (9, 53, 66),
    "edges": (11, 63, 61),
    "delta rule": (13, 68, 93),
    "p-Laplacian": (12, 84, 55),
    "AGF": (8, 41, 42),
    "AGF, causal": (10, 69, 76),
    "kernel": (10, 43, 45),
    "kernel, Exponential": (12, 64, 56),
    "kernel, GatedDecay": (15, 88, 89),
    "kernel, Toeplitz": (12, 61, 57),
    "kernel, Tree": (12, 60, 55),
    "kernel, GraphDiffusion": (15, 89, 68),
    "graph kernel, RandomWalk": (11, 70, 50),
    "converted Llama": (9, 42, 47),
    "converted BERT": (9, 47, 44),
    "convert and revert Llama": (12, 134, 671),
}


def counted(call):
    """Files entered, functions entered, and how often control changes file, in one call."""
    call()  # builds, and fills what is kept
    files, functions, changes = set(), set(), []

    def profile(frame, event, argument):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(PACKAGE):
            files.add(path)
            functions.add((path, frame.f_code.co_qualname))
            if not changes or path != changes[-1]:
                changes.append(path)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    return len(files), len(functions), len(changes)


@pytest.fixture(scope="module")
def counts():
    """The counts of all calls, from a process in which no shapes are checked."""
    return json.loads(run_to_its_end("-m", "tests.test_calls").splitlines()[-1])


@pytest.mark.all_cases
@pytest.mark.parametrize("name", CALLS)
def test_a_call_stays_within_its_budget(counts, name):
    found = counts[name]
    assert all(count <= most for count, most in zip(found, BUDGETS[name], strict=True)), found


if __name__ == "__main__":
    keras.utils.set_random_seed(0)  # p-Laplacian attention does more for tokens that are alike
    print(json.dumps({name: counted(make()) for name, make in CALLS.items()}))
