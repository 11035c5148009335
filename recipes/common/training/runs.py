"""Training that can be killed at any moment and continues after its last finished epoch.

A run is a folder: one weights file per epoch worth keeping (the last and the best, with
the optimiser) and `state.json`, with the metrics and the states of the random generators, which
Keras' weights files leave out. All are written under another name and moved, the weights first:
the weights of the epoch that `state.json` names always exist.
"""

import dataclasses
import math
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from recipes.common.attentions import Trial
from recipes.common.command.devices import on_devices
from recipes.common.command.parsing import UsageError
from recipes.common.command.processes import check_equal, is_shared, is_writer
from recipes.common.data.batches import Batches, OfProcess, untuned
from recipes.common.storage import atomically, check_room, write_csv, write_json
from recipes.common.training.optimizers import coefficient_report
from recipes.common.training.records import (
    ACCURACY,
    Criterion,
    Run,
    RunState,
    read_run,
    run_name,
    weights_file,
)


class Training(NamedTuple):
    """The model of one run, and its data."""

    model: keras.Model  # compiled
    batches: Batches
    validation_batches: Batches | None  # `None`: all data is to train
    test_batches: Batches | None = None  # evaluated after every epoch, for the record
    measure: Callable[[], Sequence[float]] | None = None  # token similarities, after training
    report: Callable[[], dict[str, Any]] | None = None  # of the best epoch only, after training


def train_run(
    trial: Trial,
    output: Path,
    prepare: Callable[[Trial], Training],
    criterion: Criterion = ACCURACY,
) -> Run | None:
    """Trains one attention with one seed, or continues an unfinished training.

    Of several processes, the one that writes returns the run, and the others `None`. Raises
    `FloatingPointError` in an epoch that leaves a loss or a weight that is not finite.
    """
    name, options = run_name(trial.name, trial.seed), trial.options
    state, run = read_run(output, trial.name, trial.seed, criterion)
    check_equal(
        options,
        state.epoch if run is None else -1,
        f"{output} must be one folder for all processes. They see runs of different epochs",
    )
    if run is not None:
        print(f"{name}: finished before")
        return run
    with on_devices(options):
        training, coefficients = _begun(trial, prepare)
        model, batches = training.model, training.batches
        validation = training.validation_batches
        held_out = "no" if validation is None else len(validation.labels)
        print(f"{name}: {len(batches.labels)} training, {held_out} validation examples", flush=True)
        keeper = KeepRun(name, output, state, training, options, criterion)
        callbacks = [keras.callbacks.TerminateOnNaN(), *_with_averages(model), keeper]
        if options.tensorboard and is_writer(options):
            logs = str(output / "tensorboard" / name)
            callbacks.append(keras.callbacks.TensorBoard(logs, write_graph=False))
        keeper.restore(model)
        if not state.ends(options.epochs, options.patience):
            model.fit(
                for_keras(batches, options),
                validation_data=validation and for_keras(validation, options),
                epochs=options.epochs,
                initial_epoch=state.epoch,
                shuffle=False,
                callbacks=callbacks,
                verbose=options.verbose,
            )
        if not is_shared(options):
            record = _finish(keeper, training, coefficients)
    if not is_writer(options):
        return None
    if is_shared(options):  # the others take no part: on the devices of this process
        record = _finish(keeper, *_begun(trial, prepare))
    write_json(keeper.folder / "run.json", record)
    return Run(trial.name, trial.seed, keeper.folder, state, criterion=criterion, **record)


def _begun(
    trial: Trial, prepare: Callable[[Trial], Training]
) -> tuple[Training, Callable[[], dict[str, float]]]:
    """A training at its start, and what reports how far its coefficients have moved since."""
    keras.utils.set_random_seed(trial.seed)
    forget_peak_memory()
    training = prepare(trial)
    return training, coefficient_report(training.model)


