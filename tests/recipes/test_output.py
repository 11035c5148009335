"""The table's notes, the plot, and several comparisons in one table and one picture."""

import json
from pathlib import Path

import numpy as np
import pytest

from recipes.common.data.chance import Chance
from recipes.common.output import plot, together
from recipes.common.output.notes import absent_note, paired_difference, settings_note
from recipes.common.training.records import ACCURACY, Criterion, Run, RunState
from tests.recipes.command_line import assert_one_error_line
from tests.recipes.models import recipe_of
from tests.recipes.test_all_recipes import RECIPES

PERPLEXITY = Criterion("perplexity", lower_is_better=True)
CHANCE = Chance("always the most frequent class", {"validation": 0.2, "test": 0.3})


def a_run(attention, seed, epochs, criterion=ACCURACY, tested=True):
    def row(epoch):
        value = 0.5 + 0.01 * seed if criterion is ACCURACY else 40.0 / epoch
        names = [criterion.name, "cross_entropy"]
        names += [f"{data}_{name}" for data in ("val", "test") for name in names]
        return {name: value for name in names if tested or not name.startswith("test")}

    history = [{"epoch": epoch, **row(epoch)} for epoch in range(1, epochs + 1)]
    state = RunState(history, best_epoch=epochs, finished=True)
    return Run(attention, seed, Path(), state, 10, [0.5, 0.6] if tested else [], {}, criterion)


