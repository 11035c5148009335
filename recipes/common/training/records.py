"""The records of a comparison's runs, each in a folder of its own. Does not import Keras."""

import dataclasses
import itertools
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recipes.common.attentions import compared
from recipes.common.command.parsing import UsageError
from recipes.common.storage import DamagedFileError, read_json

LAST_EPOCH = "last_epoch"
BOTH = "both"
Metrics = dict[str, float | None]  # those of one epoch


class Criterion(NamedTuple):
    """The metric in the table, and the metrics that choose an epoch on validation data.

    If the last epoch is used, the metrics only rank runs: by the training data where there is no
    validation data. With `BOTH`, the epoch is the last one in which both metrics are as good as in
    every epoch before, and training ends when neither has been for `patience` epochs.
    """

    name: str
    lower_is_better: bool = False
    ties: str = "cross_entropy"  # the metric that decides between equals; the lower the better
    choose_by: str | None = None  # one of the two, by default `name`; or `LAST_EPOCH`, `BOTH`

    @property
    def order(self) -> tuple[str, str]:
        """The two metrics; the first one chooses the epoch."""
        return (self.ties, self.name) if self.choose_by == self.ties else (self.name, self.ties)

    @property
    def last_epoch(self) -> bool:
        return self.choose_by == LAST_EPOCH

    def score(self, metrics: Metrics) -> tuple[float, float]:
        """The rank of an epoch by its validation metrics, in their order; the highest is best."""

        def rank(name: str) -> float:
            value = metrics[f"val_{name}" if f"val_{name}" in metrics else name]
            if value is None or not math.isfinite(value):
                return -math.inf
            return -value if name == self.ties or self.lower_is_better else value

        first, second = self.order
        return rank(first), rank(second)

    def is_better(self, metrics: Metrics, best: Metrics) -> bool:
        """Whether an epoch replaces the best one before it."""
        return self.last_epoch or self.score(metrics) > self.score(best)

    def as_good(self, metrics: Metrics, earlier: Sequence[Metrics]) -> list[bool]:
        """Whether each of the two metrics of an epoch is as good as in all earlier epochs."""
        now, before = self.score(metrics), [self.score(one) for one in earlier]
        return [all(now[place] >= one[place] for one in before) for place in (0, 1)]


ACCURACY = Criterion("accuracy")


@dataclasses.dataclass
class RunState:
    """A run after its last finished epoch; epochs count from 1. Kept as `state.json`."""

    history: list[Metrics] = dataclasses.field(default_factory=list)
    best_epoch: int = 0
    last_gain: int = 0  # by `BOTH`: the last epoch in which one of the metrics was as good
    finished: bool = False
    random_states: list[list[int]] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)  # of each epoch, validated

    @property
    def epoch(self) -> int:
        return len(self.history)

    @property
    def best(self) -> Metrics:
        return self.history[self.best_epoch - 1]

    def add(self, metrics: Metrics, criterion: Criterion) -> None:
        """Adds an epoch, and chooses it if the criterion prefers it to the one chosen before."""
        if criterion.choose_by == BOTH:
            as_good = criterion.as_good(metrics, self.history)
            is_chosen = all(as_good)
            if any(as_good):
                self.last_gain = self.epoch + 1
        else:
            is_chosen = not self.best_epoch or criterion.is_better(metrics, self.best)
        self.history.append({"epoch": self.epoch + 1, **metrics})
        if is_chosen:
            self.best_epoch = self.epoch

    def ends(self, epochs: int, patience: float) -> bool:
        """Whether training is over: all epochs done, or `patience` of them without gain."""
        waited = self.epoch - max(self.best_epoch, self.last_gain)
        return self.epoch >= epochs or (self.epoch > 0 and waited >= patience)


@dataclasses.dataclass
class Run:
    """One finished training: an attention with a seed. Kept as `run.json`, next to its state."""

    attention: str
    seed: int
    folder: Path
    state: RunState
    parameters: int
    similarity: list[float]  # mean token similarity before the blocks and after each, if measured
    reported: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the best epoch only
    criterion: Criterion = ACCURACY
    costs: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def weights(self) -> Path:
        """The file with the weights of the chosen epoch."""
        return weights_file(self.folder, self.state.best_epoch)

    @property
    def is_validated(self) -> bool:
        """Whether a part of the data was held out to validate on."""
        return f"val_{self.criterion.name}" in self.state.best

    @property
    def seconds(self) -> float:
        """The time until the chosen epoch was over."""
        return sum(self.state.seconds[: self.state.best_epoch])

    def within(self, seconds: float) -> Metrics:
        """The metrics of the epoch that is chosen if training ends after so many seconds.

        The first epoch is always trained.
        """
        state = RunState()
        spent = itertools.accumulate(self.state.seconds)
        for metrics, time in zip(self.state.history, spent, strict=True):
            if state.history and time > seconds:
                break
            state.add(metrics, self.criterion)
        return state.best

    def summary(self) -> dict[str, Any]:
        """The entry of this run in `results.json`."""
        best, name, ties = self.state.best, self.criterion.name, self.criterion.ties
        tests = {}
        if f"test_{name}" in best:  # taken after every epoch
            peak = min if self.criterion.lower_is_better else max
            tests = {
                f"test_{name}": best[f"test_{name}"],
                f"test_{ties}": best[f"test_{ties}"],
                f"test_{name}_at_best_test_epoch": peak(
                    row[f"test_{name}"] for row in self.state.history
                ),
            }
        return {
            "attention": self.attention,
            "seed": self.seed,
            "parameters": self.parameters,
            "epochs": self.state.epoch,
            "chosen_epoch": self.state.best_epoch,
            **{
                f"validation_{metric}": best[f"val_{metric}"]
                for metric in (name, ties)
                if self.is_validated
            },
            **tests,
            **self.reported,
            **({"token_similarity": self.similarity} if self.similarity else {}),
            **({"costs": self.costs} if self.costs else {}),
        }