def _finish(
    keeper: "KeepRun", training: Training, coefficients: Callable[[], dict[str, float]]
) -> dict[str, Any]:
    """Takes the weights of the chosen epoch, and what is recorded of the model with them."""
    model = training.model
    load_chosen(model, weights_file(keeper.folder, keeper.state.best_epoch))
    # processes share the work of one run; a run that an older version trained has no seconds
    is_measured = bool(keeper.state.seconds) and not is_shared(keeper.options)
    keeper.state.finished = True
    keeper.save_state()
    return {
        "parameters": model.count_params(),
        "similarity": list(training.measure()) if training.measure else [],
        "reported": {**(training.report() if training.report else {}), **coefficients()},
        "costs": costs(keeper.state, training) if is_measured else {},
    }


def costs(state: RunState, training: Training) -> dict[str, float]:
    """What a run took, on this machine: to compare runs of one command.

    The seconds of an epoch are the median. Those of inference are for one example of the largest
    batch, in the fastest of five calls. The memory is the largest of the process in this run, the
    data and Keras itself included, and not that of a GPU.
    """
    batches = training.test_batches or training.validation_batches or training.batches
    inputs = batches[0][0]
    taken = []
    for _ in range(6):  # the first one compiles
        start = time.perf_counter()
        training.model.predict_on_batch(inputs)
        taken.append(time.perf_counter() - start)
    rows = len(keras.tree.flatten(inputs)[0])
    return {
        "seconds_per_epoch": statistics.median(state.seconds),
        "inference_seconds_per_example": min(taken) / rows,
        "peak_memory_of_process": float(peak_memory()),
    }


def forget_peak_memory() -> None:
    """Begins to measure `peak_memory` anew, where the system can: on Linux."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """The largest memory of this process since `forget_peak_memory`, in bytes."""
    with suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        return 1024 * int(fields["VmHWM"].split()[0])
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else 1024 * largest


def for_keras(batches: Batches, options: Any) -> Any:
    """The batches as `fit` and `evaluate` take them: of several processes, the rows of this one."""
    if keras.backend.backend() == "tensorflow":
        return untuned(batches)
    if not is_shared(options):
        return batches
    import jax

    return OfProcess(batches, jax.process_index(), jax.process_count())


class KeepRun(keras.callbacks.Callback):
    """Keeps a run in its folder after every epoch, and ends it when the metric no longer improves.

    The test batches are evaluated after every epoch into `test_*` metrics, which choose nothing.
    """

    def __init__(
        self,
        name: str,
        output: Path,
        state: RunState,
        training: Training,
        options: Any,
        criterion: Criterion,
    ) -> None:
        super().__init__()
        self.folder = output / "runs" / name
        self.history_file = output / "histories" / f"{name}.csv"
        self.state, self.criterion = state, criterion
        self.batches, tests = training.batches, training.test_batches
        self.test_data = tests and for_keras(tests, options)
        self.options, self.is_writer = options, is_writer(options)
        self.epochs, self.patience = options.epochs, options.patience

    def restore(self, model: keras.Model) -> None:
        """Gives a model the weights, the optimizer and the generators of the last epoch."""
        if self.state.epoch and not self.state.finished:
            model.optimizer.build(model.trainable_variables)
            load_weights(model, weights_file(self.folder, self.state.epoch))
            generators = random_generators(model)
            for variable, value in zip(generators, self.state.random_states, strict=True):
                variable.assign(value)

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Puts the training examples in this epoch's order.

        On torch, dropout without a seed of its own draws from a generator that belongs to no
        model: it is set again, as a function of the seed and the epoch.
        """
        self.started = time.perf_counter()
        self.batches.start_epoch(epoch)
        if keras.backend.backend() == "torch" and self.batches.seed is not None:
            drawn = np.random.SeedSequence([self.batches.seed, epoch]).generate_state(1)
            keras.utils.set_random_seed(int(drawn[0]))

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        """Records the metrics, saves the weights, then the state that names them."""
        seconds = time.perf_counter() - self.started
        weights = map(keras.ops.convert_to_numpy, self.model.weights)
        if not math.isfinite(logs["loss"]) or not all(np.isfinite(x).all() for x in weights):
            steps = int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))
            raise FloatingPointError(
                f"{self.folder.name}: a loss or weight is NaN or infinite in epoch {epoch + 1}, "
                f"after {steps} steps in all. Use a lower --learning-rate or --precision float32, "
                "and --overwrite to begin anew"
            )
        if self.test_data is not None:
            test = self.model.evaluate(
                self.test_data, verbose=0, return_dict=True, callbacks=_with_averages(self.model)
            )
            logs.update({f"test_{name}": value for name, value in test.items()})
        metrics = {name: float(value) for name, value in logs.items()}
        state = self.state
        state.add(metrics, self.criterion)
        state.seconds.append(round(seconds, 3))
        state.random_states = [
            keras.ops.convert_to_numpy(variable).tolist()
            for variable in random_generators(self.model)
        ]
        self.save_weights()
        if self.is_writer:
            self.save_state()
        self.model.stop_training = state.ends(self.epochs, self.patience)

    def save_weights(self) -> None:
        """Writes the weights of the last epoch, with the optimizer.

        Keras exchanges numbers between processes here. So those that do not write take part.
        """
        if not self.is_writer:
            with tempfile.TemporaryDirectory() as folder:
                self.model.save_weights(Path(folder, "unused.weights.h5"))
            return
        with atomically(weights_file(self.folder, self.state.epoch)) as writing:
            variables = [*self.model.variables, *self.model.optimizer.variables]
            # the numbers, and the data that HDF5 adds for each tensor
            check_room(writing, sum(math.prod(v.shape) * 8 + 4096 for v in variables))
            self.model.save_weights(writing)

    def save_state(self) -> None:
        """Writes the state and the history, then removes the weights no longer needed."""
        write_json(self.folder / "state.json", dataclasses.asdict(self.state))
        write_csv(self.history_file, self.state.history)
        kept = {weights_file(self.folder, self.state.best_epoch)}
        if not self.state.finished:
            kept.add(weights_file(self.folder, self.state.epoch))
        for path in set(self.folder.glob("*.weights.h5")) - kept:
            path.unlink()


