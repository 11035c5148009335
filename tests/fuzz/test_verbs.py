"""The functions that take models, masks and tokens, given something else."""

import pathlib

import keras
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn import analysis, hub, masks
from tests.fuzz.attacks import ODD, answer_or_refusal

MODEL = keras.Sequential([keras.Input((2, 3), name="series"), keras.layers.Dense(2)])
TOKENS = np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32")
REPORT = analysis.SmoothingReport("model", [], {}, 0, 0)
RESULTS = {  # what they return: nobody else makes them
    *("HeadMeasures", "LayerReport", "SmoothingReport", "TokenMeasures")
}
FUNCTIONS = {
    "convert": (keras_graphattn.convert, {"model": MODEL, "where": "all"}),
    "inspect": (keras_graphattn.inspect, {"model": MODEL}),
    "revert": (keras_graphattn.revert, {"model": MODEL}),
    "reach": (hub.reach, {"plain": keras.layers.Dense}),
    "register_family": (
        hub.register_family,
        {"family": hub.families.AttentionFamily, "classes": "Unknown", "attentions": None},
    ),
    "register_attention": (
        hub.register_attention,
        {"attention": "x", "replaced": "y", "replacement": keras_graphattn.layers.ContraNorm},
    ),
    "plot_mask": (analysis.plot_mask, {"mask": masks.Causal(), "length": 4}),
    "token_similarity": (analysis.token_similarity, {"tokens": TOKENS}),
    "first_order_error": (analysis.first_order_error, {"matrix": np.eye(3), "order": 3}),
    "frequency_parts": (analysis.frequency_parts, {"matrix": np.eye(4), "tokens": TOKENS}),
    "homophily": (analysis.homophily, {"weights": np.eye(4), "values": TOKENS}),
    "p_laplacian_energy": (analysis.p_laplacian_energy, {"weights": np.eye(4), "values": TOKENS}),
    "inspect_smoothing": (analysis.inspect_smoothing, {"model": MODEL, "data": TOKENS}),
    "SmoothingLogger": (
        analysis.SmoothingLogger,
        {"data": TOKENS, "path": pathlib.Path("smoothing.csv")},
    ),
    "plot_similarity": (analysis.plot_similarity, {"reports": REPORT}),
    "plot_responses": (analysis.plot_responses, {"report": REPORT, "depth": 0}),
    "plot_powers": (analysis.plot_powers, {"report": REPORT, "depth": 0}),
    "plot_attention_maps": (analysis.plot_attention_maps, {"report": REPORT, "depth": 0}),
}


def test_everything_has_a_case():
    public = {*hub.__all__, *analysis.__all__}
    assert public == {*FUNCTIONS, *RESULTS}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
@pytest.mark.parametrize("wrong", ODD, ids=lambda wrong: repr(wrong)[:20])
def test_an_odd_first_argument(name, wrong):
    function, arguments = FUNCTIONS[name]
    first = next(iter(arguments))
    if first == "attention" and isinstance(wrong, (str, bytes, list, dict, type(None))):
        pytest.skip("may be right")
    answer_or_refusal(lambda: function(**{**arguments, first: wrong}), [*arguments])
