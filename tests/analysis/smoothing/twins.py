"""The naive twins of the figures: double loops and explicit waves, in float64."""

import numpy as np


def cosine(tokens):
    cosines = [
        a @ b / (np.linalg.norm(a) * np.linalg.norm(b))
        for i, a in enumerate(tokens)
        for j, b in enumerate(tokens)
        if i != j
    ]
    return np.mean(cosines)


def dc_share(tokens):
    average = np.ones((len(tokens), len(tokens))) / len(tokens)
    return np.linalg.norm(average @ tokens) ** 2 / np.linalg.norm(tokens) ** 2


def effective_rank(tokens):
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(tokens.T @ tokens), 0.0))
    shares = [value / values.sum() for value in values if value > 1e-12]
    return np.exp(-sum(share * np.log(share) for share in shares))


def fourier(matrix):
    """The length of M f for each wave f, one at a time."""
    n = len(matrix)
    gains = []
    for k in range(n // 2 + 1):
        wave = np.array([np.exp(2j * np.pi * k * t / n) for t in range(n)]) / np.sqrt(n)
        gains.append(np.sqrt(sum(abs(row @ wave) ** 2 for row in matrix)))
    return np.array(gains)


def heads(matrices, measure):
    """A figure of each head, averaged over sequences: matrices is a list of (N, n, n)."""
    figures = [[measure(np.asarray(head, "float64")) for head in matrix] for matrix in matrices]
    return np.mean(figures, axis=0)