def drawn(*arguments):
    figure = plot.draw("title", *arguments)
    figure.draw_without_rendering()
    return figure, [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("epochs", [1, 2, 3, 100])
def test_epochs_are_whole_numbers_and_accuracies_go_from_0_to_1(epochs):
    figure, legend = drawn([a_run("softmax", 0, epochs), a_run("agf", 0, epochs)])
    for panel in figure.axes[:2]:
        first, last = panel.get_xlim()
        ticks = [tick for tick in panel.xaxis.get_ticklocs() if first <= tick <= last]
        assert ticks
        assert all(tick == round(tick) >= 1 for tick in ticks)
        low, high = panel.get_ylim()
        assert -0.1 < low <= 0 < 1 <= high < 1.1
        assert panel.get_xlabel() == "epoch"
    assert figure.axes[0].get_ylabel() == "validation accuracy"
    assert legend == ["softmax (seed 0)", "AGF (seed 0)", "chosen epoch"]


def test_seeds_are_thin_lines_and_their_mean_is_a_thick_one():
    runs = [a_run("gfsa", 0, 3), a_run("gfsa", 2, 2), a_run("agf", 1, 3)]
    figure, legend = drawn(runs, CHANCE)
    names = ["GFSA (2 seeds)", "AGF (seed 1)", "mean of the seeds", "one seed", "chosen epoch"]
    assert legend == [*names, CHANCE.label]
    lines = [line for line in figure.axes[0].get_lines() if len(line.get_xdata()) > 1]
    one, other, mean, agf, chance = lines
    assert one.get_linewidth() == other.get_linewidth() < mean.get_linewidth()
    assert agf.get_linewidth() == mean.get_linewidth()
    assert list(mean.get_xdata()) == [1, 2]  # as far as both seeds go
    assert list(mean.get_ydata()) == pytest.approx([0.51, 0.51])
    assert list(chance.get_ydata()) == [0.2, 0.2]
    assert list(figure.axes[1].get_lines()[-1].get_ydata()) == [0.3, 0.3]


def test_many_seeds_are_a_band_around_their_mean():
    runs = [a_run("gfsa", seed, 3) for seed in range(6)]
    figure, legend = drawn([*runs, a_run("agf", 0, 3)])
    names = ["GFSA (6 seeds)", "AGF (seed 0)", "mean of the seeds"]
    assert legend == [*names, "standard deviation of the seeds", "chosen epoch"]
    panel = figure.axes[0]
    mean, _ = (line for line in panel.get_lines() if len(line.get_xdata()) > 1)
    values = [row["val_accuracy"] for run in runs for row in run.state.history[:1]]
    assert mean.get_ydata()[0] == pytest.approx(np.mean(values))
    (band,) = panel.collections
    edges = [y for x, y in band.get_paths()[0].vertices if x == 1]
    assert max(edges) - min(edges) == pytest.approx(2 * np.std(values, ddof=1))


def test_perplexity_is_logarithmic_with_plain_numbers():
    figure, _ = drawn([a_run("softmax", 0, 3, PERPLEXITY, tested=False)])
    panel = figure.axes[0]
    assert panel.get_yscale() == "log"
    assert panel.get_ylabel() == "validation perplexity (log scale)"
    assert "20" in [label.get_text() for label in panel.get_yticklabels()]
    assert figure.axes[1].get_title() == "training data"


ACCURACIES = {  # by attention and seed
    "softmax": {0: 0.70, 1: 0.75, 2: 0.60},
    "gfsa": {0: 0.80, 1: 0.70, 2: 0.75, 7: 0.10},
}
SIMILARITIES = {"softmax": [0.2, 0.6, 1.0], "gfsa": [0.2, 0.3, 0.5]}


def run_of(attention, seed, **more):
    return {"attention": attention, "seed": seed, **more}


def similarities(attention, seed):
    return [one + 0.02 * (seed % 2) for one in SIMILARITIES[attention]]


RUNS = [
    run_of(name, seed, test_accuracy=accuracy, token_similarity=similarities(name, seed))
    for name, of_seeds in ACCURACIES.items()
    for seed, accuracy in of_seeds.items()
]


def write(folder, runs):
    folder.mkdir()
    names = dict.fromkeys(run["attention"] for run in runs)
    content = {"table": [{"attention": name, "test_accuracy_mean": 0.0} for name in names]}
    (folder / "results.json").write_text(json.dumps({**content, "runs": runs}))
    return folder


def test_differences_are_those_of_the_seeds_that_both_have():
    # 0.10, -0.05 and 0.15: their mean, and its error by hand
    difference = paired_difference(RUNS, "test_accuracy", "gfsa", "softmax")
    assert difference == "+0.0667 ± 0.0601, above in 2 of 3"
    one = [run_of("softmax", 0, score=1.0), run_of("gfsa", 0, score=1.5)]
    assert paired_difference(one, "score", "softmax", "gfsa") == "-0.5000, above in 0 of 1"
    apart = [run_of("softmax", 0, score=1.0), run_of("gfsa", 1, score=1.5)]
    assert paired_difference(apart, "score", "gfsa", "softmax") is None


def test_table_and_picture_have_all_comparisons(tmp_path, capsys):
    without = [{**run, "token_similarity": []} for run in RUNS if run["seed"] == 0]
    folders = [write(tmp_path / "pre-24", RUNS), write(tmp_path / "post-24", without)]
    assert together.main([*map(str, folders), "--output", str(tmp_path / "both")]) == 0
    written = (tmp_path / "both" / "together.md").read_text()
    assert written in capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in written.splitlines()]
    assert rows[2][:5] == ["pre-24", "softmax", "3", "0.6833 ± 0.0764", "0.6000 to 0.7500"]
    assert rows[2][5:] == ["", "0.61", "1.01"]
    assert rows[3][:3] == ["pre-24", "GFSA", "4"]
    assert rows[3][5:] == ["+0.0667 ± 0.0601, above in 2 of 3", "0.31", "0.51"]
    assert rows[5] == [
        *("post-24", "GFSA", "1", "0.8000", "0.8000 to 0.8000"),
        *("+0.1000, above in 1 of 1", "", ""),
    ]
    assert (tmp_path / "both" / "together.png").stat().st_size > 10_000
    figure = together.draw([together.read(folder) for folder in folders])
    assert [axis.get_title() for axis in figure.axes[:2]] == ["pre-24", "post-24"]
    assert len(figure.axes[2].lines) == len(RUNS) + 2  # and the mean of each attention


def share_a_scale(panels):
    """Whether the limits of the first panel are those of the second."""
    panels[0].set_ylim(0, 5)
    return panels[1].get_ylim() == (0, 5)


