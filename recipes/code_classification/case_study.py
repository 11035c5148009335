"""The case study: test examples that exactly one of two models gets right, as a page.

Each example has the similarity of its tokens by depth, and how the token that is classified weights
the others: its row of the operator that a layer applies to its values, as `inspect_smoothing` reads
it. Choi et al., arXiv 2312.04234, have such a study of defects.
"""

import argparse
import html
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from matplotlib.ticker import MaxNLocator

from keras_graphattn.analysis import SmoothingReport, inspect_smoothing, plot_similarity
from recipes.code_classification.data import Problem
from recipes.code_classification.model import (
    batches_of,
    encoder_inputs,
    encoder_of,
    is_encoder_decoder,
)
from recipes.common.attentions import label
from recipes.common.output.plot import plt, save
from recipes.common.storage import write_text
from recipes.common.training.measures import outputs
from recipes.common.training.records import Run

EACH = 2  # examples of which one model is right, for each of the two models
POSITIVE, NEGATIVE = "178, 24, 43", "33, 102, 172"  # red, green and blue of a weight
STRONGEST = 0.6  # the opacity of the largest weight: text stays readable on it
STYLE = (
    "body { font-family: sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em } "
    "pre { white-space: pre-wrap; line-height: 1.6 } img { max-width: 100% } "
    "td, th { padding: 0 1em 0 0; text-align: left }"
)


class Reading(NamedTuple):
    """What one model does to one function."""

    report: SmoothingReport
    tokens: list[str]  # of the tower that is classified
    rows: np.ndarray  # (layers, tokens): the weights of the classified token, means over heads
    reason: str  # why there are no rows


def pair_of(runs: Sequence[Run]) -> tuple[Run, Run] | None:
    """The first run, and the first one of another attention with its seed; `None` without any."""
    pairs = itertools.combinations(runs, 2)
    return next((pair for pair in pairs if pair[0].seed == pair[1].seed), None)


def write_cases(
    folder: Path,
    title: str,
    models: dict[str, keras.Model],
    problem: Problem,
    options: argparse.Namespace,
) -> None:
    """Writes `index.html` and its pictures to a new folder, for two models by their attention."""
    test = batches_of(problem, problem.test, options)
    answers = np.stack([outputs(model, test) for model in models.values()])  # (2, N, classes)
    labels = problem.test.labels
    is_right = answers.argmax(axis=-1) == labels
    right = np.take_along_axis(answers, labels[None, :, None].astype(int), axis=-1)[..., 0]
    folder.mkdir()
    page = [_head(title, list(models), is_right)]
    for number, index in chosen(is_right, right):
        values = dict(zip(models, right[:, index], strict=True))
        page.append(_example(list(models)[number], index, values, problem))
        for place in range(problem.functions):
            readings = {name: read(model, problem, index, place) for name, model in models.items()}
            picture = f"example-{index}-{place + 1}.png"
            save(_drawn(readings), folder / picture)
            page.append(f'<p><img src="{picture}" alt="similarity by depth, and weights"></p>')
            page += [_shaded(name, reading) for name, reading in readings.items()]
    write_text(folder / "index.html", "\n".join([*page, "</body></html>\n"]))


def chosen(is_right: np.ndarray, right: np.ndarray) -> Iterator[tuple[int, int]]:
    """The examples of the page, each with the model that is right: 0 or 1.

    `is_right` (2, N) says which answers are right; `right` (2, N) are the probabilities of the
    right class. Those with the largest difference between the two models come first.
    """
    for number in (0, 1):
        ahead = right[number] - right[1 - number]
        found = np.flatnonzero(is_right[number] & ~is_right[1 - number])
        order = np.argsort(-ahead[found], kind="stable")
        yield from ((number, int(index)) for index in found[order][:EACH])


