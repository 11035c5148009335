import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.common.data.listops import TOKENS, Rules, generate


def evaluate(words):
    """The value and depth of a ListOps expression, by recursion on its words, and what follows."""
    word, *rest = words
    if word.isdigit():
        return int(word), 1, rest
    values, depth = [], 0
    while rest[0] != "]":
        value, below, rest = evaluate(rest)
        values.append(value)
        depth = max(depth, below)
    assert len(values) >= 2
    result = {
        "[MAX": max,
        "[MIN": min,
        "[MED": lambda x: int(np.median(x)),
        "[SM": lambda x: sum(x) % 10,
    }[word](values)
    return result, depth + 1, rest[1:]


def words(split, index):
    return [TOKENS[token] for token in split.tokens["tokens"][index]]


def most_arguments(expression):
    counts, most = [], 0
    for word in expression:
        if word == "]":
            most = max(most, counts.pop())
        elif counts:
            counts[-1] += 1
        if word.startswith("["):
            counts.append(0)
    return most


@settings(max_examples=15, deadline=None)
@given(
    st.builds(
        Rules,
        max_depth=st.integers(3, 8),
        max_arguments=st.integers(3, 10),
        min_length=st.integers(4, 20),
        max_length=st.integers(40, 120),
    ),
    st.integers(0, 2**31),
)
def test_values_lengths_and_depths_follow_the_rules(rules, seed):
    split = generate(200, rules, seed)
    assert len(split) == 200
    assert len({tuple(words(split, index)) for index in range(200)}) == 200
    for index, label in enumerate(split.labels):
        expression = words(split, index)
        value, depth, rest = evaluate(expression)
        assert rest == []
        assert value == label
        assert depth <= rules.max_depth
        assert rules.min_length < len(expression) < rules.max_length
        assert most_arguments(expression) <= rules.max_arguments


def test_published_rules_make_long_deep_trees_of_all_kinds():
    split = generate(300, Rules(), seed=1)
    assert split.lengths.min() > 500
    assert split.lengths.max() < 2000
    depths = [evaluate(words(split, index))[1] for index in range(100)]
    assert max(depths) == 10
    found = [words(split, index) for index in range(100)]
    counts = {op: sum(one.count(op) for one in found) for op in ("[MAX", "[MIN", "[MED", "[SM")}
    shares = np.array(list(counts.values())) / sum(counts.values())
    np.testing.assert_allclose(shares, 0.25, atol=0.02)
    digits = [sum(one.count(str(digit)) for one in found) for digit in range(10)]
    np.testing.assert_allclose(np.array(digits) / sum(digits), 0.1, atol=0.01)
    assert (np.bincount(split.labels, minlength=10) > 5).all()
    assert max(most_arguments(one) for one in found) == 10


def test_a_node_is_an_operator_a_quarter_of_the_time():
    # with two levels, each argument of the root is a digit; with three, an operator at times
    split = generate(400, Rules(3, 10, 2, 200), seed=3)
    inner = operators = 0
    for index in range(400):
        depth = 0
        for word in words(split, index):
            if depth == 1 and word != "]":
                inner += 1
                operators += word.startswith("[")
            depth += word.startswith("[") - (word == "]")
    assert operators / inner == pytest.approx(0.25, abs=0.04)


def test_seed_sets_everything():
    first, same, other = (generate(50, Rules(4, 5, 5, 60), seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.tokens["tokens"].values, same.tokens["tokens"].values)
    np.testing.assert_array_equal(first.labels, same.labels)
    assert not np.array_equal(first.lengths, other.lengths)


def test_more_different_trees_than_there_are():
    with pytest.raises(ValueError, match="different trees"):
        generate(10**6, Rules(2, 2, 3, 5), seed=0)  # 4 operators on two digits
