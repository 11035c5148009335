"""Each recipe's model, tiny, and batches for it."""

import importlib
from types import SimpleNamespace
from unittest import mock

import keras
import numpy as np
import pytest

from recipes.common.data.ragged import Problem, Ragged, Split
from recipes.common.images.sizes import SIZES
from recipes.text_classification.data import TASKS
from recipes.time_series.data import Problem as SeriesProblem
from recipes.time_series.data import Split as SeriesSplit

LONGEST, CHANNELS, VOCABULARY = 20, 3, 30
WALKS = (3, 2)  # their number and their length
WIDTHS = "--layers 2 --d-model 8 --heads 2 --feed-forward 8"
TINY_CAIT = SIZES["cait-xxs24"]._replace(class_layers=1, layer_scale=0.5)
TINY_SWIN = SIZES["swin-tiny"]._replace(  # two stages; a block has shifted windows
    width=8, heads=2, feed_forward=16, patch=1, image=8, depths=(2, 1), layers=3, window=4
)
OF_GRAPHS = f"--heads 2 --key-dim 4 --walks {WALKS[0]} --walk-length {WALKS[1]}"


def recipe_of(name):
    """What the recipe declares."""
    return importlib.import_module(f"recipes.{name}.__main__").RECIPE


def made(name, problem, attention, arguments):
    """The recipe's model of an attention, as it is served."""
    recipe = recipe_of(name)
    options = recipe.parse(arguments.split())
    options.nodes = LONGEST  # on jax, Graphormer is served at one size
    model = recipe.model.build(recipe.trial(problem, attention, options))
    return getattr(recipe.model, "served", lambda model, options: model)(model, options)


def series_model(attention):
    generator = np.random.default_rng(0)
    series = generator.standard_normal((6, LONGEST, CHANNELS)).astype("float32")
    mask = np.arange(LONGEST) < generator.integers(1, LONGEST + 1, (6, 1))
    split = SeriesSplit(series, mask, np.arange(6, dtype="int32") % 2)
    problem = SeriesProblem("made", ["low", "high"], split, split)
    return made("time_series", problem, attention, f"--dataset made --key-dim 4 {WIDTHS}")


def arena_model(attention, inputs=("tokens",)):
    tokens = Ragged.of([np.arange(1, n + 1, dtype="uint8") for n in (3, LONGEST)])
    split = Split(dict.fromkeys(inputs, tokens), np.arange(2, dtype="int32"))
    problem = Problem("listops", ["no", "yes"], VOCABULARY, split, split, split)
    return made("long_range_arena", problem, attention, f"--key-dim 4 {WIDTHS}")


def text_model(attention, task="cola"):
    pytest.importorskip("keras_hub")
    tokenizer = SimpleNamespace(vocabulary_size=lambda: VOCABULARY)
    problem = SimpleNamespace(
        task=TASKS[task], preprocessor=SimpleNamespace(tokenizer=tokenizer), train=None
    )
    arguments = f"--task {task} {WIDTHS} --feed-forward 16 --max-length {LONGEST}"
    return made("text_classification", problem, attention, arguments)


def code_model(attention, functions=1):
    pytest.importorskip("keras_hub")
    tokenizer = SimpleNamespace(vocabulary_size=lambda: VOCABULARY, pad_token_id=0)
    preprocessor = SimpleNamespace(tokenizer=tokenizer)
    problem = SimpleNamespace(preprocessor=preprocessor, functions=functions, classes=[0, 1])
    arguments = f"{WIDTHS} --feed-forward 16 --max-length {LONGEST}"
    return made("code_classification", problem, attention, arguments)


def causal_model(attention):
    pytest.importorskip("keras_hub")
    problem = SimpleNamespace(vocabulary=SimpleNamespace(size=VOCABULARY))
    arguments = f"{WIDTHS} --feed-forward 16 --context {LONGEST}"
    return made("causal_lm", problem, attention, arguments)


def graph_model(attention, name="motif_detection", more="--feed-forward 8"):
    problem = SimpleNamespace(features=CHANNELS, classes=["no", "yes"])
    return made(name, problem, attention, f"{OF_GRAPHS} {more}")


