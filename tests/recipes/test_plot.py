from pathlib import Path

import pytest

from recipes.common.data.chance import Chance
from recipes.common.output.plot import draw
from recipes.common.training.records import ACCURACY, Criterion, Run, RunState

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
    figure = draw("title", *arguments)
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


def test_perplexity_is_logarithmic_with_plain_numbers():
    figure, _ = drawn([a_run("softmax", 0, 3, PERPLEXITY, tested=False)])
    panel = figure.axes[0]
    assert panel.get_yscale() == "log"
    assert panel.get_ylabel() == "validation perplexity (log scale)"
    assert "20" in [label.get_text() for label in panel.get_yticklabels()]
    assert figure.axes[1].get_title() == "training data"
