"""Masks of sequences and grids, and their matrices in float64 as functions of their weights."""

import functools
import math

import keras
import numpy as np
import torch

from keras_graphattn.masks import (
    BlockToeplitz,
    Causal,
    Exponential,
    ExponentialPositions,
    GatedDecay,
    LowRank,
    Mask,
    Product,
    Segments,
    StochasticPositions,
    Toeplitz,
)
from tests import reference_kernel, reference_toeplitz
from tests.numerics import to_numpy

HEADS, FEATURES, WIDTH = 2, 3, 4


class Positive(Mask):
    """A factor with its own path and its own causal form: M[i, j] = a + [i = j]."""

    paths = ("dense", "blockwise", "sum")

    def build(self, input_shape):
        super().build(input_shape)
        self.level = self.add_weight(name="level", shape=(self.num_heads,), initializer="ones")

    def parameters(self):
        return {"level": self.level + 0.0}

    def _rows(self, positions, length, parameters, inputs):
        eye = keras.ops.cast(positions[:, None] == keras.ops.arange(length)[None], "float32")
        return (parameters["level"][:, None, None] + eye)[None]

    def _signal(self, x, path, parameters, inputs):
        return parameters["level"][:, None] * keras.ops.sum(x, axis=1, keepdims=True) + x

    def _causal_signal(self, x, path, parameters, inputs):
        return parameters["level"][:, None] * keras.ops.cumsum(x, axis=1) + x


def random_ids(length, batch=2, seed=0):
    """Runs of very different lengths, with padding inside and at the end, and repeated ids."""
    generator = np.random.default_rng(seed)
    ids = np.full((batch, length), -1, "int32")
    for row in ids:
        start = 0
        while start < length:
            end = start + int(generator.choice([1, 5, 40, 150]))
            row[start:end] = generator.integers(-1, 4)
            start = end
    return ids


def random_log_gates(length, batch=2, seed=0):
    """Logarithms of gates from almost 1 to almost 0."""
    generator = np.random.default_rng(seed)
    return -(10.0 ** generator.uniform(-4, 1, (batch, length, HEADS))).astype("float32")


def signals(length, batch=2, seed=0):
    """Features of queries and of keys, and a signal."""
    generator = np.random.default_rng(seed)
    shape = (batch, length, HEADS)
    query, key = (generator.random((*shape, FEATURES)).astype("float32") for _ in range(2))
    return query, key, generator.standard_normal((*shape, WIDTH)).astype("float32")


# Matrices of shape (B or 1, N or 1, T, T), of weights by name


def causal(n, weights):
    return reference_kernel.causal_matrix(n)


def segments(n, weights):
    return reference_kernel.segment_matrix(torch.tensor(random_ids(n)))


def exponential(n, weights, name=""):
    of = [weights.get(f"{name}log_{kind}") for kind in ("rates", "weights")]
    return reference_kernel.exponential_matrix(n, *of)


def gated(n, weights):
    return reference_kernel.gated_matrix(torch.tensor(random_log_gates(n).astype("float64")))


def toeplitz(n, weights, name="", one_sided=False):
    factors = torch.exp(weights[f"{name}log_factors"])
    if one_sided:
        factors = torch.nn.functional.pad(factors, (n + 2, 0))
    return reference_toeplitz.toeplitz_matrix(factors, (n + 3,))[None, :, :n, :n]


def grid(n, weights, shape, prefix=0, form="offsets"):
    factors = torch.exp(weights["log_factors"])
    if form == "distance":
        axes = [np.abs(np.arange(1 - size, size)) for size in shape]
        factors = factors[:, torch.as_tensor(sum(np.meshgrid(*axes, indexing="ij")))]
    matrix = reference_toeplitz.toeplitz_matrix(factors, shape)
    return reference_toeplitz.with_prefix(matrix, prefix)[None]


def low_rank(n, weights, name="low_rank/"):
    left, right = (torch.exp(weights[f"{name}log_{side}"][:, :n]) for side in ("left", "right"))
    return (left @ right.transpose(1, 2))[None]


def stochastic(n, weights, name="stochastic/"):
    logits = torch.nn.functional.pad(weights[f"{name}gain_logits"], (0, 1))
    gains = torch.softmax(logits, -1)[:, :-1, None, None]
    order = torch.arange(n)
    turns = weights[f"{name}frequencies"][..., None, None] * (order[:, None] - order[None])
    waves = torch.cos(2 * np.pi * turns + weights[f"{name}phases"][..., None, None])
    return 1.0 + (gains * waves).sum(1)[None]


def exponential_positions(n, weights, name=""):
    directions = weights[f"{name}directions"]
    sums = 0.0
    for r in range(directions.shape[-1]):
        sides = []
        for side in ("left", "right"):
            vectors = weights[f"{name}{side}_positions"][:, :n]
            sides.append(
                torch.exp(vectors @ directions[..., r : r + 1] - vectors.pow(2).sum(-1, True) / 2)
            )
        sums = sums + sides[0] * sides[1].transpose(1, 2)
    return (sums / directions.shape[-1])[None]


def positive(n, weights):
    return (weights["positive/level"][:, None, None] + torch.eye(n))[None]


def factor(matrix, name):
    """The matrix of the factor of this name."""
    return functools.partial(matrix, name=name)


def _product(masks, path, *matrices):
    def matrix(n, weights):
        return math.prod(of_factor(n, weights) for of_factor in matrices)

    return lambda n: Product(masks(n)), matrix, path


