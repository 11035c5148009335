"""The runs that a folder holds, whichever command trained them."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import h5py

from recipes.common.storage.files import DamagedFileError, read_json
from recipes.common.training.resume import ACCURACY, Criterion, RunState, weights_file


@dataclasses.dataclass
class Run:
    """One finished training: an attention with a seed. Kept as `run.json` in its folder."""

    attention: str
    seed: int
    folder: Path
    state: RunState
    parameters: int
    similarity: list[float]  # mean token similarity before the blocks and after each, if measured
    reported: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the best epoch only
    criterion: Criterion = ACCURACY

    @property
    def weights(self) -> Path:
        """The file with the weights of the chosen epoch."""
        return weights_file(self.folder, self.state.best_epoch)

    def summary(self) -> dict[str, Any]:
        """What `results.json` says of this run."""
        best, name, ties = self.state.best, self.criterion.name, self.criterion.ties
        return {
            "attention": self.attention,
            "seed": self.seed,
            "parameters": self.parameters,
            "epochs": self.state.epoch,
            "chosen_epoch": self.state.best_epoch,
            f"validation_{name}": best[f"val_{name}"],
            f"validation_{ties}": best[f"val_{ties}"],
            **self._tests(),
            **self.reported,
            **({"token_similarity": self.similarity} if self.similarity else {}),
        }

    def _tests(self) -> dict[str, float]:
        """The test metrics, where they were taken after every epoch."""
        best, name = self.state.best, f"test_{self.criterion.name}"
        ties = f"test_{self.criterion.ties}"
        if name not in best:
            return {}
        peak = min if self.criterion.lower_is_better else max
        return {
            name: best[name],
            ties: best[ties],
            f"{name}_at_best_test_epoch": peak(row[name] for row in self.state.history),
        }


class DamagedRunError(Exception):
    """The files of a run are not whole; the message says which one."""


def run_name(attention: str, seed: int) -> str:
    """The name of a run, and of its folder."""
    return f"{attention}-seed{seed}"


def read_run(
    output: Path, attention: str, seed: int, criterion: Criterion = ACCURACY
) -> tuple[RunState, Run | None]:
    """A run's state and, if it is finished, the run.

    Raises:
        DamagedRunError: If a file is missing or not whole.
    """
    folder = output / "runs" / run_name(attention, seed)
    try:
        found, kept = read_json(folder / "run.json"), read_json(folder / "state.json")
        state = RunState(**(kept or {}))
        epochs = {state.best_epoch} | (set() if state.finished else {state.epoch})
        if found is not None and not state.finished:
            raise DamagedRunError("state.json is missing, or not of a finished run")
        if not all(0 < epoch <= state.epoch for epoch in epochs if state.epoch):
            raise DamagedRunError("state.json contradicts itself")
        for epoch in sorted(epochs) if state.epoch else []:
            _check_weights(weights_file(folder, epoch))
        if found is None:
            return state, None
        run = Run(attention, seed, folder, state, criterion=criterion, **found)
        run.summary()
    except DamagedFileError as error:
        raise DamagedRunError(str(error)) from error
    except (TypeError, KeyError, AttributeError) as error:
        raise DamagedRunError(f"run.json or state.json lacks or has too much: {error}") from error
    return state, run


def finished_runs(
    output: Path, attentions: tuple[str, ...], criterion: Criterion = ACCURACY
) -> list[Run]:
    """All finished runs of a folder, by the order of `attentions` and by seed.

    One line is printed for each run that is left out.
    """
    runs = []
    for attention, seed in sorted(
        _found(output, attentions), key=lambda one: (attentions.index(one[0]), one[1])
    ):
        told = f"--attention {attention} --seeds {seed}"
        try:
            state, run = read_run(output, attention, seed, criterion)
        except DamagedRunError as error:
            print(
                f"{run_name(attention, seed)}: left out, for {error}; {told} trains it anew",
                flush=True,
            )
            continue
        if run is not None:
            runs.append(run)
        else:
            print(
                f"{run_name(attention, seed)}: left out, not finished ({state.epoch} epochs); "
                f"{told} continues it",
                flush=True,
            )
    return runs


def _found(output: Path, attentions: tuple[str, ...]) -> list[tuple[str, int]]:
    """Attention and seed of each folder that is named as a run's."""
    names = (re.fullmatch(r"(.+)-seed(\d+)", path.name) for path in (output / "runs").glob("*/"))
    found = [(name[1], int(name[2])) for name in names if name is not None]
    return [(one, seed) for one, seed in found if one in attentions]


def _check_weights(file: Path) -> None:
    if not file.exists():
        raise DamagedRunError(f"{file.name} is missing")
    try:
        with h5py.File(file, "r"):
            pass  # a file that was cut off does not open
    except OSError as error:
        raise DamagedRunError(f"{file.name} is not whole") from error
