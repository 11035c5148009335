"""T5's bias of positions as its paper describes it: one learned number for a bucket of distances.

Half of the buckets are for one distance each; the others grow up to the distance 128. Without
causality, half of all buckets are for later tokens.
"""

import math

import torch

BUCKETS = 32
FARTHEST = 128


def bucket(ahead, causal, buckets=BUCKETS, farthest=FARTHEST):
    """The bucket of a key that is `ahead` tokens after the query."""
    first, distance = 0, max(-ahead, 0)
    if not causal:
        buckets = buckets // 2
        first, distance = (buckets if ahead > 0 else 0), abs(ahead)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    grown = math.log(distance / exact) / math.log(farthest / exact) * (buckets - exact)
    return first + min(exact + int(grown), buckets - 1)


def t5_bias(embeddings, length, causal):
    """The bias (N, T, T) from the numbers of the buckets, (32, N)."""
    indices = [[bucket(key - query, causal) for key in range(length)] for query in range(length)]
    return embeddings[torch.tensor(indices)].permute(2, 0, 1)
