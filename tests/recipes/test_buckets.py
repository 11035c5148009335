import numpy as np

from recipes.common.data.batches import Buckets, bucket_lengths
from recipes.common.data.ragged import Ragged, Split, majority_level


def example(count=50, longest=200):
    random = np.random.default_rng(0)
    lengths = random.integers(5, longest + 1, count)
    tokens = Ragged.of([random.integers(1, 99, size=n).astype("uint8") for n in lengths])
    return Split({"tokens": tokens}, np.arange(count, dtype="int32"))


def test_every_example_counts_once_in_the_least_bucket_that_holds_it():
    split = example()
    lengths = bucket_lengths(split.lengths, 200)
    assert len(lengths) == 4
    assert lengths[-1] == 200
    for seed in (None, 3):
        batches = Buckets(split, lengths, 8, seed)
        assert batches.batches[0][0] != batches.batches[1][0]  # TensorFlow learns sizes there
        seen = []
        for index in range(batches.num_batches):
            inputs, labels, weights = batches[index]
            tokens = inputs["tokens"]
            assert tokens.shape[0] == len(labels) == len(weights) == 8
            assert tokens.shape[1] in lengths
            for row, label in zip(tokens[weights > 0], labels[weights > 0], strict=True):
                own = split.tokens["tokens"][label]
                np.testing.assert_array_equal(row[: len(own)], own)
                assert not row[len(own) :].any()
                assert len(row) == min(one for one in lengths if one >= len(own))
            seen += labels[weights > 0].tolist()
        assert sorted(seen) == list(range(50))
    one_length = Buckets(split, [200], 8)
    assert batches.padding_share() < one_length.padding_share()


def test_order_is_a_function_of_seed_and_epoch():
    def order(seed, epoch):
        batches = Buckets(example(), [96, 200], 4, seed)
        batches.start_epoch(epoch)
        return tuple(tuple(members) for _, members in batches.batches)

    assert order(1, 2) == order(1, 2)
    assert len({order(1, 2), order(1, 3), order(2, 2), order(None, 0)}) == 4
    assert order(None, 0) == order(None, 5)


def test_sequences_of_one_length_make_one_bucket():
    assert bucket_lengths(np.full(10, 1024), 1024) == [1024]


def test_majority_level_is_the_best_constant_answer():
    labels = np.array([0, 0, 0, 1])
    level = majority_level(labels)
    assert level["accuracy"] == 0.75
    losses = [-np.log(np.where(labels == 0, p, 1 - p)).mean() for p in np.linspace(0.01, 0.99, 99)]
    assert min(losses) >= level["cross_entropy"]
    np.testing.assert_allclose(min(losses), level["cross_entropy"], atol=1e-9)
