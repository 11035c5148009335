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
    assert 500 < split.lengths.min() <= split.lengths.max() < 2000
    expressions = [words(split, index) for index in range(100)]
    assert max(evaluate(one)[1] for one in expressions) == 10
    assert max(map(most_arguments, expressions)) == 10
    for kinds in (("[MAX", "[MIN", "[MED", "[SM"), "0123456789"):
        counts = [sum(one.count(kind) for one in expressions) for kind in kinds]
        np.testing.assert_allclose(np.array(counts) / sum(counts), 1 / len(kinds), atol=0.02)
    assert (np.bincount(split.labels, minlength=10) > 5).all()


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
