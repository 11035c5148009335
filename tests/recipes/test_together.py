"""Paired differences, and several comparisons in one table and one picture."""

import json

import pytest

from recipes.common.output.notes import paired_difference
from recipes.common.output.together import draw, main, read, table
from recipes.time_series.__main__ import RECIPE as time_series

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
    found = {"table": [{"attention": name, "test_accuracy_mean": 0.0} for name in names]}
    (folder / "results.json").write_text(json.dumps({**found, "runs": runs}))
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
    assert main([*map(str, folders), "--output", str(tmp_path / "both")]) == 0
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
    figure = draw([read(folder) for folder in folders])
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
    both = [read(folder) for folder in folders]
    lines = table(both)
    assert "| images, test accuracy | GFSA |" in lines
    assert "| texts, test correlation | GFSA |" in lines
    panels = draw(both).axes
    assert [axis.get_ylabel() for axis in panels[:2]] == ["test accuracy", "test correlation"]
    assert not share_a_scale(panels[:2])
    assert share_a_scale(panels[2:])
    low = both[0]._replace(runs=[{**run, "test_accuracy": -3.0} for run in RUNS])
    panels = draw([both[0], low]).axes
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
    assert main([str(tmp_path), "--output", str(tmp_path / "both")]) == 2
    errors = capsys.readouterr().err
    assert words in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "both").exists()


def test_gfsa_from_a_high_pass_start_has_its_own_filter(monkeypatch):
    """Whatever `--filter` the other attentions get."""
    names = ("gfsa", "gfsa_high_pass")
    monkeypatch.setattr(type(time_series), "attentions", names)
    command = f"--attention {','.join(names)} --filter chebyshev --order 5"
    plain, high_pass = time_series.settings(time_series.parse(command.split())).values()
    assert plain["filter"] == {"name": "chebyshev", "order": 5}
    start = {"identity": 0.5, "linear": 1.0, "power": -0.5}
    expected = {"name": "first_order", "order": 5, "initial_coefficients": start}
    assert high_pass["filter"] == expected
