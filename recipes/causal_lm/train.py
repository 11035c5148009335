"""What a run of this recipe trains, and what is measured of it at its best epoch."""

import argparse
from typing import Any, NamedTuple

import keras
import keras_hub
import numpy as np

from recipes.causal_lm.corpus import Corpus, load
from recipes.causal_lm.metrics import per_word
from recipes.causal_lm.model import build, tokenizer, trainer
from recipes.causal_lm.tokens import Bytes, Pieces, Vocabulary, Words, count_words
from recipes.causal_lm.windows import Windows
from recipes.common.coefficients import coefficient_report
from recipes.common.command import UsageError
from recipes.common.resume import weights_file
from recipes.common.runs import Run, Training, best_run

PROMPT_TOKENS = 16  # of the test text at most, where no prompt is given


class Problem(NamedTuple):
    """A corpus as token numbers; each part begins with the token that nothing predicts."""

    corpus: Corpus
    vocabulary: Vocabulary
    tokens: dict[str, np.ndarray]

    def digest(self) -> str:
        """A fingerprint of all the data."""
        return self.corpus.digest()

    def words(self, part: str) -> int:
        """Number of words of a part, ends of lines among them."""
        return count_words(getattr(self.corpus, part))


def load_problem(options: argparse.Namespace) -> Problem:
    """The corpus that the options ask for, as tokens.

    Raises:
        UsageError: When it cannot be read, is shorter than a window, or too short for the warm-up.
    """
    corpus = load(options.dataset, options.data_dir, raw=options.tokens == "preset")
    vocabulary: Vocabulary
    if options.tokens == "preset":
        vocabulary = Pieces(tokenizer(options))
    else:
        vocabulary = Words(corpus.train) if options.tokens == "word" else Bytes()
    parts = ("train", "validation", "test")
    tokens = {
        part: np.append(np.int32(vocabulary.start), vocabulary.encode(text))
        for part, text in zip(parts, corpus, strict=True)
    }
    for part, numbers in tokens.items():
        if len(numbers) <= options.context:
            raise UsageError(
                f"the {part} text has {len(numbers) - 1:,} tokens, fewer than --context "
                f"{options.context}"
            )
    steps = options.epochs * training_windows(tokens["train"], options).num_batches
    if options.warm_up >= steps:
        raise UsageError(
            f"--warm-up {options.warm_up} is no less than the {steps:,} steps of the whole training"
        )
    return Problem(corpus, vocabulary, tokens)


def training_windows(
    tokens: np.ndarray, options: argparse.Namespace, seed: int | None = None
) -> Windows:
    """Windows side by side over the training text."""
    return Windows(tokens, options.context, options.batch_size, seed=seed)


def prepare(problem: Problem, attention: str, seed: int, options: argparse.Namespace) -> Training:
    """The compiled model and the batches of one attention with one seed."""
    batches = training_windows(problem.tokens["train"], options, seed)
    task = build(attention, problem.vocabulary.size, options)
    model = trainer(task, options, options.epochs * batches.num_batches)
    coefficients = coefficient_report(model)
    validation, test = (
        Windows(problem.tokens[part], options.context, options.batch_size, options.stride)
        for part in ("validation", "test")
    )

    def report() -> dict[str, Any]:
        found = model.evaluate(test, verbose=0, return_dict=True)
        loss = found["cross_entropy"]
        words = per_word(loss, test.num_predictions, problem.words("test"))
        return {
            "test_cross_entropy": loss,
            "test_perplexity": found["perplexity"],
            "test_perplexity_per_word": words,
            "sample": sample(task, problem, options, seed),
            **coefficients(),
        }

    return Training(model, batches, validation, None, report=report)


def prompt_tokens(problem: Problem, options: argparse.Namespace) -> np.ndarray:
    """The tokens that a sample goes on from.

    Raises:
        UsageError: If they leave no room in the context.
    """
    given = problem.tokens["test"][: 1 + min(PROMPT_TOKENS, options.context // 2)]
    if options.prompt is not None:
        given = np.append(given[:1], problem.vocabulary.encode(options.prompt))
    if len(given) >= options.context:
        raise UsageError(
            f"--prompt has {len(given) - 1} tokens: with the one before them they fill --context "
            f"{options.context}"
        )
    return given


def sample(task: keras.Model, problem: Problem, options: argparse.Namespace, seed: int) -> str:
    """The prompt, and what `generate()` makes of it: drawn from the 10 most likely tokens."""
    given = prompt_tokens(problem, options)
    length = min(len(given) + options.sample_tokens, options.context)
    tokens = np.zeros((1, length), "int32")
    tokens[0, : len(given)] = given
    if length == len(given):
        return problem.vocabulary.decode(tokens[0, 1:])
    inputs = {"token_ids": tokens, "padding_mask": np.arange(length)[None] < len(given)}
    task.compile(sampler=keras_hub.samplers.TopKSampler(k=10, seed=seed))
    found = task.generate(inputs, stop_token_ids=None)["token_ids"]
    return problem.vocabulary.decode(keras.ops.convert_to_numpy(found)[0, 1:])


def best_model(runs: list[Run], problem: Problem, options: argparse.Namespace) -> keras.Model:
    """The model of the run best on validation data, at its chosen epoch, not compiled."""
    run = best_run(runs)
    task = build(run.attention, problem.vocabulary.size, options)
    keras.Model(task.input, task.output).load_weights(
        weights_file(run.folder, run.state.best_epoch)
    )
    return task