def run_name(attention: str, seed: int) -> str:
    """The name of a run, and of its folder."""
    return f"{attention}-seed{seed}"


def weights_file(folder: Path, epoch: int) -> Path:
    """The file with the weights after `epoch`."""
    return folder / f"epoch-{epoch:04d}.weights.h5"


def read_run(
    output: Path, attention: str, seed: int, criterion: Criterion = ACCURACY
) -> tuple[RunState, Run | None]:
    """The state of a run, and the run itself if it is finished."""
    folder = output / "runs" / run_name(attention, seed)
    try:
        record, state = (read_json(folder / name) for name in ("run.json", "state.json"))
        state = RunState(**(state or {}))
        if record is None:
            return state, None
        if not state.finished:
            raise DamagedFileError("state.json is missing, or not that of a finished run")
        return state, Run(attention, seed, folder, state, criterion=criterion, **record)
    except (DamagedFileError, TypeError) as error:
        raise UsageError(f"{folder}: {error}. Remove this folder to train the run anew") from error


def finished_runs(
    output: Path, attentions: tuple[str, ...], criterion: Criterion = ACCURACY
) -> list[Run]:
    """All finished runs of a folder, by the order of `attentions` and by seed.

    One line is printed for each run that is left out.
    """
    names = (re.fullmatch(r"(.+)-seed(\d+)", path.name) for path in (output / "runs").glob("*/"))
    pairs = [(name[1], int(name[2])) for name in names if name]
    pairs = [pair for pair in pairs if compared(pair[0])[0] in attentions]

    def place(pair: tuple[str, int]) -> tuple[int, int, int]:
        attention, order = compared(pair[0])
        return attentions.index(attention), order or 0, pair[1]

    runs = []
    for attention, seed in sorted(pairs, key=place):
        state, run = read_run(output, attention, seed, criterion)
        if run is not None:
            runs.append(run)
        else:
            name, order = compared(attention)
            same = ", with the same --order," if order else ""
            print(
                f"{run_name(attention, seed)}: left out, not finished ({state.epoch} epochs); "
                f"--attention {name} --seeds {seed}{same} continues it",
                flush=True,
            )
    return runs


def best_run(runs: list[Run]) -> Run:
    """The run with the best criterion on validation data; its second metric decides ties."""
    return max(runs, key=lambda run: run.criterion.score(run.state.best))


def by_fold(values: Mapping[int, float], folds: int | None = None) -> dict[int, float]:
    """Numbers by seed as means by fold, which is the seed modulo `folds`; as they are without."""
    if folds is None:
        return dict(values)
    groups: dict[int, list[float]] = {}
    for seed, value in values.items():
        groups.setdefault(seed % folds, []).append(value)
    return {fold: statistics.fmean(group) for fold, group in groups.items()}


def table(runs: list[Run], folds: int | None = None) -> list[dict[str, Any]]:
    """One row per attention: the criterion on test data over its seeds, at the epochs chosen.

    A row also has the metrics of the best epoch under the criterion's name and, if the test data
    were evaluated after every epoch, the best test epoch. Where seeds are folds, seed s is the fold
    s modulo `folds`: the trainings of a fold are averaged first, and the row has their number.
    """
    name = runs[0].criterion.name
    rows = []
    for attention in dict.fromkeys(run.attention for run in runs):
        summaries = [run.summary() for run in runs if run.attention == attention]
        row = {
            "attention": attention,
            "seeds": len(summaries),
            "parameters": summaries[0]["parameters"],
        }
        for key in summaries[0]:
            if not key.startswith(f"test_{name}"):
                continue
            column = f"best_test_epoch_{name}" if key.endswith("_at_best_test_epoch") else key
            of_seeds = {summary["seed"]: summary[key] for summary in summaries}
            values = list(by_fold(of_seeds, folds).values())
            if folds is not None:
                row["folds"] = len(values)
            row[f"{column}_mean"] = statistics.fmean(values)
            spread = statistics.stdev(values) if len(values) > 1 else None
            row[f"{column}_standard_deviation"] = spread
        rows.append(row)
    return rows
