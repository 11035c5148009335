"""From probabilities to transcripts: greedy CTC, beam search, and error rates.

`BeamSearch` joins the decoder, CTC's probabilities of prefixes and a language model. The two
networks run on the backend, one token of each hypothesis at a time; all else is NumPy in float64.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from scipy.special import log_softmax, logsumexp

from keras_graphattn.types import Bool, Float, Int, Tensor
from recipes.common.training.runs import averages_of
from recipes.speech_recognition.decoder import TransformerDecoder

HYPOTHESES = 256  # of all utterances that are searched together
ROOM = 32  # tokens that a cache holds at first
SHOWN = 20  # transcripts in the results
Transcripts = tuple[list[str], list[str]]  # what is said, and what is heard
TINY = 1e-290  # below it, float64 loses digits


def greedy_ctc(
    log_probabilities: Float[Tensor, "B T V"], mask: Bool[Tensor, "B T"], blank: int = 0
) -> list[list[int]]:
    """The likeliest token of each frame, without repetitions and then without blanks.

    Args:
        log_probabilities: Numbers of shape (B, T, V), of which only the order counts.
        mask: Booleans of shape (B, T), `False` for padding.
        blank: The id of CTC's blank.

    Returns:
        The ids of each transcript.

    Example:

    >>> from recipes.speech_recognition.search import greedy_ctc
    >>> frames = np.eye(4)[[1, 1, 0, 1, 2, 3]]
    >>> greedy_ctc(frames[None], np.array([[True] * 5 + [False]]))
    [[1, 1, 2]]

    Source: Graves et al., "Connectionist temporal classification", ICML 2006, Sec. 3.2.
    """
    likeliest, mask = np.argmax(_numpy(log_probabilities), axis=-1), _numpy(mask).astype(bool)
    transcripts = []
    for row, real in zip(likeliest, mask, strict=True):
        row = row[real]
        begins = np.append(True, row[1:] != row[:-1])[: len(row)]
        transcripts.append([int(token) for token in row[begins & (row != blank)]])
    return transcripts


class Prefixes(NamedTuple):
    """Hypotheses, as far as CTC has to know them.

    Attributes:
        last: The last token of each, of shape (H,); -1 for a hypothesis without tokens.
        in_token: Log-probabilities that the first t frames say the hypothesis and end with its
            last token, of shape (H, T + 1).
        in_blank: The same of frames that end with a blank.
    """

    last: Int[np.ndarray, " H"]
    in_token: Float[np.ndarray, "H _"]
    in_blank: Float[np.ndarray, "H _"]


class PrefixScores:
    """Log-probabilities by CTC that a transcript begins with a prefix, for many of them at once.

    The probability of a prefix g is the sum over all transcripts that begin with g; that of g and
    the end of the sentence is the probability of the transcript g itself. With n_t(g) and b_t(g)
    the probabilities that the first t frames say g and end with a token or with a blank, and
    f_t(g, c) = b_t(g) if c is the last token of g, else b_t(g) + n_t(g),

        p(g c ...) = sum_t f_(t-1)(g, c) p_t(c)
        n_t(g c)   = (n_(t-1)(g c) + f_(t-1)(g, c)) p_t(c)
        b_t(g c)   = (n_(t-1)(g c) + b_(t-1)(g c)) p_t(blank)

    Args:
        log_probabilities: Numbers of shape (T, V), of the frames of one utterance, no padding.
        blank: The id of CTC's blank, which no transcript has.
        end: The id of the end of a sentence, which CTC itself does not know.

    Example:

    >>> from recipes.speech_recognition.search import PrefixScores
    >>> ctc = PrefixScores(np.log([[0.5, 0.1, 0.4]] * 2), blank=0, end=1)
    >>> empty = ctc.start()
    >>> np.exp(ctc.scores(empty)).round(3).tolist()  # no token at all: 0.5 * 0.5
    [[0.0, 0.25, 0.6]]
    >>> one = ctc.extended(empty, np.array([0]), np.array([2]))
    >>> float(np.exp(ctc.scores(one)).round(3)[0, 1])  # the token in the first, second or both
    0.56

    Source: Watanabe et al., "Hybrid CTC/Attention Architecture for End-to-End Speech Recognition",
    IEEE JSTSP 11(8), 2017, Algorithm 2; Hori et al., arXiv 1706.02737. Ours: the sums over t of
    all continuations are one matrix product.
    """

    def __init__(self, log_probabilities: Float[Tensor, "T V"], *, blank: int, end: int) -> None:
        self.frames = _numpy(log_probabilities).astype("float64")
        self.blank, self.end = blank, end

    def start(self) -> Prefixes:
        """The one hypothesis without tokens."""
        in_blank = np.append(0.0, np.cumsum(self.frames[:, self.blank]))[None]
        return Prefixes(np.array([-1]), np.full_like(in_blank, -np.inf), in_blank)

    def scores(self, prefixes: Prefixes) -> Float[np.ndarray, "H V"]:
        """Log-probabilities of each prefix with each token after it, of shape (H, V)."""
        last, in_token, in_blank = prefixes
        total = np.logaddexp(in_token, in_blank)
        scores = log_product(total[:, :-1], self.frames)
        repeated = np.flatnonzero(last >= 0)
        scores[repeated, last[repeated]] = _log_sum(
            in_blank[repeated, :-1] + self.frames[:, last[repeated]].T
        )
        scores[:, self.blank] = -np.inf
        scores[:, self.end] = total[:, -1]
        return scores

    def extended(
        self, prefixes: Prefixes, parents: Int[np.ndarray, " K"], tokens: Int[np.ndarray, " K"]
    ) -> Prefixes:
        """The hypotheses `parents[i]`, each with `tokens[i]` after it."""
        last, in_token, in_blank = (part[parents] for part in prefixes)
        repeats = (tokens == last)[:, None]
        before = np.where(repeats, in_blank, np.logaddexp(in_token, in_blank))
        own, blank = self.frames[:, tokens], self.frames[:, self.blank]
        new_token, new_blank = (np.full_like(before, -np.inf) for _ in range(2))
        for t in range(len(blank)):
            new_token[:, t + 1] = np.logaddexp(new_token[:, t], before[:, t]) + own[t]
            new_blank[:, t + 1] = np.logaddexp(new_token[:, t], new_blank[:, t]) + blank[t]
        return Prefixes(tokens, new_token, new_blank)


def log_product(
    a: Float[np.ndarray, "H T"], b: Float[np.ndarray, "T V"]
) -> Float[np.ndarray, "H V"]:
    """log(exp(a) exp(b)), the matrix product, for numbers of any size.

    Rows of a and columns of b are scaled to a maximum of 1. Where a sum is too small for float64
    even so, it is formed from logarithms.
    """
    rows, columns = a.max(axis=1, initial=-np.inf), b.max(axis=0, initial=-np.inf)
    rows, columns = (np.where(np.isfinite(x), x, 0.0) for x in (rows, columns))
    sums = np.exp(a - rows[:, None]) @ np.exp(b - columns)
    lost = sums < TINY
    with np.errstate(divide="ignore"):
        result = np.log(sums) + rows[:, None] + columns
    h, v = np.nonzero(lost)
    result[lost] = _log_sum(a[h] + b[:, v].T)
    return result


class Hypothesis(NamedTuple):
    """A transcript as ids, without start and end, and its joint score."""

    tokens: list[int]
    score: float


class BeamSearch:
    """The transcript with the best joint score of decoder, CTC and language model.

    The score of a transcript, with its end, is

        (1 - ctc_weight) log p_decoder + ctc_weight log p_CTC + language_model_weight log p_LM

    A hypothesis that is not at its end has the score of its tokens so far, with CTC's probability
    of the prefix. More tokens never raise this score, because each term is a log-probability. So
    hypotheses that are not better than the best finished one are dropped, and the search ends when
    there are no others. No transcript has more tokens than the utterance has frames.

    Two hypotheses are always kept besides the beam, as long as they can win: the transcript of
    `greedy_ctc`, and the one that takes the best token at each step. So the result is never worse
    than these two.

    Args:
        decoder: The decoder of the recogniser.
        start: The id of the start of a sentence.
        end: The id of its end.
        blank: The id of CTC's blank.
        language_model: A decoder that was built without encoded frames, or `None`.
        beam: Number of hypotheses that are kept at each length.
        ctc_weight: Between 0 and 1. With 0, CTC's probabilities count for nothing but the greedy
            transcript.
        language_model_weight: At least 0.
        temperature: What the logits of decoder and language model are divided by.

    Example:

    >>> from recipes.speech_recognition.decoder import TransformerDecoder
    >>> from recipes.speech_recognition.search import BeamSearch
    >>> search = BeamSearch(TransformerDecoder(1, 2, 8, 16, vocabulary=6), start=1, end=2, beam=4)
    >>> encoded = keras.random.normal((1, 5, 8))
    >>> frames = np.log(np.full((1, 5, 6), 1 / 6))
    >>> found = search(encoded, np.ones((1, 5), bool), frames)
    >>> found[0].score < 0
    True

    Source: Watanabe et al., "Hybrid CTC/Attention Architecture for End-to-End Speech Recognition",
    IEEE JSTSP 11(8), 2017, Eq. 14 and Algorithm 1; with a language model, Hori et al., arXiv
    1706.02737, Eq. 12. The defaults are those of arXiv 2312.04234.
    """

    def __init__(
        self,
        decoder: TransformerDecoder,
        *,
        start: int,
        end: int,
        blank: int = 0,
        language_model: TransformerDecoder | None = None,
        beam: int = 66,
        ctc_weight: float = 0.4,
        language_model_weight: float = 0.6,
        temperature: float = 1.15,
    ) -> None:
        if beam < 1 or not 0 <= ctc_weight <= 1 or language_model_weight < 0 or temperature <= 0:
            raise ValueError(
                "BeamSearch needs beam >= 1, ctc_weight in [0, 1], language_model_weight >= 0 and "
                f"temperature > 0. Received: beam={beam}, ctc_weight={ctc_weight}, "
                f"language_model_weight={language_model_weight}, temperature={temperature}"
            )
        if language_model is not None and language_model.vocabulary != decoder.vocabulary:
            raise ValueError(
                "The language model must have the tokens of the decoder. Received: "
                f"{language_model.vocabulary} tokens, and {decoder.vocabulary} of the decoder. "
                "Train it with the vocabulary of the recogniser."
            )
        self.decoder, self.language_model = decoder, language_model
        self.start, self.end, self.blank = start, end, blank
        self.beam, self.temperature = beam, temperature
        self.ctc_weight, self.language_model_weight = ctc_weight, language_model_weight

    def __call__(
        self,
        encoded: Float[Tensor, "B T _"],
        mask: Bool[Tensor, "B T"],
        log_probabilities: Float[Tensor, "B T V"],
    ) -> list[Hypothesis]:
        """The best transcript of each utterance.

        Args:
            encoded: Encoded frames, of shape (B, T, d).
            mask: Booleans of shape (B, T), `False` for padding.
            log_probabilities: Those of CTC, of shape (B, T, V).
        """
        real, frames = _numpy(mask).astype(bool), _numpy(log_probabilities)
        utterances = [_Utterance(self, one[own]) for one, own in zip(frames, real, strict=True)]
        size = max(1, HYPOTHESES // self.rows)
        with _without_gradients():
            for first in range(0, len(utterances), size):
                part = slice(first, first + size)
                self._search(utterances[part], encoded[part], mask[part])
        return [one.best for one in utterances]

    @property
    def rows(self) -> int:
        """How many hypotheses of an utterance are open at most."""
        return self.beam + 2

    def _search(
        self,
        utterances: "list[_Utterance]",
        encoded: Float[Tensor, "B T _"],
        mask: Bool[Tensor, "B T"],
    ) -> None:
        """Takes some utterances to their ends, one token of all hypotheses at a time."""
        count = len(utterances)
        models = [(1 - self.ctc_weight, _Steps(self.decoder, count, self.rows, encoded, mask))]
        if self.language_model is not None:
            steps = _Steps(self.language_model, count, self.rows)
            models.append((self.language_model_weight, steps))
        while not all(one.is_finished for one in utterances):
            last, parents = zip(*((one.last, one.parents) for one in utterances), strict=True)
            scores = sum(weight * step(last, parents, self.temperature) for weight, step in models)
            for one, own in zip(utterances, scores, strict=True):
                if not one.is_finished:
                    one.advance(own)


class _Utterance:
    """The open hypotheses of one utterance, and the best of those that have ended.

    Args:
        search: The search with its weights.
        frames: CTC's log-probabilities of its frames without padding, of shape (T, V).

    Attributes:
        last: The last token of each open hypothesis, of shape (H,).
        parents: Which of the hypotheses before this token it was, of shape (H,).
    """

    def __init__(self, search: BeamSearch, frames: Float[np.ndarray, "T V"]) -> None:
        self.search = search
        self.ctc = PrefixScores(frames, blank=search.blank, end=search.end)
        (by_ctc,) = greedy_ctc(frames[None], np.ones((1, len(frames))), search.blank)
        self.by_ctc = [token for token in by_ctc if token not in (search.start, search.end)]
        self.best, self.prefixes = Hypothesis([], -np.inf), self.ctc.start()
        self.tokens = np.empty((1, 0), int)  # of each hypothesis
        self.decoded = np.zeros(1)  # the score of each hypothesis without CTC
        self.of_ctc = self.by_steps = 0  # where the two that are always kept are; -1: nowhere
        self.parents, self.last = np.zeros(1, int), np.array([search.start])

    @property
    def is_finished(self) -> bool:
        """Whether no open hypothesis can win."""
        return not len(self.last)

    def advance(self, scores: Float[np.ndarray, "_ V"]) -> None:
        """Goes on by one token, with the scores that decoder and language model give to it.

        Rows behind those of the open hypotheses do not count.
        """
        search, of_ctc, by_steps = self.search, self.of_ctc, self.by_steps
        new = self.decoded[:, None] + scores[: len(self.last)]  # (H, V)
        total = new.copy()
        if search.ctc_weight:
            total += search.ctc_weight * self.ctc.scores(self.prefixes)
        total[:, [search.blank, search.start]] = -np.inf
        ended = int(np.argmax(total[:, search.end]))
        if total[ended, search.end] > self.best.score:
            score = float(total[ended, search.end])
            self.best = Hypothesis(self.tokens[ended].tolist(), score)
        if by_steps >= 0 and np.argmax(total[by_steps]) == search.end:
            by_steps = -1
        total[:, search.end] = -np.inf
        size, flat, length = total.shape[1], total.ravel(), self.tokens.shape[1]
        next_of_ctc = next_by_steps = -1
        kept: list[int] = []
        if length < len(self.ctc.frames):
            kept = np.argpartition(-flat, min(search.beam, flat.size) - 1)[: search.beam].tolist()
            if of_ctc >= 0 and length < len(self.by_ctc):
                next_of_ctc = of_ctc * size + self.by_ctc[length]
            if by_steps >= 0:
                next_by_steps = by_steps * size + int(np.argmax(total[by_steps]))
            more = dict.fromkeys((next_of_ctc, next_by_steps))
            kept += [one for one in more if one >= 0 and one not in kept]
            kept = [one for one in kept if flat[one] > self.best.score]
        self.of_ctc, self.by_steps = (
            kept.index(one) if one in kept else -1 for one in (next_of_ctc, next_by_steps)
        )
        self.parents, self.last = np.divmod(np.array(kept, int), size)
        self.tokens = np.column_stack([self.tokens[self.parents], self.last])
        self.decoded = new[self.parents, self.last]
        if search.ctc_weight:
            self.prefixes = self.ctc.extended(self.prefixes, self.parents, self.last)


class _Steps:
    """The log-probabilities that a decoder gives to the next tokens of all open hypotheses.

    The number of hypotheses in the cache is constant: nothing is compiled again.
    """

    def __init__(
        self,
        decoder: TransformerDecoder,
        utterances: int,
        rows: int,
        encoded: Float[Tensor, "B T _"] | None = None,
        mask: Bool[Tensor, "B T"] | None = None,
    ) -> None:
        self.decoder, self.sizes, self.room, self.index = decoder, (utterances, rows), ROOM, 0
        self.cache = decoder.initial_cache(utterances * rows, ROOM, encoded, mask)

    def __call__(
        self,
        last: Sequence[Int[np.ndarray, " _"]],
        parents: Sequence[Int[np.ndarray, " _"]],
        temperature: float,
    ) -> Float[np.ndarray, "B H V"]:
        """Takes the last token of each hypothesis, and which one it was before that token."""
        utterances, rows = self.sizes
        tokens, order = (np.zeros(self.sizes, "int32") for _ in range(2))
        for which, (own, before) in enumerate(zip(last, parents, strict=True)):
            tokens[which, : len(own)], order[which, : len(own)] = own, before
        order += rows * np.arange(utterances, dtype="int32")[:, None]
        if self.index:
            self.cache = self.decoder.reordered(self.cache, order.ravel())
        if self.index == self.room:
            self.cache = self.decoder.longer(self.cache, self.room)
            self.room *= 2
        logits, self.cache = self.decoder.decode(tokens.reshape(-1, 1), self.cache, self.index)
        self.index += 1
        logits = _numpy(logits).astype("float64").reshape(*self.sizes, -1)
        return log_softmax(logits / temperature, axis=-1)


class ErrorRates(NamedTuple):
    """Edits that make the hypotheses the references, over the words or characters of these."""

    words: float
    characters: float


def error_rates(references: list[str], hypotheses: list[str]) -> ErrorRates:
    """Word and character error rates of all transcripts together, as jiwer defines them."""
    import jiwer

    return ErrorRates(jiwer.wer(references, hypotheses), jiwer.cer(references, hypotheses))


def reported(
    greedy: Mapping[str, Transcripts], searched: Mapping[str, Transcripts]
) -> dict[str, Any]:
    """What a run reports of its tests, by name: error rates, and some transcripts of the first.

    `greedy` has the tests that are not evaluated in training: all but the first one.
    """
    values: dict[str, Any] = {}
    for number, (name, heard) in enumerate(searched.items()):
        suffix = f"_{name.replace('-', '_')}" if number else ""
        if name in greedy:
            values[f"test_word_error_rate{suffix}"] = error_rates(*greedy[name]).words
        rates = error_rates(*heard)
        values[f"test_word_error_rate_beam{suffix}"] = rates.words
        values[f"test_character_error_rate_beam{suffix}"] = rates.characters
        values.setdefault("transcripts", [list(pair) for pair in zip(*heard, strict=True)][:SHOWN])
    return values


class CountsWords(keras.Model):
    """A recogniser whose `evaluate` also counts wrong words in what it hears.

    Where an optimizer has averages of the weights, it hears with them: Keras has put the weights
    back when its own `evaluate` returns.
    """

    def heard(self, batches: Any) -> Transcripts:
        """The transcripts of the real rows of all batches, and what the model hears."""
        raise NotImplementedError

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        values = super().evaluate(x, *args, **kwargs)
        if kwargs.get("return_dict"):
            with averages_of(self):
                rates = error_rates(*self.heard(x))
            values |= {"word_error_rate": rates.words, "character_error_rate": rates.characters}
        return values


def _log_sum(x: Float[np.ndarray, "_ T"]) -> Float[np.ndarray, " _"]:
    return logsumexp(x, axis=1) if x.size else np.full(len(x), -np.inf)


def _numpy(x: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(x))


def _without_gradients() -> contextlib.AbstractContextManager[Any]:
    """PyTorch would keep all steps for a gradient that nobody takes."""
    if keras.backend.backend() != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.no_grad()
