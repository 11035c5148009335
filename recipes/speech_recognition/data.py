"""Recordings with their transcripts: LibriSpeech, a folder, spoken digits, synthetic words.

A recording stays in its file or in memory, and is read when a batch needs it. Does not import
Keras.
"""

import argparse
import csv
import dataclasses
import hashlib
import itertools
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recipes.common.command.parsing import UsageError, at_least
from recipes.common.data.sources import load_tfds, refuse_missing
from recipes.common.storage import atomically, write_json

# Token ids that every vocabulary has. The blank of CTC is also the padding of transcripts.
BLANK, START, END, UNKNOWN = range(4)
SPECIAL_NAMES = ("<blank>", "<start>", "<end>", "⁇")
SPECIAL = len(SPECIAL_NAMES)
UNITS = ("word", "character", "piece")
PRESET = "preset"  # the unit that only --preset has
DATA_FILES = "the folder of the data set"
DATASETS = ("synthetic", "digits", "librispeech", "folder")
HOP = 0.010  # seconds between frames of features
SUBSAMPLING = 4  # frames of features to a frame of the encoder
NEEDED = {"soundfile": "soundfile", "jiwer": "jiwer"}  # by module, what to install

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGITS_RATE = 8000
LIBRISPEECH = {100: ["clean-100"], 960: ["clean-100", "clean-360", "other-500"]}
LIBRISPEECH_TESTS = ("test-clean", "test-other")

# Two formants of five vowels in Hz, and words of them: what the synthetic speech is made of.
VOWELS = {"a": (750, 1250), "e": (450, 2000), "i": (280, 2400), "o": (450, 850), "u": (300, 650)}
SYNTHETIC_WORDS = ("ai", "eo", "iua", "ou", "uea", "ie", "oa", "uo")


class Recording(NamedTuple):
    """One utterance: where its samples are, and what is said."""

    name: str
    samples: np.ndarray | Path  # (S,) float32 or int16, at the rate of the data; or a file
    length: int  # samples at the rate of the data
    text: str


class Marks(NamedTuple):
    """The ids around those of a transcript."""

    prompt: Sequence[int]  # before it
    end: int
    padding: int


class Vocabulary:
    """Tokens of transcripts: words, characters, or unigram pieces of sentencepiece.

    The ids from 0 on are blank, start, end, unknown, and then the tokens.
    """

    marks = Marks([START], END, BLANK)

    def __init__(self, unit: str, texts: Sequence[str], pieces: int) -> None:
        self.unit = unit
        self.model: Any = None
        if unit == "piece":
            self.model = _pieces_of(texts, pieces)
            self.size = int(self.model.get_piece_size())
            return
        self.tokens = sorted({token for text in texts for token in self._apart(text)})
        self.ids = {token: SPECIAL + place for place, token in enumerate(self.tokens)}
        self.size = SPECIAL + len(self.tokens)

    def encode(self, text: str) -> np.ndarray:
        """The ids of a transcript, (L,) int32."""
        if self.model is not None:
            return np.asarray(self.model.encode(text), "int32")
        return np.asarray([self.ids.get(one, UNKNOWN) for one in self._apart(text)], "int32")

    def decode(self, ids: Iterable[int]) -> str:
        """The transcript of ids; special ids but the unknown one are left out."""
        ids = [int(one) for one in ids if one >= UNKNOWN]
        if self.model is not None:
            return str(self.model.decode(ids))
        tokens = [self.tokens[one - SPECIAL] if one >= SPECIAL else "⁇" for one in ids]
        return " ".join("".join(tokens).split() if self.unit == "character" else tokens)

    def write(self, folder: Path) -> None:
        """Writes `pieces.model`, of sentencepiece, or `vocabulary.json`, the tokens by id."""
        if self.model is not None:
            with atomically(folder / "pieces.model") as writing:
                writing.write_bytes(self.model.serialized_model_proto())
            return
        write_json(folder / "vocabulary.json", [*SPECIAL_NAMES, *self.tokens])

    def _apart(self, text: str) -> Sequence[str]:
        return text.split() if self.unit == "word" else text


