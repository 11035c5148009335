"""The lines under the tables speak of a paper only where it has the figure or the settings."""

import pytest

from recipes.common.output.notes import absent_note, settings_note
from tests.recipes.models import recipe_of
from tests.recipes.test_all_recipes import RECIPES

NAMES = ("softmax", "gfsa", "agf", "p_laplacian")


def results(*attentions, deviations=()):
    """The entries of `results.json` that the notes read."""
    level = {"accuracy": 0.5, "cross_entropy": 0.7}
    run = {"seed": 0, "test_cross_entropy": 0.6, "sample": "text"}
    return {
        "table": [{"attention": name} for name in attentions],
        "runs": [{"attention": name, **run} for name in attentions],
        "settings": {"filters": {name: {"order": 3} for name in attentions}},
        "published": {"departures": list(deviations)},
        "majority": {"test": level},
        "tokens": {"test": 100},
        "words": {"test": 20},
        "folds": {"count": 10, "published": False},
        "best_model": {"attention": attentions[0], "seed": 0},
    }


def notes(name, command, content):
    recipe = recipe_of(name)
    return "\n".join(recipe.notes(content, recipe.parse(command.split())))


@pytest.mark.parametrize("name", RECIPES)
def test_without_published_settings_no_paper_is_spoken_of(name):
    dataset = "--dataset Mine" if name == "time_series" else ""
    attentions = [one for one in NAMES if one in recipe_of(name).attentions]
    text = notes(name, dataset, results(*attentions))
    assert not [word for word in ("arXiv", "paper", "publish") if word in text]


GRAPHORMER = "arXiv 2106.05234 and, for GFSA, arXiv 2312.04234"
# the recipe, its options, its attentions, what the notes say, what they do not
CASES = [
    (
        *("time_series", "--dataset Heartbeat", "softmax gfsa agf"),
        ["arXiv 2505.08516 reports this figure for Heartbeat", "not in arXiv 2505.08516: GFSA."],
        ["settings"],
    ),
    (
        *("time_series", "--dataset Heartbeat --published --attention agf", "agf"),
        ["those of arXiv 2505.08516, except for epochs 3; what is left open there"],
        ["not in"],
    ),
    (
        *("text_classification", "--published --preset bert_base_en --order 4", "softmax gfsa"),
        ["those of arXiv 2312.04234, except for", "chooses K from 2 to 10 for each task; here 4."],
        ["none of"],
    ),
    (
        "text_classification",
        *("--published --preset minilm --attention softmax,p_laplacian", "softmax p_laplacian"),
        ["not in arXiv 2312.04234: p-LaT.", "arXiv 2312.04234 does not use this model"],
        [],
    ),
    (
        *("causal_lm", "--published p_laplacian --dataset wikitext-103"),
        "softmax p_laplacian gfsa",
        ["those of arXiv 2311.03235,", "not in arXiv 2311.03235: GFSA."],
        [],
    ),
    (
        *("graph_regression", "--dataset zinc --data-dir x --published", "softmax gfsa gat"),
        [f"those of {GRAPHORMER}, except for", f"not in {GRAPHORMER}: GAT."],
        [],
    ),
    (
        *("long_range_arena", "--preset paper", "agf gfsa"),
        ["arXiv 2505.08516 (filters and rate) and arXiv 2111.00035 (all else), except"],
        [],
    ),
]


@pytest.mark.parametrize(("name", "command", "attentions", "words", "others"), CASES)
def test_notes_name_the_paper_and_what_is_not_in_it(name, command, attentions, words, others):
    if name in ("text_classification", "causal_lm"):
        pytest.importorskip("keras_hub")
    text = notes(name, command, results(*attentions.split(), deviations=["epochs 3"]))
    assert [word for word in words if word not in text] == []
    assert [word for word in others if word in text] == []


def test_the_arenas_paper_settings_name_what_was_changed():
    recipe = recipe_of("long_range_arena")
    command = "--preset paper --d-model 128 --epochs 2 --order 4"
    options = recipe.parse(command.split())
    changed = ["d_model 128 (published: 64)", "epochs 2 (published: 17)", "order 4"]
    assert recipe.deviations(options, epochs=17) == changed
    plain = recipe.parse(["--preset", "paper"])
    plain.epochs = 17  # as the number of batches tells
    assert recipe.deviations(plain, epochs=17) == []


def test_sentences():
    assert "except for a, b;" in settings_note("X", ["a", "b"])
    assert "without changes;" in settings_note("X", [])
    assert absent_note("X", ["softmax"], results("softmax")) == []
    assert absent_note("X", ["softmax"], results("softmax", "gfsa")) == ["not in X: GFSA."]