def ranked(n):
    return LowRank(2, n + 10, name="low_rank")


# name -> a mask for a length, its matrix, and its path for long sequences
SEQUENCES = {
    "causal": (lambda n: Causal(), causal, "chunked"),
    "segments": (lambda n: Segments(), segments, "chunked"),
    "exponential": (lambda n: Exponential(1 + n % 2), exponential, "chunked"),
    "one-sided exponential": (
        lambda n: Exponential(1 + n % 2, causal=True),
        lambda n, w: torch.tril(exponential(n, w)),
        "chunked",
    ),
    "gated": (lambda n: GatedDecay(), gated, "chunked"),
    "packed, gated, exponential": _product(
        lambda n: [GatedDecay(), Segments(), Exponential(2, name="exponential")],
        *("chunked", gated, segments, factor(exponential, "exponential/")),
    ),
    "toeplitz": (lambda n: Toeplitz(n + 3), toeplitz, "fft"),
    "one-sided toeplitz": (
        lambda n: Toeplitz(n + 3, causal=True),
        functools.partial(toeplitz, one_sided=True),
        "fft",
    ),
    "decaying toeplitz": (lambda n: Toeplitz(n + 3, initial_slopes=0.1), toeplitz, "fft"),
    "low rank": (lambda n: LowRank(2, n + 10), factor(low_rank, ""), "low_rank"),
    "exponential positions": (
        lambda n: ExponentialPositions(n + 10, 2, 3, seed=0),
        *(factor(exponential_positions, ""), "low_rank"),
    ),
    "stochastic positions": (
        *(lambda n: StochasticPositions(2, seed=0), factor(stochastic, ""), "low_rank"),
    ),
    "causal segments": _product(lambda n: [Causal(), Segments()], "chunked", causal, segments),
    "packed, causal, exponential": _product(
        lambda n: [Causal(), Segments(), Exponential(name="exponential")],
        *("chunked", causal, segments, factor(exponential, "exponential/")),
    ),
    "two exponentials": _product(
        lambda n: [Exponential(2, name="a"), Exponential(name="b"), Segments()],
        *("chunked", factor(exponential, "a/"), factor(exponential, "b/"), segments),
    ),
    "two of low rank": _product(
        lambda n: [ranked(n), StochasticPositions(2, name="stochastic", seed=0)],
        *("low_rank", low_rank, stochastic),
    ),
    "low rank, causal": _product(lambda n: [ranked(n), Causal()], "chunked", low_rank, causal),
    "toeplitz, causal": _product(
        lambda n: [Toeplitz(n + 3, name="toeplitz"), Causal()],
        *("fft", factor(toeplitz, "toeplitz/"), causal),
    ),
    "toeplitz, segments": _product(
        lambda n: [Toeplitz(n + 3, name="toeplitz"), Segments()],
        *("blockwise", factor(toeplitz, "toeplitz/"), segments),
    ),
    "causal form": _product(
        lambda n: [Causal(), Positive(name="positive")], "sum", positive, causal
    ),
    "low rank and another": _product(
        lambda n: [Positive(name="positive"), ranked(n)], "sum", positive, low_rank
    ),
    "nothing faster": _product(
        lambda n: [Segments(), Positive(name="positive")], "blockwise", segments, positive
    ),
}


def _of_grid(shape, prefix=0, form="offsets"):
    return (
        lambda n: BlockToeplitz(shape, prefix, form),
        lambda n, w: grid(n, w, shape, prefix, form),
        "fft",
    )


GRIDS = {
    "line": _of_grid((7,)),
    "image": _of_grid((5, 7)),
    "image with prefix": _of_grid((6, 5), 2),
    "image by distance": _of_grid((3, 9), 1, "distance"),
    "video": _of_grid((2, 3, 4), 1),
}
CASES = SEQUENCES | GRIDS


def built(mask, length, seed=0):
    """The mask with random weights, and its inputs at a call."""
    mask.build((None, length, HEADS, WIDTH))
    generator = np.random.default_rng(seed)
    for weight in mask.trainable_variables:
        shape = tuple(weight.shape)
        if weight.name in ("log_rates", "log_weights"):
            weight.assign(np.log(generator.uniform(0.001, 2.0, shape)))
        else:
            weight.assign(to_numpy(weight) + 0.3 * generator.standard_normal(shape))
    given = {"segment_ids": random_ids, "log_gates": random_log_gates}
    return mask, {name: given[name](length) for name in mask.inputs_at_call}


def length_of(name, length):
    """The length of a case: of grids it is fixed."""
    return length if name in SEQUENCES else CASES[name][0](0).length


def matrix_of(name, mask, length):
    """The matrix of a case as a function of the mask's trainable weights, in their order."""

    def named(variables):
        return [v.path.split(f"{mask.name}/", 1)[1] for v in variables]

    fixed = mask.non_trainable_variables
    values = (torch.tensor(to_numpy(v)) for v in fixed)
    others = dict(zip(named(fixed), values, strict=True))

    def matrix(*weights):
        known = dict(zip(named(mask.trainable_variables), weights, strict=True)) | others
        return CASES[name][1](length, known).expand(2, HEADS, length, length)

    return matrix


def with_weights(mask, function):
    """A function of arrays and of the mask's weights, to differentiate."""

    def of_weights(*arrays):
        variables = mask.trainable_variables
        count = len(arrays) - len(variables)
        pairs = zip(variables, arrays[count:], strict=True)
        with keras.StatelessScope(state_mapping=list(pairs)):
            return function(*arrays[:count])

    return of_weights