@dataclasses.dataclass
class Split:
    """Recordings, with the ids of their transcripts."""

    recordings: list[Recording]
    tokens: list[np.ndarray]  # (L,) int32 each
    rate: int

    def __len__(self) -> int:
        return len(self.recordings)

    @property
    def labels(self) -> np.ndarray:
        """The number of tokens of each, (N,)."""
        return np.array([len(one) for one in self.tokens])

    @property
    def lengths(self) -> np.ndarray:
        """Samples of each, (N,)."""
        return np.array([one.length for one in self.recordings])

    @property
    def texts(self) -> list[str]:
        return [one.text for one in self.recordings]

    @property
    def seconds(self) -> float:
        return float(self.lengths.sum()) / self.rate

    def samples(self, index: int) -> np.ndarray:
        """The samples of a recording, (S,) float32 between -1 and 1."""
        recording = self.recordings[index]
        if not isinstance(recording.samples, Path):
            scale = 1.0 / 32768 if recording.samples.dtype == np.int16 else 1.0
            return recording.samples.astype("float32") * np.float32(scale)
        samples, rate = _read(recording.samples)
        if len(samples) != recording.length or rate != self.rate:
            raise UsageError(
                f"{recording.samples} has {len(samples)} samples of the {recording.length} that "
                "its header names: it is truncated. Copy it again, or leave it out"
            )
        return samples


@dataclasses.dataclass
class Problem:
    """The recordings of training, validation and tests; the first test is that of the table."""

    name: str
    rate: int
    vocabulary: Any  # a `Vocabulary`, or the `Preset` of a pretrained recogniser
    train: Split
    validation: Split
    tests: dict[str, Split]

    @property
    def splits(self) -> dict[str, Split]:
        return {"train": self.train, "validation": self.validation, **self.tests}

    @property
    def test(self) -> Split:
        return next(iter(self.tests.values()))

    def digest(self) -> str:
        digest = hashlib.sha256(f"{self.name} {self.rate} {self.vocabulary.size}".encode())
        for split in self.splits.values():
            for one, tokens in zip(split.recordings, split.tokens, strict=True):
                digest.update(f"{one.name} {one.length} {one.text}".encode())
                digest.update(tokens.tobytes())
                if isinstance(one.samples, np.ndarray):
                    digest.update(one.samples.tobytes())
        return digest.hexdigest()[:16]


def add_options(add: Callable[..., Any]) -> None:
    """Adds the options of the data and their tokens by `add`."""
    add("--dataset", choices=DATASETS, default="synthetic", help="what is heard")
    add("--data-dir", type=Path, help=DATA_FILES)
    hours = "of LibriSpeech to train on"
    add("--hours", type=int, choices=tuple(LIBRISPEECH), default=100, help=hours)
    add("--tokens", choices=UNITS, help="of transcripts")
    add("--pieces", type=at_least(8), default=5000, help="of --tokens piece")
    add("--sampling-rate", type=at_least(2000), help="samples a second of the model")
    add("--train-examples", type=at_least(8), default=800, help="where data are made")
    add("--data-seed", type=at_least(0), default=0, help="seed of data that are made")


def refuse(options: argparse.Namespace) -> None:
    """Raises `UsageError` for options of the data that do not fit together."""
    if options.dataset in ("digits", "folder") and options.data_dir is None:
        raise UsageError(f"--dataset {options.dataset} needs --data-dir, its folder")
    if options.dataset == "librispeech" and options.sampling_rate not in (None, 16000):
        raise UsageError("--sampling-rate: LibriSpeech has 16000 samples a second")
    if options.dataset in ("synthetic", "digits") and options.sampling_rate is not None:
        raise UsageError(f"--sampling-rate: --dataset {options.dataset} has {DIGITS_RATE}")
    if options.dataset == "synthetic" and options.data_dir is not None:
        raise UsageError("--data-dir: the data of --dataset synthetic are made, not read")


def defaults(options: argparse.Namespace) -> dict[str, Any]:
    """The tokens and the sampling rate of a data set."""
    unit = {"digits": "word", "librispeech": "piece"}.get(options.dataset, "character")
    unit = PRESET if getattr(options, "preset", None) else unit
    made = options.dataset in ("digits", "synthetic")
    return {"tokens": unit, "sampling_rate": DIGITS_RATE if made else 16000}