def test_other_metrics_have_scales_of_their_own(tmp_path):
    folders = [write(tmp_path / name, RUNS) for name in ("images", "texts")]
    content = (folders[1] / "results.json").read_text()
    (folders[1] / "results.json").write_text(content.replace("test_accuracy", "test_correlation"))
    both = [together.read(folder) for folder in folders]
    lines = together.table(both)
    assert "| images, test accuracy | GFSA |" in lines
    assert "| texts, test correlation | GFSA |" in lines
    panels = together.draw(both).axes
    assert [axis.get_ylabel() for axis in panels[:2]] == ["test accuracy", "test correlation"]
    assert not share_a_scale(panels[:2])
    assert share_a_scale(panels[2:])
    low = both[0]._replace(runs=[{**run, "test_accuracy": -3.0} for run in RUNS])
    panels = together.draw([both[0], low]).axes
    assert panels[0].get_ylim()[0] < -3.0
    assert [axis.get_ylabel() for axis in panels[:2]] == ["test accuracy", ""]
    assert share_a_scale(panels)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "has no results.json"),
        ("{", "is not that of a recipe"),
        ('{"table": [], "runs": []}', "is not that of a recipe"),
        ('{"table": [{"test_accuracy_mean": 1, "attention": "gfsa"}], "runs": [{}]}', "not that"),
    ],
)
def test_folders_without_results_are_one_line(content, words, tmp_path, capsys):
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    arguments = [tmp_path, "--output", tmp_path / "both"]
    assert_one_error_line(together.main, arguments, [words], capsys)
    assert not (tmp_path / "both").exists()


NAMES = ("softmax", "gfsa", "agf", "p_laplacian")


def results(*attentions, deviations=()):
    """The entries of `results.json` that the notes read."""
    level = {"accuracy": 0.5, "cross_entropy": 0.7}
    run = {"seed": 0, "test_accuracy": 0.5, "test_f1": 0.5, "test_cross_entropy": 0.6, "epochs": 1}
    run |= {"sample": "text", "test_word_error_rate_beam": 0.3}
    return {
        "table": [{"attention": name} for name in attentions],
        "runs": [{"attention": name, **run} for name in attentions],
        "settings": {"filters": {name: {"order": 3} for name in attentions}},
        "published": {"departures": list(deviations)},
        "majority": {"test": level},
        "baselines": {"bag of tokens": {"test_accuracy": 0.5, "test_f1": 0.4}},
        "tokens": {"test": 100},
        "words": {"test": 20},
        "dataset": "digits",
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
        "node_classification",
        *("--dataset citeseer --data-dir x --published --epochs 3", "gat graph_kernel edges"),
        [
            *("arXiv 1710.10903: GAT 0.725.", "arXiv 2107.07999: GKAT 0.730."),
            *("those of arXiv 2107.07999, except for epochs 3", "not in arXiv 2107.07999: edges."),
        ],
        ["limit of"],
    ),
    (
        *("code_classification", "--task defect --data-dir x --published --order 4"),
        "softmax gfsa p_laplacian",
        ["reports, for softmax -> GFSA in %, test accuracy: RoBERTa", "from 2 to 4", "here 4."],
        ["test F1"],
    ),
    (
        *("code_classification", "--task clone --data-dir x", "softmax gfsa"),
        ["bag of tokens, test f1 0.4000", "test F1: CodeT5-small", "GFSA - softmax, by seed:"],
        ["settings"],
    ),
    (
        *("long_range_arena", "--preset paper", "agf gfsa"),
        ["(filters and rate), its released code (batches and steps) and arXiv 2111.00035"],
        [],
    ),
]


@pytest.mark.parametrize(("name", "command", "attentions", "words", "others"), CASES)
def test_notes_name_the_paper_and_what_is_not_in_it(name, command, attentions, words, others):
    if name in ("text_classification", "code_classification", "causal_lm"):
        pytest.importorskip("keras_hub")
    text = notes(name, command, results(*attentions.split(), deviations=["epochs 3"]))
    assert [word for word in words if word not in text] == []
    assert [word for word in others if word in text] == []


def test_sentences():
    assert "except for a, b;" in settings_note("X", ["a", "b"])
    assert "without changes;" in settings_note("X", [])
    assert absent_note("X", ["softmax"], results("softmax")) == []
    assert absent_note("X", ["softmax"], results("softmax", "gfsa")) == ["not in X: GFSA."]
