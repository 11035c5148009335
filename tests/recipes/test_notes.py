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


def notes(name, command, found):
    recipe = recipe_of(name)
    options = recipe.parse(command.split())
    return "\n".join(recipe.notes(found, options))


@pytest.mark.parametrize("name", RECIPES)
def test_without_published_settings_no_paper_is_spoken_of(name):
    dataset = "--dataset Mine" if name == "time_series" else ""
    attentions = recipe_of(name).attentions
    found = notes(name, dataset, results(*[one for one in NAMES if one in attentions]))
    assert "arXiv" not in found
    assert "paper" not in found
    assert "publish" not in found


def test_time_series_say_which_figure_the_paper_reports():
    found = notes("time_series", "--dataset Heartbeat", results("softmax", "gfsa", "agf"))
    assert "arXiv 2505.08516 reports this figure for Heartbeat" in found
    assert "not in arXiv 2505.08516: GFSA." in found
    assert "settings" not in found
    command = "--dataset Heartbeat --published --epochs 3 --attention agf"
    found = notes("time_series", command, results("agf", deviations=["epochs 3"]))
    assert "those of arXiv 2505.08516, except for epochs 3; what is left open there" in found
    assert "not in" not in found


def test_text_classification_says_what_is_not_the_papers():
    pytest.importorskip("keras_hub")
    command = "--published --preset bert_base_en --attention softmax,gfsa --order 4"
    found = notes("text_classification", command, results("softmax", "gfsa"))
    assert "those of arXiv 2312.04234, without changes" in found
    assert "chooses K from 2 to 10 for each task; here 4." in found
    assert "none of" not in found
    command = "--published --preset minilm --attention softmax,p_laplacian"
    found = notes("text_classification", command, results("softmax", "p_laplacian"))
    assert "not in arXiv 2312.04234: p-LaT." in found
    assert "arXiv 2312.04234 does not use this model" in found


def test_language_models_name_the_paper_of_their_settings():
    command = "--published p_laplacian --dataset wikitext-103 --attention softmax,p_laplacian,gfsa"
    found = notes("causal_lm", command, results("softmax", "p_laplacian", "gfsa"))
    assert "those of arXiv 2311.03235," in found
    assert "not in arXiv 2311.03235: GFSA." in found


def test_graph_regression_names_the_papers_of_its_settings():
    command = "--dataset zinc --data-dir x --published --attention softmax,gfsa,gat"
    found = notes("graph_regression", command, results("softmax", "gfsa", "gat"))
    assert "those of arXiv 2106.05234 and, for GFSA, arXiv 2312.04234, without changes" in found
    assert "not in arXiv 2106.05234 and, for GFSA, arXiv 2312.04234: GAT." in found


def test_the_arenas_paper_settings_name_what_was_changed():
    recipe = recipe_of("long_range_arena")
    options = recipe.parse(
        ["--preset", "paper", "--d-model", "128", "--epochs", "2", "--order", "4"]
    )
    changed = ["d_model 128 (published: 64)", "epochs 2 (published: 17)", "order 4"]
    assert recipe.deviations(options, epochs=17) == changed
    plain = recipe.parse(["--preset", "paper"])
    plain.epochs = 17  # as the number of batches tells
    assert recipe.deviations(plain, epochs=17) == []
    found = notes("long_range_arena", "--preset paper", results("agf", "gfsa"))
    assert "arXiv 2505.08516 (filters and rate) and arXiv 2111.00035 (all else), without" in found
    assert "not in arXiv 2505.08516: GFSA." in found


def test_sentences():
    assert "except for a, b;" in settings_note("X", ["a", "b"])
    assert absent_note("X", ["softmax"], results("softmax")) == []
    assert absent_note("X", ["softmax"], results("softmax", "gfsa")) == ["not in X: GFSA."]