def load(options: argparse.Namespace) -> Problem:
    """The data set that the options select.

    Raises:
        UsageError: If its files cannot be found or read, and for a recording without words.
    """
    pieces = {"sentencepiece": "sentencepiece"} if options.tokens == "piece" else {}
    refuse_missing(NEEDED | pieces)
    readers: dict[str, Callable[..., dict[str, list[Recording]]]] = {
        "synthetic": synthetic,
        "digits": digits,
        "librispeech": librispeech,
        "folder": folder,
    }
    parts = readers[options.dataset](options)
    for name, recordings in parts.items():
        if not recordings:
            raise UsageError(f"--dataset {options.dataset} has no recording for its {name} part")
        for one in recordings:
            if not one.text.strip():
                raise UsageError(f"{one.name} has an empty transcript: write it, or leave it out")
    texts = [one.text for one in parts["train"]]
    rate = options.sampling_rate
    if options.tokens == PRESET:
        from recipes.speech_recognition.pretrained import Preset

        vocabulary: Any = Preset(options.preset)
        if vocabulary.rate != rate:
            print(f"resampled from {rate} to {vocabulary.rate} samples a second", flush=True)
            parts = {
                name: [_resampled(one, rate, vocabulary.rate) for one in recordings]
                for name, recordings in parts.items()
            }
            rate = vocabulary.rate
        cut = sum(one.length > vocabulary.longest for each in parts.values() for one in each)
        if cut:
            seconds = f"{vocabulary.longest / rate:g} seconds that {options.preset} hears"
            print(
                f"{cut} recordings are longer than the {seconds}: the rest is cut off", flush=True
            )
    else:
        vocabulary = Vocabulary(options.tokens, texts, options.pieces)
    splits = {
        name: Split(recordings, [vocabulary.encode(one.text) for one in recordings], rate)
        for name, recordings in parts.items()
    }
    train, validation = splits.pop("train"), splits.pop("validation")
    return Problem(options.dataset, rate, vocabulary, train, validation, splits)


