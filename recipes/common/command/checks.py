"""Checks and preparations of all recipes, before the training.

Does not import Keras itself: functions that need it come after the backend is chosen.
"""

import argparse
import importlib.util
import pkgutil
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from recipes.common.attentions import ATTENTIONS, Settings, Trial, compared, layer_arguments
from recipes.common.command.parsing import UsageError, flags, listed
from recipes.common.storage import (
    LOCK,
    DamagedFileError,
    InUseError,
    locked,
    read_json,
    remove,
    write_json,
)

WRITTEN = (
    *("settings.json", "runs", "histories", "tensorboard", "results.json", "results.png"),
    *("masks.png", "predictions.png", "model.keras", "saved_model", "case_study", "preset"),
    *("attention.png", "transcripts.csv", "vocabulary.json", "pieces.model", "tokenizer"),
)


def check_installed(options: argparse.Namespace) -> None:
    """Refuses options that need a package that is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("the plot needs matplotlib: pip install matplotlib")
    missing = importlib.util.find_spec("tensorflow") is None
    if missing and writes_saved_model(options):
        raise UsageError(
            "a SavedModel is written by TensorFlow: pip install tensorflow, or give "
            "--skip-saved-model"
        )
    if options.tensorboard and (missing or importlib.util.find_spec("tensorboard") is None):
        raise UsageError("--tensorboard needs: pip install tensorflow tensorboard")


def check_published(option: str, value: object, known: Iterable[str]) -> None:
    """Refuses `--published` for a value of an option that has no published settings."""
    names = list(known)
    if value not in names:
        raise UsageError(
            f"--published has settings for --{option} {listed(names)}; --{option} is {value}"
        )


def writes_saved_model(options: argparse.Namespace) -> bool:
    """Whether a SavedModel is written; recipes that write one have an option to leave it out."""
    return not getattr(options, "skip_saved_model", True)


def check_attentions(trials: Iterable[Trial]) -> None:
    """Refuses settings that the layers, or their filters, refuse."""
    for trial in trials:
        name, settings = trial.attention, trial.settings
        make = pkgutil.resolve_name(ATTENTIONS[name].layer)
        p = settings.get("p")
        heads = len(p) if isinstance(p, list) else 1
        try:
            arguments = layer_arguments(settings)
            if isinstance(make, type):
                with warnings.catch_warnings(action="ignore"):  # the layer warns when it is made
                    make(num_heads=heads, key_dim=1, **arguments)
        except ValueError as error:
            raise UsageError(f"--attention {name}: {error}") from error


def check_settings(output: Path, settings: Settings, usual: Settings, overwrite: bool) -> None:
    """Refuses to mix runs of different settings in one folder.

    A setting that its file does not name has the `usual` value: its option is newer than the runs.
    The settings of an attention count where it has runs, and none are those that are not named.
    """
    if overwrite:
        for name in WRITTEN:
            remove(output / name)
    damage = None
    try:
        before = read_json(output / "settings.json")
        if not isinstance(before, dict | None):
            raise DamagedFileError("settings.json is not whole")
        if before is None and any((output / "runs").glob("*/")):
            damage = "settings.json is missing"
    except DamagedFileError as error:
        damage = str(error)
    if damage:
        raise UsageError(
            f"{output}: {damage}, so nothing says which settings its runs are of. Give another "
            "--output, or --overwrite to begin anew"
        )
    if before is None:
        write_json(output / "settings.json", settings)
        return
    now, then = settings["filters"], before.get("filters", {})
    trained = {compared(run.name.rpartition("-seed")[0])[0] for run in output.glob("runs/*/")}
    shared = [name for name in now if name in trained]
    settings = {**settings, "filters": {name: now[name] for name in shared}}
    before["filters"] = {name: then.get(name, {}) for name in shared}
    changed = [
        f"{name} (was {was!r}, now {settings.get(name)!r})"
        for name, was in {**{name: usual.get(name) for name in settings}, **before}.items()
        if was != settings.get(name)
    ]
    if changed:
        raise UsageError(
            f"{output} holds runs of other settings: {', '.join(changed)}. Give the same ones, "
            "another --output, or --overwrite to begin anew"
        )
    write_json(output / "settings.json", {**before, "filters": {**then, **now}})


def refuse_to_remove(options: argparse.Namespace) -> None:
    """Refuses `--overwrite` where it removes what another option reads."""
    if not options.overwrite:
        return
    written = [(options.output / name).resolve() for name in WRITTEN]
    for name, value in vars(options).items():
        if name == "output" or not isinstance(value, str | Path):
            continue
        place = Path(value).resolve()
        if any(one == place or one in place.parents for one in written):
            raise UsageError(
                f"{flags([name])} {value} is what --overwrite would remove. Give another --output"
            )


@contextmanager
def only_run_in(output: Path) -> Iterator[None]:
    """Makes the folder; refuses a second run that writes to it at the same time."""
    with ExitStack() as stack:
        try:
            output.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(output / LOCK))
        except OSError as error:
            reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror
            raise UsageError(f"cannot write to --output {output}: {reason}") from error
        except InUseError as error:
            raise UsageError(
                f"another run is writing to --output {output}. Wait for it, end it, or give "
                "another --output"
            ) from error
        for pattern in ("", "runs/*/", "histories/"):
            for path in output.glob(f"{pattern}.writing-*"):  # of a run that was killed
                remove(path)
        yield


@contextmanager
def keras_configured(precision: str) -> Iterator[None]:
    """Sets Keras' precision, and restores the earlier one at the end."""
    import keras

    policy = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy(precision)
        yield
    finally:
        keras.config.set_dtype_policy(policy)
