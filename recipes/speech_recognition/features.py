"""From samples to features: log-Mel, a mean and a variance for each utterance, SpecAugment.

All of it is part of the model, so that a served model takes samples. What is added after an
utterance, as padding, changes none of its features.
"""

from typing import Any

import keras
from keras import layers, ops

from recipes.speech_recognition.data import HOP

Tensor = Any
WINDOW = 0.025  # seconds
FFT = 512
PACKAGE = "keras_graphattn_recipes"


def log_mel(samples: Tensor, rate: int, bins: int) -> Tensor:
    """Log-Mel features (B, T, bins) of samples (B, S): T = ceil(S / hop), in decibels.

    Frame t has its middle at sample t * hop. Zeros stand before and after the samples: where Keras'
    layer reflects its input at the ends, it meets nothing else, however long the padding is.
    """
    hop = round(HOP * rate)
    margin = -(-(FFT // 2 + 1) // hop)  # frames
    padded = ops.pad(samples, ((0, 0), (margin * hop, margin * hop + hop - 1)))
    mel = layers.MelSpectrogram(
        fft_length=FFT,
        sequence_stride=hop,
        sequence_length=round(WINDOW * rate),
        sampling_rate=rate,
        num_mel_bins=bins,
        min_power=1e-8,
        top_db=1e3,  # none: it would depend on the other utterances of a batch
        dtype="float32",
        name="log_mel",
    )(padded)
    return FramesOf(hop, margin, dtype="float32", name="frames")([mel, samples])


@keras.saving.register_keras_serializable(package=PACKAGE)
class FramesOf(layers.Layer):
    """The frames of samples, without those of the margins: (B, F, T') -> (B, T, F)."""

    def __init__(self, hop: int, margin: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hop, self.margin = hop, margin

    def call(self, inputs: Any) -> Tensor:
        mel, samples = inputs
        count = -(-ops.shape(samples)[1] // self.hop)
        frames = ops.transpose(mel, (0, 2, 1))
        return frames[:, self.margin : self.margin + count]

    def compute_output_shape(self, input_shape: Any) -> Any:
        (batch, bins, _), (_, length) = input_shape
        return batch, None if length is None else -(-length // self.hop), bins

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "hop": self.hop, "margin": self.margin}


@keras.saving.register_keras_serializable(package=PACKAGE)
class LengthMask(layers.Layer):
    """Which of T frames are real, (B, T) boolean, for numbers of samples (B,)."""

    def __init__(self, hop: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hop = hop

    def call(self, inputs: Any) -> Tensor:
        lengths, frames = inputs
        starts = self.hop * ops.arange(ops.shape(frames)[1], dtype="int32")
        return starts[None] < ops.cast(lengths, "int32")[:, None]

    def compute_output_spec(self, inputs: Any) -> Any:
        return keras.KerasTensor(inputs[1].shape[:2], "bool")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "hop": self.hop}


@keras.saving.register_keras_serializable(package=PACKAGE)
class UtteranceNorm(layers.Layer):
    """Features (B, T, F) less their mean over the real frames, over their standard deviation.

    Each bin of each utterance has a mean of its own. The bins of an utterance share one deviation,
    so that bins with little sound stay small. Padding becomes 0.
    """

    def call(self, features: Tensor, frame_mask: Tensor) -> Tensor:
        real = ops.expand_dims(frame_mask, -1)
        count = ops.maximum(ops.sum(ops.cast(real, features.dtype), axis=1, keepdims=True), 1.0)

        def mean(x: Tensor) -> Tensor:
            return ops.sum(ops.where(real, x, 0.0), axis=1, keepdims=True) / count

        centred = features - mean(features)
        # the rest that rounding leaves, which depends on the length of the padding
        centred = ops.where(real, centred - mean(centred), 0.0)
        variance = ops.mean(mean(ops.square(centred)), axis=-1, keepdims=True)
        return centred / ops.sqrt(variance + 1e-2)

    def compute_output_shape(self, features_shape: Any, *_: Any) -> Any:
        return features_shape


@keras.saving.register_keras_serializable(package=PACKAGE)
class SpecAugment(layers.Layer):
    """Warps the time of features (B, T, F), and hides bands and stretches of time, in training.

    A point of each utterance is drawn, at least `time_warp` frames from its ends, and moved by up
    to `time_warp` frames: the features before and after it are stretched or squeezed. Then
    `frequency_masks` bands of at most `frequency_bins` bins become 0, and `time_masks` stretches of
    at most `time_frames` frames, and at most `time_share` of the utterance, each at a place of its
    own in each utterance.

    Source: Park et al., "SpecAugment: A Simple Data Augmentation Method for Automatic Speech
    Recognition", arXiv 1904.08779, section 2, where `time_share` is p. Ours: the warp is linear on
    both sides of the point, as in ESPnet, not a spline of the image.
    """

    def __init__(
        self,
        time_warp: int = 5,
        frequency_masks: int = 2,
        frequency_bins: int = 30,
        time_masks: int = 2,
        time_frames: int = 40,
        time_share: float = 1.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.sizes = {
            "time_warp": time_warp,
            "frequency_masks": frequency_masks,
            "frequency_bins": frequency_bins,
            "time_masks": time_masks,
            "time_frames": time_frames,
            "time_share": time_share,
        }
        self.seed = seed
        self.generator = keras.random.SeedGenerator(seed)

    def call(self, features: Tensor, frame_mask: Tensor, training: bool | None = None) -> Tensor:
        if not training:
            return features
        sizes = self.sizes
        lengths = ops.sum(ops.cast(frame_mask, "float32"), axis=1)  # (B,)
        if sizes["time_warp"]:
            features = self._warped(features, lengths)
        batch, time, bins = ops.shape(features)
        everything = ops.full((batch,), float(features.shape[-1]))
        bands = (sizes["frequency_masks"], sizes["frequency_bins"])
        hidden = self._stretches(bins, *bands, everything, everything)[:, None, :]
        times = (sizes["time_masks"], sizes["time_frames"])
        most = ops.floor(lengths * sizes["time_share"])
        hidden = ops.logical_or(hidden, self._stretches(time, *times, lengths, most)[:, :, None])
        return ops.where(hidden, ops.cast(0.0, features.dtype), features)

    def _draw(self, *shape: Any) -> Tensor:
        return keras.random.uniform(shape, dtype="float32", seed=self.generator)

    def _warped(self, features: Tensor, lengths: Tensor) -> Tensor:
        """The features at the times that the warp takes them from, between two frames each."""
        batch, time, bins = ops.shape(features)
        warp = float(self.sizes["time_warp"])
        draws = self._draw(batch, 2)
        last = ops.maximum(lengths - 1.0, 0.0)
        fits = lengths > 2.0 * warp + 2.0
        place = warp + draws[:, 0] * (last - 2.0 * warp)
        place = ops.where(fits, place, 0.5 * last)[:, None]
        moved = place + ops.where(fits, (2.0 * draws[:, 1] - 1.0) * (warp - 1.0), 0.0)[:, None]
        last = last[:, None]
        at = ops.cast(ops.arange(time, dtype="int32"), "float32")[None]
        before = at * place / ops.maximum(moved, 1e-3)
        after = place + (at - moved) * (last - place) / ops.maximum(last - moved, 1e-3)
        source = ops.clip(ops.where(at < moved, before, after), 0.0, last)
        source = ops.where(at <= last, source, at)  # padding stays
        low = ops.floor(source)
        share = ops.cast((source - low)[..., None], features.dtype)
        low = ops.cast(low, "int32")
        high = ops.minimum(low + 1, ops.cast(ops.maximum(last, at), "int32"))
        rows = ops.reshape(features, (-1, bins))
        first = (time * ops.arange(batch, dtype="int32"))[:, None]  # of each utterance
        taken = [ops.take(rows, first + one, axis=0) for one in (low, high)]
        return taken[0] * (1.0 - share) + taken[1] * share

    def _stretches(
        self, size: Any, count: int, widest: int, lengths: Tensor, most: Tensor
    ) -> Tensor:
        """Which of `size` places lie in one of `count` drawn stretches, (B, size).

        A stretch lies in the first `lengths` places and has at most `most`, both (B,).
        """
        draws = self._draw(ops.shape(lengths)[0], max(count, 1), 2)
        width = ops.floor(draws[..., 0] * (widest + 1.0))
        width = ops.minimum(width, most[:, None])
        start = ops.floor(draws[..., 1] * (lengths[:, None] - width + 1.0))
        places = ops.cast(ops.arange(size, dtype="int32"), "float32")[None, None]
        start, end = start[..., None], (start + width)[..., None]
        inside = ops.logical_and(places >= start, places < end)
        return ops.any(inside, axis=1) if count else ops.zeros_like(inside[:, 0])

    def compute_output_shape(self, features_shape: Any, *_: Any) -> Any:
        return features_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self.sizes, "seed": self.seed}
