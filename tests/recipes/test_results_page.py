"""The page of all results: it is that of the files, and its statistics are SciPy's."""

import json
import statistics

import pytest
import scipy.stats

from recipes import results
from recipes.common.attentions import label
from recipes.results import Difference, Results

FILES = results.all_results()


def test_the_page_is_that_of_the_files():
    assert results.PAGE.read_text() == results.page(FILES), "run python -m recipes.results"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_each_file_has_its_command_and_its_means(file):
    assert f"recipes.{file.path.parts[-3]}" in file.command
    for row in file.content["table"]:
        values = list(file.values(row["attention"]).values())
        mean = row[f"test_{file.metric}_mean"]
        assert len(values) == row.get("folds", row["seeds"])
        assert statistics.fmean(values) == pytest.approx(mean)


def test_motifs_have_the_accuracy_that_their_papers_code_computes():
    names = {file.name for file in FILES} & set(results.PUBLISHED_MOTIFS)
    assert len(names) == 7
    for file in FILES:
        (heads, *_), rows = file.section().split("\n| attention")[1:], list(file.rows())
        assert ("on validation data" in heads) == (file.name in names)
        for cells in rows if file.name in names else ():
            runs = [run for run in file.content["runs"] if label(run["attention"]) == cells[0]]
            mean = statistics.fmean(run["validation_accuracy"] for run in runs)
            assert cells[3].startswith(f"{mean:.3f}")


def test_intervals_are_those_of_a_paired_t_test():
    first, second = [0.91, 0.95, 0.90, 0.97], [0.90, 0.91, 0.92, 0.93]
    mine = Difference.of([a - b for a, b in zip(first, second, strict=True)])
    theirs = scipy.stats.ttest_rel(first, second).confidence_interval(0.95)
    assert mine.mean - mine.half == pytest.approx(theirs.low)
    assert mine.mean + mine.half == pytest.approx(theirs.high)
    assert str(Difference(0.02, 0.01)) == "**+0.020 [+0.010, +0.030]**"
    assert str(Difference(0.02, 0.03)) == "+0.020 [-0.010, +0.050]"
    assert str(Difference.of([0.5])) == "+0.500"


def test_differences_are_of_shared_seeds_and_positive_where_better(tmp_path):
    runs = [("softmax", 0, 4.0), ("softmax", 1, 5.0), ("gfsa", 1, 4.0), ("gfsa", 0, 3.8)]
    runs += [("gfsa", 7, 100.0)]
    table = [
        {"attention": name, "seeds": 2, "parameters": 1, "test_perplexity_mean": 0.0}
        for name in ("softmax", "gfsa")
    ]
    content = {"table": table, "dataset": "text"}
    content["runs"] = [{"attention": a, "seed": s, "test_perplexity": x} for a, s, x in runs]
    path = tmp_path / "causal_lm" / "results" / "text.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    file = Results(path)
    assert (file.title, file.protocol) == ("text", "own")
    assert file.difference("softmax") is None
    assert file.difference("gfsa").mean == pytest.approx(-0.6)
    ((name, attention, change),) = results.gains([file])
    assert (name, attention) == ("causal_lm, text", "gfsa")
    assert change.mean == pytest.approx(100 * 0.6 / 4.5)  # a lower perplexity is better
    results.draw([file], tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_trainings_of_a_fold_are_averaged_before_folds_are_compared(tmp_path):
    runs = [("softmax", 0, 0.5), ("softmax", 1, 0.6), ("softmax", 10, 0.7), ("gcn", 11, 0.9)]
    runs += [("gcn", 10, 0.8)]
    content = {"table": [{"test_accuracy_mean": 0.0}], "folds": {"count": 10}}
    content["runs"] = [{"attention": a, "seed": s, "test_accuracy": x} for a, s, x in runs]
    path = tmp_path / "graph_classification" / "results" / "NCI1-published.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    file = Results(path)
    assert file.values("softmax") == pytest.approx({0: 0.6, 1: 0.6})
    assert file.difference("gcn").mean == pytest.approx(0.25)
    assert results.PUBLISHED[file.name] == {"graph_kernel": (pytest.approx(0.752), results.GKAT)}


def test_check_says_whether_the_page_is_that_of_the_files(monkeypatch, capsys):
    assert results.main(["--check"]) == 0
    monkeypatch.setattr(results, "PAGE", results.ROOT / "docs/pages/choose.md")
    assert results.main(["--check"]) == 1
    assert "docs/pages/choose.md is not that of the files" in capsys.readouterr().out


def file_of(folder, recipe, data, metric, means, name=None):
    """A file of results, one run for each attention."""
    content = {"dataset": data, "table": [], "runs": []}
    for attention, mean in means.items():
        row = {"attention": attention, "seeds": 1, "parameters": 1, f"test_{metric}_mean": mean}
        content["table"].append(row)
        content["runs"].append({"attention": attention, "seed": 0, f"test_{metric}": mean})
    path = folder / recipe / "results" / f"{name or data}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return Results(path)


def test_attentions_are_compared_over_data_sets_each_counted_once(tmp_path):
    softmax, gfsa = [0.5, 0.6, 0.7, 0.8, 10.0], [0.6, 0.63, 0.69, 0.88, 9.0]
    metrics = ["accuracy"] * 4 + ["perplexity"]
    files = [
        file_of(tmp_path, "recipe", f"data{i}", metric, {"softmax": a, "gfsa": b})
        for i, (metric, a, b) in enumerate(zip(metrics, softmax, gfsa, strict=True))
    ]
    other = {"softmax": 0.5, "gfsa": 0.9}
    files.insert(0, file_of(tmp_path, "recipe", "data0", "accuracy", other, "data0-other"))
    files.append(file_of(tmp_path, "recipe", "data0", "accuracy", other, "data0-wider"))
    files.append(file_of(tmp_path, "recipe", "data9", "accuracy", other, "data9-short"))
    gains = results.gains_by_data(files, "gfsa", "softmax")
    expected = [20.0, 5.0, -100 / 70, 10.0, 10.0]  # a lower perplexity is better
    assert gains[:5] == pytest.approx(expected)
    (one,) = results.over_data_sets(files)
    p = scipy.stats.wilcoxon(expected).pvalue
    assert one.row() == f"| GFSA | softmax | 5 | 4 | +10.0 % | {p:.3f} | {p:.3f} |"
    assert not results.over_data_sets(files[2:6])  # too few


def test_p_is_corrected_for_the_number_of_comparisons(tmp_path):
    """By Holm: the smallest p times their number, the next times one less, never falling."""
    gains = {"gfsa": [1, 2, 3, 4, 5, 6, 7], "agf": [1, -2, 3, 4, 5, 6, 7], "linear": [1, -2] * 3}
    files = [
        file_of(
            *(tmp_path, "recipe", f"data{i}", "accuracy"),
            {
                "softmax": 1.0,
                **{name: 1 + each[i] for name, each in gains.items() if i < len(each)},
            },
        )
        for i in range(7)
    ]
    found = {one.attention: one for one in results.over_data_sets(files)}
    p = {name: scipy.stats.wilcoxon(each).pvalue for name, each in gains.items()}
    assert p["gfsa"] < p["agf"] < p["linear"]
    expected = [3 * p["gfsa"], max(3 * p["gfsa"], 2 * p["agf"]), min(p["linear"], 1.0)]
    assert [found[name].corrected for name in gains] == pytest.approx(expected)
    words = results.in_words(list(found.values()))
    assert "GFSA against softmax is better on 7 of 7 data sets: p = 0.016" in words
    assert "No other comparison" in words
    assert "No comparison is below" in results.in_words([found["linear"]])