def random_generators(model: keras.Model) -> list[keras.Variable]:
    """The states of a model's random generators, such as those of its dropout."""
    weights = {id(variable) for variable in model.weights}
    return [
        variable
        for variable in model.non_trainable_variables
        if id(variable) not in weights and variable.path.endswith("seed_generator_state")
    ]


def load_weights(model: keras.Model, weights: Path) -> None:
    """Reads the weights of a run's epoch, or says in one line that they are damaged."""
    try:
        model.load_weights(weights)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"{weights}: {error}. Remove {weights.parent} to train the run anew"
        ) from error


def load_chosen(model: keras.Model, weights: Path) -> None:
    """Gives a compiled model the weights of a finished epoch: the averages, if it has any."""
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    load_weights(model, weights)
    if _with_averages(model):
        _optimizer(model).finalize_variable_values(model.trainable_variables)


@contextmanager
def averages_of(model: keras.Model) -> Iterator[None]:
    """A context in which the weights are their moving averages, if the optimizer has any yet."""
    callbacks = _with_averages(model) if _optimizer(model).built else []
    for callback in callbacks:
        callback.set_model(model)
        callback.on_test_begin()
    try:
        yield
    finally:
        for callback in callbacks:
            callback.on_test_end()


def _with_averages(model: keras.Model) -> list[keras.callbacks.Callback]:
    """The callbacks under which a model is evaluated with its averages, if it has any."""
    has_averages = getattr(_optimizer(model), "use_ema", False)
    return [keras.callbacks.SwapEMAWeights()] if has_averages else []


def _optimizer(model: keras.Model) -> keras.optimizers.Optimizer:
    """The optimizer, without the scale of the loss that mixed precision puts around it."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)
