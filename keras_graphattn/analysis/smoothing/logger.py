"""A callback that writes the smoothing report during training."""

import csv
import inspect
import warnings
from pathlib import Path

import keras

from keras_graphattn.analysis.smoothing.inspection import Data, check_data, inspect_smoothing
from keras_graphattn.analysis.smoothing.report import SmoothingReport
from keras_graphattn.checks import whole
from keras_graphattn.files import whole_file


class SmoothingLogger(keras.callbacks.Callback):  # type: ignore[misc]
    """Writes what attention does to the tokens, every few epochs, to a CSV file.

    Each time, the file gets one row for each attention layer: the epoch (from 1), the depth, the
    path and the figures of `LayerReport.summary`. The file is always complete: each report replaces
    it.

    Args:
        data: The data to measure, as for `inspect_smoothing`, such as a few batches for
            validation. It must be the same each time: no generator, which is empty after one pass.
        path: The CSV file.
        every: Number of epochs between two reports. The first is after so many epochs.
        **options: Further arguments of `inspect_smoothing`. Few sequences make a report cheap.

    Attributes:
        report: The last report, or `None`.

    Raises:
        ValueError: For an `every` below 1, and for data that can be read only once.
        TypeError: For an option that `inspect_smoothing` does not have.

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

    def __init__(self, data: Data, path: str | Path, *, every: int = 1, **options: int) -> None:
        super().__init__()
        if hasattr(data, "__next__"):
            raise ValueError(
                "`data` is read at several epochs, so it must not be a generator or an iterator. "
                f"Received: data={data!r}. Pass arrays, a keras.utils.PyDataset or a list of "
                "batches in a class with `__iter__`."
            )
        check_data(data)
        inspect.signature(inspect_smoothing).bind(None, data, **options)  # Python's own error
        self.every = whole()("every", every, {})
        self.data, self.path, self.options = data, Path(path), options
        self.report: SmoothingReport | None = None
        self._rows: list[dict[str, str | float]] = []

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if (epoch + 1) % self.every:
            return
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()  # on JAX, `fit` keeps the weights outside the model
        self.report = inspect_smoothing(self.model, self.data, **self.options)
        if not self.report.layers:
            missing = self.report.not_measured.items()
            reasons = "; ".join(f"'{path}': {why}" for path, why in missing)
            warnings.warn(f"There is nothing to write to {self.path}: {reasons}", stacklevel=2)
            return
        self._rows += [
            {"epoch": epoch + 1, "depth": depth, "path": layer.path, **layer.summary()}
            for depth, layer in enumerate(self.report.layers)
        ]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(self.path) as path, path.open("w", encoding="utf-8", newline="") as opened:
            writer = csv.DictWriter(opened, list(self._rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(self._rows)
