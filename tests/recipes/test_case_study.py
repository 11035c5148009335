"""The page of examples that exactly one of two models of source code gets right."""

import html
import re

import keras
import numpy as np
import pytest

pytest.importorskip("keras_hub")

from recipes.code_classification.__main__ import RECIPE
from recipes.code_classification.case_study import EACH, chosen, pair_of, read, write_cases
from recipes.code_classification.data import load
from recipes.code_classification.model import batches_of, build
from recipes.common.training.measures import outputs
from recipes.common.training.records import Run, RunState
from tests.recipes.test_code_classification import TINY, WRITERS, options


def run_of(attention, seed):
    return Run(attention, seed, None, RunState(), 0, [])


def test_a_pair_has_one_seed_and_two_attentions():
    runs = [run_of(*one) for one in (("softmax", 0), ("softmax", 1), ("gfsa", 1), ("gfsa", 2))]
    assert pair_of(runs) == (runs[1], runs[2])
    assert pair_of(runs[:2]) is None


def test_the_largest_differences_come_first():
    right = np.array([[0.9, 0.2, 0.6, 0.7, 0.4, 0.8], [0.1, 0.9, 0.4, 0.1, 0.6, 0.9]])
    assert list(chosen(right > 0.5, right)) == [(0, 0), (0, 3), (1, 1), (1, 4)]
    assert EACH == 2


@pytest.mark.slow
@pytest.mark.parametrize("task", ["defect", "clone"])
def test_the_page_has_counts_and_pictures_and_code(task, tmp_path):
    WRITERS[task](tmp_path)
    asked = options(task, tmp_path, *TINY.split())
    problem = load(asked)
    models = {}
    for attention, sign in (("softmax", 1), ("gfsa", -1)):  # their answers are opposite
        keras.utils.set_random_seed(0)
        models[attention] = build(RECIPE.trial(problem, attention, asked))
        head = models[attention].get_layer("probabilities").kernel
        head.assign(sign * head)
    folder = tmp_path / "page"
    write_cases(folder, "a <title>", models, problem, asked)
    page = (folder / "index.html").read_text()
    assert "<h1>a &lt;title&gt;</h1>" in page
    test = batches_of(problem, problem.test, asked)
    first, second = (
        outputs(one, test).argmax(axis=-1) == problem.test.labels for one in models.values()
    )
    counts = re.findall(r"<th>([^<]+)</th><td>(\d+)</td>", page)
    expected = (first & second, first & ~second, second & ~first, ~first & ~second)
    names = ("both", "only softmax", "only GFSA", "neither")
    assert counts == [(name, str(one.sum())) for name, one in zip(names, expected, strict=True)]
    shown = sum(min(EACH, int(one.sum())) for one in expected[1:3])
    assert page.count("<h2>") == shown
    assert not expected[0].any()
    pictures = re.findall(r'<img src="([^"]+)"', page)
    assert len(pictures) == shown * problem.functions
    assert sorted(pictures) == sorted(path.name for path in folder.glob("*.png"))
    texts = [re.sub("<[^>]+>", "", one) for one in re.findall(r"<pre>(.*?)</pre>", page)]
    assert len(texts) == 2 * len(pictures)
    assert all(re.search(r"int f\d+\(int x\)", html.unescape(text)) for text in texts)


@pytest.mark.slow
def test_a_row_is_that_of_the_first_token_in_each_layer(tmp_path):
    """Softmax has no negative weight, and they add up to 1."""
    WRITERS["defect"](tmp_path)
    asked = options("defect", tmp_path, *TINY.replace("--layers 1", "--layers 2").split())
    problem = load(asked)
    found = read(build(RECIPE.trial(problem, "softmax", asked)), problem, 3, 0)
    place = problem.test.places[3, 0]
    assert found.rows.shape == (2, problem.test.functions.lengths[place]) == (2, len(found.tokens))
    np.testing.assert_allclose(found.rows.sum(axis=1), 1.0, atol=1e-5)
    assert found.rows.min() >= 0
    map_of_first = found.report.layers[1].heads.operator_map[:, 0]
    np.testing.assert_allclose(found.rows[1], map_of_first.mean(axis=0))
