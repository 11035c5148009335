"""A callback that writes the smoothing report during training."""

import csv
import math
import time
import warnings
from pathlib import Path
from typing import Any

import keras

from keras_graphattn.analysis.smoothing.inspection import Data, check_data, inspect_smoothing
from keras_graphattn.analysis.smoothing.report import SmoothingReport
from keras_graphattn.checks import whole
from keras_graphattn.files import whole_file


class SmoothingLogger(keras.callbacks.Callback):  # type: ignore[misc]
    """Writes what attention does to the tokens, every few epochs, to a CSV file and TensorBoard.

    Each time, the file gets one row for each attention layer: the epoch (from 1), the depth, the
    path and the figures of `LayerReport.summary`. The file is always complete: each report replaces
    it.

    Args:
        data: The data to measure, as for `inspect_smoothing`, such as a few batches for
            validation. It must be the same each time: no generator, which is empty after one pass.
        path: The CSV file.
        every: Number of epochs between two reports. The first is after so many epochs.
        log_dir: A folder for TensorBoard, or `None`. It needs the package `tensorboard`.
        **options: Further arguments of `inspect_smoothing`. Few sequences make a report cheap.

    Attributes:
        report: The last report, or `None`.
        cost: Time of the reports relative to that of the epochs; 0 before the first report.

    Raises:
        ValueError: For an `every` below 1, and for data that can be read only once.
        ImportError: If `log_dir` is given and tensorboard is not installed.

    Example:

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "smoothing.csv"
    >>> model = keras.Sequential([keras.Input((4, 8)), GraphFilterAttention(2, 4)])
    >>> model.compile("sgd", "mse", jit_compile=False)
    >>> tokens = np.random.default_rng(0).normal(size=(2, 4, 8)).astype("float32")
    >>> logger = SmoothingLogger(tokens, path)
    >>> history = model.fit(tokens, tokens, epochs=2, callbacks=[logger], verbose=0)
    >>> len(path.read_text().splitlines())  # a header, and one row for each epoch
    3
    """

    def __init__(
        self,
        data: Data,
        path: str | Path,
        *,
        every: int = 1,
        log_dir: str | Path | None = None,
        **options: int,
    ) -> None:
        super().__init__()
        if hasattr(data, "__next__"):
            raise ValueError(
                "`data` is read at several epochs, so it must not be a generator or an iterator. "
                f"Received: data={data!r}. Pass arrays, a keras.utils.PyDataset or a list of "
                "batches in a class with `__iter__`."
            )
        check_data(data)
        self.every = whole()("every", every, {})
        self.data, self.path, self.options = data, Path(path), options
        self.report: SmoothingReport | None = None
        self._rows: list[dict[str, str | float]] = []
        self._seconds = {"reports": 0.0, "epochs": 0.0}
        self._start = 0.0
        self._writer = None if log_dir is None else _tensorboard_writer(log_dir)

    @property
    def cost(self) -> float:
        """Time of the reports relative to the time of the epochs."""
        return self._seconds["reports"] / max(self._seconds["epochs"], 1e-9)

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        start = time.perf_counter()
        self._seconds["epochs"] += start - self._start
        if (epoch + 1) % self.every:
            return
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()  # on JAX, `fit` keeps the weights outside the model
        self.report = inspect_smoothing(self.model, self.data, **self.options)
        self._write(epoch + 1, self.report)
        self._seconds["reports"] += time.perf_counter() - start

    def _write(self, epoch: int, report: SmoothingReport) -> None:
        if not report.layers:
            reasons = "; ".join(f"'{path}': {why}" for path, why in report.not_measured.items())
            warnings.warn(f"There is nothing to write to {self.path}: {reasons}", stacklevel=2)
            return
        for depth, layer in enumerate(report.layers):
            figures = layer.summary()
            self._rows.append({"epoch": epoch, "depth": depth, "path": layer.path, **figures})
            for name, value in figures.items():
                if self._writer is not None and math.isfinite(value):
                    self._writer.add_scalar(f"smoothing/{name}/layer_{depth:02d}", value, epoch)
        if self._writer is not None:
            self._writer.flush()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(self.path) as path, path.open("w", encoding="utf-8", newline="") as opened:
            writer = csv.DictWriter(opened, list(self._rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(self._rows)


def _tensorboard_writer(log_dir: str | Path) -> Any:
    try:
        from tensorboard.summary import Writer  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError(
            "`log_dir` needs tensorboard, which is not installed. Run `pip install tensorboard`, "
            "or leave `log_dir` out."
        ) from error
    return Writer(str(log_dir))
