"""Batches of recordings of about the same length; speeds and noise are drawn for each epoch."""

import argparse
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from recipes.common.data.batches import Buckets, bucket_lengths, filled_weights
from recipes.speech_recognition.data import Problem, Split, Vocabulary


class Recordings(Buckets):
    """Batches of samples and transcripts, each of the length of its bucket.

    Inputs are `samples` (B, S), `num_samples` (B,) and `tokens` (B, L), the transcript after its
    prompt, which mostly is the start; labels (B, L) are the token after each, up to the end, and
    then padding.

    Args:
        split: The recordings.
        lengths: Samples to pad to, one for each bucket.
        batch_size: Recordings of a batch.
        seed: Seed of the order and of the speeds; without one, no recording changes.
        speeds: The speeds of which one is drawn for each recording, 1 for its own. Each is drawn as
            often as the others.
        noise: Least and greatest ratio of a recording to the noise added to it, in decibels; one is
            drawn for each recording. Without a seed, or empty, there is no noise.
        batch_samples: Samples of a batch, padding counted, in place of `batch_size`.
        vocabulary: That of the transcripts, which has the `marks` around them.
    """

    def __init__(
        self,
        split: Split,
        lengths: list[int],
        batch_size: int,
        seed: int | None = None,
        *,
        speeds: Sequence[float] = (1.0,),
        noise: Sequence[float] = (),
        batch_samples: int | None = None,
        vocabulary: Any = Vocabulary,
    ) -> None:
        self.speeds, self.batch_samples = list(speeds), batch_samples
        self.vocabulary = vocabulary
        self.noise = [] if seed is None else list(noise)
        # recordings of about the same length, as many as there are speeds
        order, count = np.argsort(-split.lengths, kind="stable"), len(self.speeds)
        self.groups = [order[at : at + count] for at in range(0, len(order), count)]
        self.buckets = []  # of each group, at each speed
        widths = np.ones(len(lengths), int)
        for group in self.groups:
            full = len(group) == count
            at = [_at_speed(split.lengths[group].max(), one) for one in speeds]
            buckets = np.searchsorted(lengths, at if full else [max(at)] * count)
            np.maximum.at(widths, buckets, split.labels[group].max() + len(vocabulary.marks.prompt))
            self.buckets.append(buckets)
        # each larger than the one before: on TensorFlow, a size that is equal in the first two
        # batches is taken for constant
        steps = np.arange(len(lengths))
        self.widths = (np.maximum.accumulate(widths - steps) + steps).tolist()
        super().__init__(split, lengths, batch_size, seed)

    def start_epoch(self, epoch: int) -> None:
        """Draws the speeds of an epoch, and orders its batches.

        A group has each speed once, and its longest recording decides on the buckets. So a bucket
        has as many recordings in every epoch: Keras takes the number of batches of the first epoch
        for that of all.
        """
        random = np.random.default_rng([self.seed or 0, epoch, 1])
        self.drawn = np.zeros(len(self.split.lengths), int)
        self.bucket = np.zeros(len(self.split.lengths), int)
        for group, buckets in zip(self.groups, self.buckets, strict=True):
            drawn = random.permutation(len(buckets))[: len(group)]
            self.drawn[group], self.bucket[group] = drawn, buckets[drawn]
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
        prompt, end, padding = self.vocabulary.marks
        tokens, labels = (np.full((rows, width), padding, "int32") for _ in range(2))
        counts = np.zeros(rows, "int32")
        for row, which in enumerate(np.resize(chosen, rows)):
            one = self._samples(which)
            samples[row, : len(one)], counts[row] = one, len(one)
            said = [*prompt, *self.split.tokens[which]]
            tokens[row, : len(said)] = said
            labels[row, : len(said)] = *said[1:], end
        return {"samples": samples, "num_samples": counts, "tokens": tokens}, labels, weights

    def _samples(self, which: int) -> np.ndarray:
        from scipy.signal import resample_poly

        samples = self.split.samples(which)
        ratio = _stretch(self.speeds[self.drawn[which]])
        if ratio != 1:
            samples = resample_poly(samples, *ratio.as_integer_ratio())
        if self.noise:
            random = np.random.default_rng([self.seed or 0, self.epoch, which, 2])
            samples = samples + _noise(samples, random.uniform(*self.noise), random)
        return samples


def batches_of(
    problem: Problem,
    split: Split,
    options: argparse.Namespace,
    seed: int | None = None,
    kind: type[Recordings] = Recordings,
) -> Any:
    """Recordings in batches; with a seed they are shuffled, and their speeds are drawn."""
    lengths = lengths_of(
        problem.train, list(problem.splits.values()), options.speeds, options.buckets
    )
    samples = options.batch_seconds and round(options.batch_seconds * problem.rate)
    return kind(
        *(split, lengths, options.batch_size, seed),
        speeds=[1.0] if seed is None else options.speeds,
        noise=options.noise,
        batch_samples=samples,
        vocabulary=problem.vocabulary,
    )


def _noise(samples: np.ndarray, ratio: float, random: np.random.Generator) -> np.ndarray:
    """Noise (S,), `ratio` decibels below the samples, from white to one that falls with frequency.

    Its neighbouring samples have a drawn correlation of 0 to 0.95.
    """
    from scipy.signal import lfilter

    noise = lfilter([1.0], [1.0, -random.uniform(0.0, 0.95)], random.standard_normal(len(samples)))
    level = np.sqrt(np.mean(np.square(samples)) / np.mean(np.square(noise)))
    return (noise * level * 10.0 ** (-ratio / 20.0)).astype("float32")


def _stretch(speed: float) -> Fraction:
    """How many times as long a recording is at a speed."""
    return 1 / Fraction(speed).limit_denominator(100)


def _at_speed(lengths: np.ndarray, speed: float) -> np.ndarray:
    """Samples that `resample_poly` makes of recordings, (N,)."""
    up, down = _stretch(speed).as_integer_ratio()
    return -(-lengths * up // down)


def lengths_of(split: Split, others: list[Split], speeds: Sequence[float], count: int) -> list[int]:
    """Samples to pad to: up to `count` for the recordings of `split`, and the longest of all."""
    lengths = np.concatenate([_at_speed(split.lengths, one) for one in speeds])
    longest = max(lengths.max(), *(other.lengths.max() for other in others))
    return bucket_lengths(lengths, int(longest), count)
