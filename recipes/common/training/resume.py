"""Training that can be killed at any moment and goes on after its last finished epoch.

A run lives in a folder: one weights file per epoch worth keeping (the last and the best, with
the optimiser) and `state.json`, with the metrics and the states of the random generators, which
Keras' weights files leave out. All are written under another name and moved, the weights first:
whatever epoch `state.json` speaks of, its weights are there.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from keras_graphattn.analysis import StopAtNonFiniteLoss
from recipes.common.data.batches import Batches
from recipes.common.storage.files import atomically, check_room, read_json, write_csv, write_json
from recipes.common.training.averages import evaluated_by, take_averages

LAST_EPOCH = "last_epoch"


class Criterion(NamedTuple):
    """The metric that the table reports, and what chooses an epoch on validation data.

    Where the last epoch is taken, the metrics rank runs only.
    """

    name: str
    lower_is_better: bool = False
    ties: str = "cross_entropy"  # the metric that decides between equals; the lower the better
    choose_by: str | None = None  # one of the two, by default `name`; or `LAST_EPOCH`

    @property
    def order(self) -> tuple[str, str]:
        """The two metrics; the one that chooses comes first."""
        return (self.ties, self.name) if self.choose_by == self.ties else (self.name, self.ties)

    @property
    def last_epoch(self) -> bool:
        """Whether the last epoch is taken."""
        return self.choose_by == LAST_EPOCH


ACCURACY = Criterion("accuracy")


@dataclasses.dataclass
class RunState:
    """What is known of a run after its last finished epoch; epochs count from 1."""

    history: list[dict[str, float]] = dataclasses.field(default_factory=list)
    best_epoch: int = 0
    finished: bool = False
    random_states: list[list[int]] = dataclasses.field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> "RunState":
        """The state kept in `folder`, or that of a run not yet begun."""
        return cls(**(read_json(folder / "state.json") or {}))

    @property
    def epoch(self) -> int:
        """The last finished epoch."""
        return len(self.history)

    @property
    def best(self) -> dict[str, float]:
        """The metrics of the best epoch."""
        return self.history[self.best_epoch - 1]

    def ends(self, epochs: int, patience: int) -> bool:
        """Whether training is over: all epochs done, or `patience` of them without gain."""
        return self.epoch >= epochs or (self.epoch > 0 and self.epoch - self.best_epoch >= patience)


def score(metrics: dict[str, float | None], criterion: Criterion = ACCURACY) -> tuple[float, float]:
    """What makes an epoch the best on validation data; the metrics in the criterion's order."""

    def rank(name: str) -> float:
        value = metrics[f"val_{name}"]
        if value is None or not math.isfinite(value):
            return -math.inf
        return -value if name == criterion.ties or criterion.lower_is_better else value

    first, second = criterion.order
    return rank(first), rank(second)


def weights_file(folder: Path, epoch: int) -> Path:
    """The file with the weights after `epoch`."""
    return folder / f"epoch-{epoch:04d}.weights.h5"


def random_generators(model: keras.Model) -> list[keras.Variable]:
    """The states of a model's random generators, such as those of its dropout."""
    weights = {id(variable) for variable in model.weights}
    return [
        variable
        for variable in model.non_trainable_variables
        if id(variable) not in weights and variable.path.endswith("seed_generator_state")
    ]


def _size_of_weights(model: keras.Model) -> int:
    """Bytes that a weights file takes at most: the numbers, and what HDF5 says of each tensor."""
    variables = [*model.variables, *model.optimizer.variables]
    return sum(math.prod(v.shape) * 8 + 4096 for v in variables)


