"""ListOps: nested lists of digits under MAX, MIN, MED and SUM_MOD; generated.

    [MAX 2 9 [MIN 4 7 ] 0 ]   ->   9

The generator's rules are the published ones: a node is an operator with probability 1/4, else a
digit, and at the greatest depth a digit always; an operator is one of four, with 2 to
`max_arguments` arguments; trees are kept whose length, operators, digits and closing brackets
counted, lies strictly between the bounds; no tree is kept twice. MED is the median, rounded down
for an even number of arguments; SUM_MOD is the sum modulo 10.

Trees grow level by level, thousands at a time. A node's arguments lie side by side in the next
level, so values and lengths are reductions over runs, from the last level up, and places in the
sequence are sums over runs, from the first level down.

Source: Nangia and Bowman, arXiv 1804.06028; Tay et al., "Long Range Arena", arXiv 2011.04006.
Unlike the published pipeline, whose tokenizer loses them, closing brackets are tokens here.
"""

import hashlib
from typing import NamedTuple

import numpy as np

from recipes.common.data.ragged import Ragged, Split

OPERATORS = ("[MAX", "[MIN", "[MED", "[SM")
TOKENS = (None, *map(str, range(10)), *OPERATORS, "]")  # 0 is padding
FIRST_DIGIT, FIRST_OPERATOR, END = 1, 11, 15
OPERATOR_PROBABILITY = 0.25


class Rules(NamedTuple):
    """The rules for the trees. Depth counts nodes from the root to a digit, both included."""

    max_depth: int = 10
    max_arguments: int = 10
    min_length: int = 500  # both bounds are excluded
    max_length: int = 2000


class _Level(NamedTuple):
    """The nodes of one depth, tree by tree; an operator's arguments lie in the next level."""

    tree: np.ndarray  # which tree each node belongs to, ascending
    digit: np.ndarray  # its digit, where it has no arguments
    operator: np.ndarray  # its operator's number, where it has
    arguments: np.ndarray  # number of arguments; 0 for a digit


def generate(count: int, rules: Rules, seed: int) -> Split:
    """Makes `count` different examples, as numbers into `TOKENS`, with labels 0 to 9.

    Raises `ValueError` if the rules allow fewer different trees.
    """
    random = np.random.default_rng(seed)
    sequences: list[np.ndarray] = []
    labels: list[int] = []
    seen: set[bytes] = set()
    idle = 0
    while len(sequences) < count:
        before = len(sequences)
        tokens, values = _grow(random, 20_000, rules)
        for index, value in enumerate(values):
            sequence = tokens[index]
            key = hashlib.blake2b(sequence.tobytes(), digest_size=16).digest()
            if key not in seen and len(sequences) < count:
                seen.add(key)
                sequences.append(sequence)
                labels.append(int(value))
        idle = 0 if len(sequences) > before else idle + 1
        if idle == 50:
            raise ValueError(
                f"only {len(sequences)} different trees found under {rules}, not {count}: "
                "widen the lengths, or ask for fewer examples"
            )
    return Split({"tokens": Ragged.of(sequences)}, np.array(labels, "int32"))


def _grow(random: np.random.Generator, trees: int, rules: Rules) -> tuple[Ragged, np.ndarray]:
    """Grows `trees` trees; returns the tokens and values of those that the rules accept."""
    levels = _levels(random, trees, rules)
    lengths = _up(levels, _lengths)
    sizes = lengths[0]
    accepted = (sizes > rules.min_length) & (sizes < rules.max_length)
    levels = [_Level(*(part[accepted[level.tree]] for part in level)) for level in levels]
    numbers = np.cumsum(accepted) - 1
    levels = [level._replace(tree=numbers[level.tree]) for level in levels if len(level.tree)]
    if not levels:
        return Ragged.of([]), np.zeros(0, "int32")
    return _serialise(levels), _up(levels, _values)[0]


def _levels(random: np.random.Generator, trees: int, rules: Rules) -> list[_Level]:
    levels = []
    tree = np.arange(trees)
    for depth in range(1, rules.max_depth + 1):
        operator = random.random(len(tree)) < OPERATOR_PROBABILITY
        if depth == rules.max_depth:
            operator[:] = False
        elif depth == 1 and rules.min_length >= 1:
            operator[:] = True  # a single digit, of length 1, would be refused
        arguments = np.where(operator, random.integers(2, rules.max_arguments + 1, len(tree)), 0)
        levels.append(
            _Level(
                tree,
                random.integers(0, 10, len(tree)),
                random.integers(0, len(OPERATORS), len(tree)),
                arguments,
            )
        )
        tree = np.repeat(tree, arguments)
        if not len(tree):
            break
    return levels


def _up(levels: list[_Level], combine) -> list[np.ndarray]:
    """For each level, from the last one up, `combine` of each node and its arguments."""
    results: list[np.ndarray] = [np.zeros(0, "int64")]
    for level in reversed(levels):
        results.insert(0, combine(level, results[0]))
    return results[:-1]


def _lengths(level: _Level, below: np.ndarray) -> np.ndarray:
    """A digit is one token; an operator adds two to its arguments, with its closing bracket."""
    result = np.ones(len(level.tree), "int64")
    inner = level.arguments > 0
    if inner.any():
        result[inner] = 2 + np.add.reduceat(below, _starts(level.arguments[inner]))
    return result


def _values(level: _Level, below: np.ndarray) -> np.ndarray:
    result = level.digit.astype("int64")
    inner = level.arguments > 0
    if not inner.any():
        return result
    arguments = level.arguments[inner]
    starts = _starts(arguments)
    parents = np.repeat(np.arange(len(arguments)), arguments)
    ordered = below[np.lexsort((below, parents))]
    middle = ordered[starts + (arguments - 1) // 2] + ordered[starts + arguments // 2]
    choices = [
        ordered[starts + arguments - 1],
        ordered[starts],
        middle // 2,
        np.add.reduceat(below, starts) % 10,
    ]
    result[inner] = np.choose(level.operator[inner], choices)
    return result


def _serialise(levels: list[_Level]) -> Ragged:
    """The trees as tokens, each operator before its arguments and a bracket after them."""
    lengths = _up(levels, _lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths[0])])
    tokens = np.zeros(offsets[-1], "uint8")
    places = offsets[:-1]
    for level, length, below in zip(levels, lengths, [*lengths[1:], None], strict=True):
        inner = level.arguments > 0
        tokens[places] = np.where(inner, FIRST_OPERATOR + level.operator, FIRST_DIGIT + level.digit)
        if not inner.any():
            break
        tokens[places[inner] + length[inner] - 1] = END
        before = np.cumsum(below) - below  # tokens of the level's nodes before each
        before -= np.repeat(before[_starts(level.arguments[inner])], level.arguments[inner])
        places = np.repeat(places[inner] + 1, level.arguments[inner]) + before
    return Ragged(tokens, offsets)


def _starts(counts: np.ndarray) -> np.ndarray:
    return np.cumsum(counts) - counts
