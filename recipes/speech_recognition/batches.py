"""Batches of recordings of about the same length, at speeds that are drawn for each epoch."""

from typing import Any

import numpy as np

from recipes.common.data.batches import Buckets, bucket_lengths, filled_weights
from recipes.speech_recognition.data import BLANK, END, START, Split

SPEEDS = ((10, 9), (1, 1), (10, 11))  # up and down of the resampling: 0.9, 1, 1.1 times as fast


class Recordings(Buckets):
    """Batches of samples and transcripts, each of the length of its bucket.

    Inputs are `samples` (B, S), `num_samples` (B,) and `tokens` (B, L), the transcript after the
    start; labels (B, L) are the transcript and its end, then blanks.

    Args:
        split: The recordings.
        lengths: Samples to pad to, one for each bucket.
        batch_size: Recordings of a batch.
        seed: Seed of the order and of the speeds; without one, no recording changes.
        perturb: Whether to draw a speed of 0.9, 1 or 1.1 for each recording.
        batch_samples: Samples of a batch, padding counted, in place of `batch_size`.
    """

    def __init__(
        self,
        split: Split,
        lengths: list[int],
        batch_size: int,
        seed: int | None = None,
        *,
        perturb: bool = False,
        batch_samples: int | None = None,
    ) -> None:
        self.perturb, self.batch_samples = perturb, batch_samples
        # at the slowest speed, so that a recording stays in its bucket: Keras takes the number of
        # batches of the first epoch for that of all
        self.slowest = _at_speed(split.lengths, *SPEEDS[0]) if perturb else split.lengths
        widths = np.ones(len(lengths), int)
        np.maximum.at(widths, np.searchsorted(lengths, self.slowest), split.labels + 1)
        # each larger than the one before: on TensorFlow, Keras takes a size that is equal in the
        # first two batches for constant
        steps = np.arange(len(lengths))
        self.widths = (np.maximum.accumulate(widths - steps) + steps).tolist()
        super().__init__(split, lengths, batch_size, seed)

    def start_epoch(self, epoch: int) -> None:
        """Draws the speeds of an epoch, and orders its batches."""
        if self.perturb:
            random = np.random.default_rng([self.seed or 0, epoch, 1])
            self.speeds = random.integers(0, len(SPEEDS), len(self.slowest))
        self.bucket = np.searchsorted(self.lengths, self.slowest)
        super().start_epoch(epoch)
        # the first two are the shortest and the longest, so that all that may differ does
        lengths = [length for length, _ in self.batches]
        for place, wanted in enumerate((min(lengths), max(lengths))[: len(lengths)]):
            other = lengths.index(wanted, place)
            for one in (lengths, self.batches):
                one[place], one[other] = one[other], one[place]

    def rows(self, length: int) -> int:
        if self.batch_samples is None:
            return self.batch_size
        return max(self.batch_samples // length, 1)

    def __getitem__(self, index: int) -> Any:
        length, chosen = self.batches[index]
        rows = self.rows(length)
        weights = filled_weights(len(chosen), rows)
        width = self.widths[self.lengths.index(length)]
        samples = np.zeros((rows, length), "float32")
        tokens = np.full((rows, width), BLANK, "int32")
        labels = np.full((rows, width), BLANK, "int32")
        counts = np.zeros(rows, "int32")
        for row, which in enumerate(np.resize(chosen, rows)):
            one = self._samples(which)
            said = self.split.tokens[which]
            samples[row, : len(one)], counts[row] = one, len(one)
            tokens[row, : len(said) + 1] = START, *said
            labels[row, : len(said) + 1] = *said, END
        return {"samples": samples, "num_samples": counts, "tokens": tokens}, labels, weights

    def _samples(self, which: int) -> np.ndarray:
        samples = self.split.samples(which)
        if self.perturb:
            from scipy.signal import resample_poly

            up, down = SPEEDS[self.speeds[which]]
            samples = resample_poly(samples, up, down) if up != down else samples
        return samples


def _at_speed(lengths: np.ndarray, up: int, down: int) -> np.ndarray:
    """Samples that `resample_poly` makes of recordings, (N,)."""
    return -(-lengths * up // down)


def lengths_of(split: Split, others: list[Split], perturb: bool, count: int) -> list[int]:
    """Samples to pad to: up to `count` for the recordings of `split`, and the longest of all."""
    slowest = _at_speed(split.lengths, *SPEEDS[0]) if perturb else split.lengths
    longest = max(slowest.max(), *(other.lengths.max() for other in others))
    return bucket_lengths(slowest, int(longest), count)