def regression_model(attention):
    more = "--layers 2 --feed-forward 8 --hops 2"
    return graph_model(attention, "graph_regression", more)


def nodes_model(attention):
    return graph_model(attention, "node_classification", "")


def image_model(attention, model="vit"):
    """The last block's mask has no gradient: of its outputs only the class token's is used."""
    where = " --where first-half" if attention == "topological" else ""
    problem = SimpleNamespace(channels=1, classes=["no", "yes"])
    arguments = f"--model {model} --attention {attention}{where} --image-size 8"
    if model != "swin":
        arguments += f" --patch 2 {WIDTHS}"
    with mock.patch.dict(SIZES, {"cait-xxs24": TINY_CAIT, "swin-tiny": TINY_SWIN}):
        return made("image_classification", problem, attention, arguments)


def all_attentions(prefix, make, recipe):
    return {f"{prefix}_{one}": (make, one) for one in recipe_of(recipe).attentions}


OF_REGRESSION = ("softmax", "gfsa", "gat", "scaled_high_frequency", "contra_norm")
MODELS = {
    "nodes_gat": (nodes_model, "gat"),
    "nodes_graph_kernel": (nodes_model, "graph_kernel"),
    # of motif_detection and graph_classification
    **all_attentions("graphs", graph_model, "motif_detection"),
    "graphs_deep_multisets": (graph_model, "deep_multisets", "graph_classification"),
    "graphs_fingerprint": (graph_model, "molecular_fingerprint", "graph_classification"),
    **{f"regression_{one}": (regression_model, one) for one in OF_REGRESSION},
    **all_attentions("time_series", series_model, "time_series"),
    **all_attentions("arena", arena_model, "long_range_arena"),
    "arena_pairs": (arena_model, "agf", ("tokens_1", "tokens_2")),
    **all_attentions("text", text_model, "text_classification"),
    "text_regression": (text_model, "gfsa", "stsb"),
    "code_softmax": (code_model, "softmax"),
    "code_pairs": (code_model, "gfsa", 2),
    **all_attentions("images", image_model, "image_classification"),
    **{f"images_cait_{one}": (image_model, one, "cait") for one in ("softmax", "gfsa", "agf")},
    **{f"images_swin_{one}": (image_model, one, "swin") for one in ("gfsa", "p_laplacian")},
    **all_attentions("causal_lm", causal_model, "causal_lm"),
}


def batch_for(model, batch, length):
    """Random inputs: padding at the end, and missing values in the series.

    Graphs are paths, with as many edges and padding as nodes.
    """
    generator = np.random.default_rng(100 * batch + length)
    mask = np.arange(length) < generator.integers(1, length + 1, (batch, 1))
    tokens = np.where(mask, generator.integers(2, VOCABULARY, (batch, length)), 0)
    series = generator.standard_normal((batch, length, CHANNELS))
    series[generator.random(series.shape) < 0.1] = np.nan
    # the edges of a path; -1 is padding, of edges and of walks
    edges = np.stack([np.arange(length), np.arange(length) + 1], axis=1)
    both = mask & np.pad(mask[:, 1:], ((0, 0), (0, 1)))
    edges = np.where(both[..., None], edges, -1)
    walks = generator.integers(0, length, (batch, length, *WALKS))
    walks = np.where(mask[..., None, None], walks, -1)
    distances = np.abs(np.arange(length)[:, None] - np.arange(length))  # on a path
    paths = generator.integers(-1, 3, (batch, length, length, 2))
    kinds = {
        "images": generator.uniform(0, 255, (batch, 8, 8, 1)),
        "node_mask": mask,
        "nodes": np.nan_to_num(series),
        "edges": edges,
        "walks": walks,
        "distances": np.broadcast_to(distances, (batch, length, length)),
        "paths": paths,
        "series": series,
        "mask": mask,
        "segment": np.zeros_like(tokens),
        "token": tokens,
    }
    arrays = {}
    for name, tensor in model.input.items():
        kind = next(kind for kind in kinds if kind in name)
        arrays[name] = kinds[kind].astype(keras.backend.standardize_dtype(tensor.dtype))
    return arrays