class KeepRun(keras.callbacks.Callback):
    """Keeps a run in a folder after every epoch, and ends it when nothing improves.

    Args:
        folder: The run's folder.
        history_file: Where the metrics of all epochs are written as CSV.
        state: The run's state, as read from the folder; continued here.
        batches: The training batches, told which epoch begins.
        test_batches: Evaluated after every epoch into `test_*` metrics, for the record only:
            nothing is chosen by them. None where the test is taken once, after training.
        epochs: Number of epochs at most.
        patience: Epochs without a better `score` after which training ends.
        criterion: What the best epoch is chosen by.
    """

    def __init__(
        self,
        folder: Path,
        history_file: Path,
        state: RunState,
        batches: Batches,
        test_batches: Batches | None,
        epochs: int,
        patience: int,
        criterion: Criterion = ACCURACY,
    ) -> None:
        super().__init__()
        self.folder, self.history_file = folder, history_file
        self.state, self.batches, self.test_batches = state, batches, test_batches
        self.epochs, self.patience, self.criterion = epochs, patience, criterion

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Puts the training examples in this epoch's order.

        On torch, dropout without a seed of its own draws from a generator that belongs to no
        model: it is set anew, as a function of the seed and the epoch.
        """
        self.batches.start_epoch(epoch)
        if keras.backend.backend() == "torch" and self.batches.seed is not None:
            drawn = np.random.SeedSequence([self.batches.seed, epoch]).generate_state(1)
            keras.utils.set_random_seed(int(drawn[0]))

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        """Records the metrics, saves the weights, then the state that names them."""
        if self.test_batches is not None:
            given = {"verbose": 0, "return_dict": True, "callbacks": evaluated_by(self.model)}
            test = self.model.evaluate(self.test_batches, **given)
            logs.update({f"test_{name}": value for name, value in test.items()})
        metrics = {name: float(value) for name, value in logs.items()}
        state = self.state
        state.history.append({"epoch": epoch + 1, **metrics})
        if not state.best_epoch or self._better(metrics, state.best):
            state.best_epoch = epoch + 1
        state.random_states = [
            keras.ops.convert_to_numpy(variable).tolist()
            for variable in random_generators(self.model)
        ]
        with atomically(weights_file(self.folder, epoch + 1)) as writing:
            check_room(writing, _size_of_weights(self.model))
            self.model.save_weights(writing)
        self.save_state()
        self.model.stop_training = state.ends(self.epochs, self.patience)

    def _better(self, metrics: dict[str, float], best: dict[str, float]) -> bool:
        if self.criterion.last_epoch:
            return True
        return score(metrics, self.criterion) > score(best, self.criterion)

    def save_state(self) -> None:
        """Writes the state and the history, then removes the weights no longer needed."""
        write_json(self.folder / "state.json", dataclasses.asdict(self.state))
        write_csv(self.history_file, self.state.history)
        kept = {weights_file(self.folder, self.state.best_epoch)}
        if not self.state.finished:
            kept.add(weights_file(self.folder, self.state.epoch))
        for path in set(self.folder.glob("*.weights.h5")) - kept:
            path.unlink()


def fit_resumably(
    model: keras.Model,
    batches: Batches,
    validation_batches: Batches,
    test_batches: Batches | None,
    *,
    folder: Path,
    history_file: Path,
    epochs: int,
    patience: int,
    criterion: Criterion = ACCURACY,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    verbose: int = 1,
) -> RunState:
    """Trains a compiled model with `model.fit`, from where `folder` says that it stopped.

    Args:
        model: A compiled model with the weighted metrics that the criterion names, built just as
            for the interrupted training.
        batches: Training batches.
        validation_batches: Batches that choose the best epoch and end the training.
        test_batches: Batches evaluated after every epoch for the record, if any.
        folder: Where the run is kept.
        history_file: Where the metrics of all epochs are written as CSV.
        epochs: Number of epochs at most.
        patience: Epochs without gain on the validation batches after which training ends.
        criterion: What the best epoch is chosen by.
        callbacks: Further Keras callbacks; they see the `test_*` metrics too.
        verbose: Keras' progress bar: 0, 1 or 2.

    Returns:
        The finished run's state. `weights_file(folder, state.best_epoch)` holds the weights of
        the best epoch, and `model` has them, or their averages if its optimizer makes any.

    Raises:
        FloatingPointError: If the loss is not finite, with the step and the layer.
    """
    state = RunState.read(folder)
    keeper = KeepRun(
        folder, history_file, state, batches, test_batches, epochs, patience, criterion
    )
    if state.epoch and not state.finished:
        model.optimizer.build(model.trainable_variables)
        model.load_weights(weights_file(folder, state.epoch))
        generators = random_generators(model)
        for variable, value in zip(generators, state.random_states, strict=True):
            variable.assign(value)
    if not state.ends(epochs, patience):
        model.fit(
            batches,
            validation_data=validation_batches,
            epochs=epochs,
            initial_epoch=state.epoch,
            shuffle=False,
            callbacks=[
                StopAtNonFiniteLoss(batches),
                *evaluated_by(model),
                keeper,
                *callbacks,
            ],
            verbose=verbose,
        )
    model.load_weights(weights_file(folder, state.best_epoch))
    take_averages(model)
    state.finished = True
    keeper.save_state()
    return state