def read(model: keras.Model, problem: Problem, index: int, place: int) -> Reading:
    """What a model does to one function of a test example."""
    functions, encoder = problem.test.functions, encoder_of(model)
    row = problem.test.places[index, place : place + 1]
    tokens = functions.padded(row, int(functions.lengths[row[0]]), problem.test.padding)
    inputs = encoder_inputs(encoder, tokens, problem)
    inputs = {name: np.asarray(one) for name, one in inputs.items()}
    report = inspect_smoothing(encoder, inputs, max_sequences=1, max_tokens=tokens.shape[1])
    layers, seen, classified = report.layers, tokens, 0
    if is_encoder_decoder(encoder):
        layers = [layer for layer in layers if "decoder_layer" in layer.path]
        seen, classified = inputs["decoder_token_ids"], -1
    rows = [x.heads.operator_map[:, classified].mean(axis=0) for x in layers if x.heads]
    reason = next((str(layer.reason) for layer in layers if not layer.heads), "")
    texts = [_text(problem.preprocessor.tokenizer, token) for token in seen[0].tolist()]
    return Reading(report, texts, np.array(rows).reshape(len(rows), len(texts)), reason)


def _text(tokenizer: Any, token: int) -> str:
    """A token as text, with its blank before it."""
    text = tokenizer.detokenize([token])
    return text if isinstance(text, str) else keras.ops.convert_to_numpy(text).item().decode()


def _head(title: str, names: list[str], is_right: np.ndarray) -> str:
    first, second = map(label, names)
    counts = {
        "both": is_right.all(axis=0),
        f"only {first}": is_right[0] & ~is_right[1],
        f"only {second}": is_right[1] & ~is_right[0],
        "neither": ~is_right.any(axis=0),
    }
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{int(which.sum())}</td></tr>"
        for name, which in counts.items()
    )
    title = html.escape(title)
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body><h1>{title}</h1>"
        f"<p>Which model is right, on {is_right.shape[1]} test examples:</p><table>{rows}</table>"
        f"<p>Below are up to {EACH} examples that only one of the two gets right, for each of the "
        "two: those whose probabilities of the right class differ most. They show what a model can "
        "do. They are not typical.</p>"
        "<p>The pictures have the mean cosine of the tokens by depth, and the weights of the token "
        "that is classified in each layer: its row of the operator that the layer applies to its "
        "values, as a mean over heads. In the text, its weights in the last layer are red if "
        "positive, and blue if negative.</p>"
    )


def _example(name: str, index: int, right: dict[str, float], problem: Problem) -> str:
    is_class = problem.classes[problem.test.labels[index]]
    values = ", ".join(f"{label(model)} {value:.3f}" for model, value in right.items())
    return (
        f"<h2>Only {html.escape(label(name))} is right: test example {index}, "
        f"{html.escape(is_class)}</h2><p>Probability of the right class: {html.escape(values)}.</p>"
    )


def _drawn(readings: dict[str, Reading]) -> plt.Figure:
    """Similarity by depth of both models, then the rows of each: a line is a layer."""
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    names = [label(name) for name in readings]
    plot_similarity([one.report for one in readings.values()], labels=names, axis=axes[0])
    highest = max(float(np.abs(one.rows).max(initial=1e-6)) for one in readings.values())
    for axis, name, one in zip(axes[1:], names, readings.values(), strict=True):
        axis.set(title=name, xlabel="token", ylabel="layer")
        if not len(one.rows):
            axis.text(0.5, 0.5, "cannot be read", ha="center", transform=axis.transAxes)
            axis.set(xticks=[], yticks=[])
            continue
        colours = {"cmap": "RdBu_r", "vmin": -highest, "vmax": highest}
        image = axis.imshow(one.rows, aspect="auto", interpolation="nearest", **colours)
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))
        figure.colorbar(image, ax=axis).set_label("weight")
    return figure


def _shaded(name: str, reading: Reading) -> str:
    """The function, its tokens shaded by their weights in the last layer whose row was read."""
    weights = reading.rows[-1] if len(reading.rows) else np.zeros(len(reading.tokens))
    shares = STRONGEST * weights / max(float(np.abs(weights).max()), 1e-9)
    spans = (
        f'<span style="background: rgba({POSITIVE if share > 0 else NEGATIVE}, {abs(share):.2f})">'
        f"{html.escape(text)}</span>"
        for text, share in zip(reading.tokens, shares, strict=True)
    )
    reason = "" if len(reading.rows) else f"<p>No weights: {html.escape(reading.reason)}.</p>"
    return f"<h3>{html.escape(label(name))}</h3>{reason}<pre>{''.join(spans)}</pre>"