def frames(samples: Any, rate: int) -> Any:
    """Frames of features of a number of samples: one for each begun hop."""
    hop = round(HOP * rate)
    return -(-samples // hop)


def encoder_frames(samples: Any, rate: int) -> Any:
    """Frames of the encoder of a number of samples."""
    return -(-frames(samples, rate) // SUBSAMPLING)


def synthetic(options: argparse.Namespace) -> dict[str, list[Recording]]:
    """Words of formant tones, not speech: vowels of two tones each, from made-up speakers."""
    random = np.random.default_rng(options.data_seed)
    held_out = max(options.train_examples // 8, 8)
    sizes = {"train": options.train_examples, "validation": held_out, "test": held_out}
    return {
        part: [_synthetic_utterance(f"{part}-{number}", random) for number in range(size)]
        for part, size in sizes.items()
    }


def _synthetic_utterance(name: str, random: np.random.Generator) -> Recording:
    words = list(random.choice(SYNTHETIC_WORDS, random.integers(2, 5)))
    voice = random.uniform(0.85, 1.2)  # the speaker: all formants are higher or lower
    pieces = [np.zeros(random.integers(400, 1200))]
    for word in words:
        for vowel in word:
            count = random.integers(900, 1500)
            time = np.arange(count) / DIGITS_RATE
            tones = [np.sin(2 * np.pi * one * voice * time) for one in VOWELS[vowel]]
            pieces.append((tones[0] + 0.6 * tones[1]) * np.hanning(count))
        pieces.append(np.zeros(random.integers(700, 1600)))
    samples = 0.2 * random.uniform(0.5, 1.5) * np.concatenate(pieces)
    samples += 0.005 * random.standard_normal(len(samples))
    return Recording(name, samples.astype("float32"), len(samples), " ".join(words))


def digits(options: argparse.Namespace) -> dict[str, list[Recording]]:
    """Sequences of 3 to 7 spoken digits of one speaker, joined with pauses, gains and noise.

    The speakers are in the order of their names: all but two to train, then one to validate and one
    to test. The files are those of the Free Spoken Digit Dataset, `<digit>_<speaker>_<n>.wav`.
    """
    place = options.data_dir / "recordings"
    place = place if place.is_dir() else options.data_dir
    found: dict[str, dict[int, list[np.ndarray]]] = {}
    for path in sorted(place.glob("[0-9]_*_*.wav")):
        digit, _, name = path.stem.partition("_")
        speaker = name.rpartition("_")[0]
        samples, rate = _read(path)
        samples = _at_rate(samples, rate, DIGITS_RATE)
        found.setdefault(speaker, {}).setdefault(int(digit), []).append(samples)
    speakers = sorted(found)
    if len(speakers) < 3:
        raise UsageError(
            f"--data-dir {options.data_dir} must have recordings <digit>_<speaker>_<n>.wav of at "
            f"least three speakers. Found: {len(speakers)}"
        )
    held_out = max(options.train_examples // 8, 8)
    parts = {
        "train": (speakers[:-2], options.train_examples),
        "validation": (speakers[-2:-1], held_out),
        "test": (speakers[-1:], held_out),
    }
    random = np.random.default_rng(options.data_seed)
    return {
        part: [
            _sequence(f"{part}-{number}", found[names[number % len(names)]], random)
            for number in range(count)
        ]
        for part, (names, count) in parts.items()
    }


def _sequence(
    name: str, spoken: dict[int, list[np.ndarray]], random: np.random.Generator
) -> Recording:
    said = random.choice(sorted(spoken), random.integers(3, 8)).tolist()
    chosen = [spoken[digit][random.integers(len(spoken[digit]))] for digit in said]
    return _joined(name, said, chosen, random)


def _joined(
    name: str, said: list[int], chosen: list[np.ndarray], random: np.random.Generator
) -> Recording:
    level = np.sqrt(np.mean(np.concatenate(chosen) ** 2)) + 1e-6
    pieces = [np.zeros(random.integers(400, 1600))]
    for one in chosen:
        pieces += [one * random.uniform(0.7, 1.4), np.zeros(random.integers(400, 2400))]
    samples = np.concatenate(pieces)
    samples += level * 10 ** random.uniform(-2.5, -1.5) * random.standard_normal(len(samples))
    samples *= 0.1 * random.uniform(0.5, 1.5) / level
    samples = np.clip(samples, -1.0, 1.0).astype("float32")
    return Recording(name, samples, len(samples), " ".join(DIGITS[digit] for digit in said))


def librispeech(options: argparse.Namespace) -> dict[str, list[Recording]]:
    """LibriSpeech, 100 or 960 hours to train: from its folders, or from tensorflow-datasets."""
    trains = [f"train-{part}" for part in LIBRISPEECH[options.hours]]
    read = _librispeech_tfds if options.data_dir is None else _librispeech_folder
    root = options.data_dir
    if root is not None and (root / "LibriSpeech").is_dir():
        root = root / "LibriSpeech"
    parts = {"train": [one for part in trains for one in read(root, part)]}
    parts["validation"] = read(root, "dev-clean")
    return parts | {part: read(root, part) for part in LIBRISPEECH_TESTS}


def _librispeech_folder(root: Path, part: str) -> list[Recording]:
    if not (root / part).is_dir():
        raise UsageError(f"--data-dir {root} has no folder {part} of LibriSpeech")
    recordings = []
    for table in sorted((root / part).glob("*/*/*.trans.txt")):
        for line in table.read_text(encoding="utf-8").splitlines():
            name, _, text = line.partition(" ")
            path = table.parent / f"{name}.flac"
            recordings.append(Recording(name, path, _length(path, 16000), text))
    return recordings


def _librispeech_tfds(root: None, part: str) -> list[Recording]:
    split = part.replace("-100", "100").replace("-360", "360").replace("-500", "500")
    recordings = []
    for one in load_tfds("librispeech", split.replace("-", "_")):
        samples = np.asarray(one["speech"], "int16")
        recordings.append(
            Recording(one["id"].decode(), samples, len(samples), one["text"].decode())
        )
    return recordings


def folder(options: argparse.Namespace) -> dict[str, list[Recording]]:
    """A folder of audio files with `transcripts.csv`, whose columns are file, text and split.

    Without the column split, a tenth of the recordings is for validation and a tenth for the test.
    """
    table = options.data_dir / "transcripts.csv"
    if not table.is_file():
        raise UsageError(f"--data-dir {options.data_dir} has no transcripts.csv")
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = set(rows[0]) if rows else set()
    if not {"file", "text"} <= columns:
        raise UsageError(f"{table} must have the columns file and text. It has: {sorted(columns)}")
    parts: dict[str, list[Recording]] = {"train": [], "validation": [], "test": []}
    names = [row.get("split") for row in rows]
    if "split" not in columns:
        drawn = np.random.default_rng(options.data_seed).permutation(len(rows))
        tenth = max(len(rows) // 10, 1)
        names = ["train"] * len(rows)
        for place, row in enumerate(drawn[: 2 * tenth]):
            names[row] = "validation" if place < tenth else "test"
    notes: dict[str, int] = {}
    for row, part in zip(rows, names, strict=True):
        if part not in parts:
            raise UsageError(
                f"{table}: split must be one of {', '.join(parts)}. Received: {part!r}"
            )
        path = options.data_dir / row["file"]
        if not path.is_file():
            raise UsageError(f"{table} names {row['file']}, which does not exist")
        samples, rate = _read(path, notes)
        if rate != options.sampling_rate:
            note = f"resampled from {rate} to {options.sampling_rate} samples a second"
            notes[note] = notes.get(note, 0) + 1
        samples = _at_rate(samples, rate, options.sampling_rate)
        stored = np.clip(np.round(samples * 32768), -32768, 32767).astype("int16")
        text = " ".join((row["text"] or "").split())
        parts[part].append(Recording(row["file"], stored, len(stored), text))
    for note, count in notes.items():
        print(f"{count} of {len(rows)} recordings: {note}", flush=True)
    return parts


def _length(path: Path, rate: int) -> int:
    """The number of samples that a file's header names; refuses another rate, and stereo."""
    import soundfile

    try:
        header = soundfile.info(str(path))
    except (soundfile.SoundFileError, OSError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if (header.samplerate, header.channels) != (rate, 1):
        raise UsageError(
            f"{path} has {header.channels} channels at {header.samplerate} samples a second; "
            f"LibriSpeech has one at {rate}. --dataset folder takes others"
        )
    return int(header.frames)


def _read(path: Path, notes: dict[str, int] | None = None) -> tuple[np.ndarray, int]:
    """The samples of a file, (S,) float32, and its rate; the mean of several channels."""
    import soundfile

    try:
        with soundfile.SoundFile(str(path)) as file:
            expected, rate = file.frames, file.samplerate
            samples = file.read(dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}. If it is truncated, copy it again or leave it out"
        ) from error
    if len(samples) < expected or not len(samples):
        raise UsageError(
            f"{path} has {len(samples)} samples of the {expected} that its header names: it is "
            "truncated. Copy it again, or leave it out"
        )
    if samples.shape[1] > 1 and notes is not None:
        note = f"{samples.shape[1]} channels, of which the mean is taken"
        notes[note] = notes.get(note, 0) + 1
    return samples.mean(axis=1), rate


def _resampled(recording: Recording, rate: int, wanted: int) -> Recording:
    """A recording in memory at another rate."""
    samples = _at_rate(Split([recording], [], rate).samples(0), rate, wanted)
    return recording._replace(samples=samples, length=len(samples))


def _at_rate(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    from scipy.signal import resample_poly

    if rate == wanted:
        return samples
    divisor = int(np.gcd(rate, wanted))
    return resample_poly(samples, wanted // divisor, rate // divisor).astype("float32")


def refuse_unalignable(split: Split, fastest: float) -> None:
    """Refuses a transcript that has more tokens than its recording has frames of the encoder.

    `fastest` is the greatest speed of training. CTC also needs a blank between two equal tokens.
    """
    lengths = encoder_frames((split.lengths / fastest).astype("int64"), split.rate)
    for recording, tokens, count in zip(split.recordings, split.tokens, lengths, strict=True):
        needed = len(tokens) + sum(a == b for a, b in itertools.pairwise(tokens))
        if needed > count:
            raise UsageError(
                f"{recording.name}: its transcript of {len(tokens)} tokens is too long for the "
                f"{count} frames that the encoder makes of it. Correct it, leave it out, or give "
                "--tokens with longer units"
            )


def _pieces_of(texts: Sequence[str], size: int) -> Any:
    """Unigram pieces of the training texts, whose first ids are those of this recipe."""
    import sentencepiece

    with tempfile.TemporaryDirectory() as place:
        prefix = Path(place) / "pieces"
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(texts),
                model_prefix=str(prefix),
                vocab_size=size,
                model_type="unigram",
                character_coverage=1.0,
                **{"pad_id": BLANK, "bos_id": START, "eos_id": END, "unk_id": UNKNOWN},
                minloglevel=2,
            )
        except RuntimeError as error:
            raise UsageError(f"--pieces {size}: sentencepiece refuses it: {error}") from error
        return sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
