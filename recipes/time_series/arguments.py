"""The options of `python -m recipes.time_series`. Imports no Keras."""

import argparse
import math
from pathlib import Path
from typing import Any, NamedTuple

from recipes.common.command import (
    BACKENDS,
    Parser,
    UsageError,
    at_least,
    names_among,
    number_in,
    seeds,
)

ATTENTIONS = ("softmax", "gfsa", "agf")
GFSA_ORDER = 3


class Published(NamedTuple):
    """AGF's settings for one data set: K, gamma and the Jacobi parameters a and b."""

    order: int
    orthogonality_weight: float
    alpha: float
    beta: float


# Wi et al., arXiv 2505.08516 (IJCAI 2025), the settings of its time-series experiments
PUBLISHED_AGF = {
    "EthanolConcentration": Published(6, 0.1, 1.5, -1.5),
    "FaceDetection": Published(9, 0.1, 2.0, 0.5),
    "Handwriting": Published(3, 0.01, 1.0, 0.2),
    "Heartbeat": Published(6, 0.01, -0.5, -0.5),
    "JapaneseVowels": Published(4, 0.01, 0.0, 0.0),
    "PEMS-SF": Published(5, 0.1, 1.5, 2.0),
    "SelfRegulationSCP1": Published(9, 0.1, 1.5, 2.0),
    "SelfRegulationSCP2": Published(7, 0.1, 2.0, 1.5),
    "SpokenArabicDigits": Published(4, 0.1, 1.0, 0.0),
    "UWaveGestureLibrary": Published(10, 0.1, 2.0, 1.5),
}
ELSEWHERE = Published(4, 0.01, 0.0, 0.0)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line; raises `UsageError` with one line for what cannot be honoured."""
    options = _parser().parse_args(arguments)
    _refuse_unused_filter_options(options)
    if options.output is None:
        options.output = Path("results/time_series") / options.dataset
    return options


def filter_settings(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The filter's arguments for each attention: those given, else the published ones."""
    published = PUBLISHED_AGF.get(options.dataset, ELSEWHERE)
    basis = options.basis or "jacobi"
    jacobi = basis == "jacobi"
    return {
        "softmax": {},
        "gfsa": {"order": _first(options.order, GFSA_ORDER)},
        "agf": {
            "order": _first(options.order, published.order),
            "basis": basis,
            "alpha": _first(options.alpha, published.alpha if jacobi else None),
            "beta": _first(options.beta, published.beta if jacobi else None),
            "orthogonality_weight": _first(
                options.orthogonality_weight, published.orthogonality_weight
            )
            / options.layers,
        },
    }


def _parser() -> Parser:
    parser = Parser(
        prog="python -m recipes.time_series",
        description="Trains and compares attention layers on time series of the "
        "UEA archive; writes a table, curves and the best model for serving.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--dataset", default="JapaneseVowels", help="a data set of the UEA archive")
    add("--data-dir", type=Path, help="folder with NAME_TRAIN.ts and NAME_TEST.ts")
    add(
        "--attention",
        type=names_among(ATTENTIONS),
        default=["softmax", "gfsa", "agf"],
        help="comma-separated",
    )
    add("--seeds", type=seeds, default=[0], help="comma-separated; one training for each")
    add("--output", type=Path, help="folder to write to [results/time_series/<dataset>]")
    add("--overwrite", action="store_true", help="begin anew where --output has a run")
    add("--backend", choices=BACKENDS, help="else KERAS_BACKEND, else Keras' own choice")
    add("--distribute", action="store_true", help="split batches over all devices (jax)")
    add("--tensorboard", action="store_true", help="write TensorBoard logs as well")
    add("--skip-saved-model", action="store_true", help="write no SavedModel (TensorFlow)")
    add("--verbose", type=int, choices=(0, 1, 2), default=1, help="Keras' progress bar")
    _add_training(parser.add_argument_group("training").add_argument)
    _add_model(parser.add_argument_group("model").add_argument)
    return parser


def _add_training(add: Any) -> None:
    add("--epochs", type=at_least(1), default=15, help="at most")
    add("--patience", type=at_least(1), default=8, help="epochs without gain on validation data")
    add("--batch-size", type=at_least(1), default=16)
    add("--learning-rate", type=number_in(0.0, math.inf, open_low=True), default=1e-3)
    add("--validation-fraction", type=number_in(0.0, 1.0, open_low=True), default=0.2)
    add("--precision", choices=("float32", "mixed_bfloat16", "mixed_float16"), default="float32")


def _add_model(add: Any) -> None:
    add("--layers", type=at_least(1), default=2)
    add("--d-model", type=at_least(1), default=512, help="width of the tokens")
    add("--heads", type=at_least(1), default=8)
    add("--key-dim", type=at_least(1), default=64, help="width of each head")
    add("--feed-forward", type=at_least(1), default=256)
    add("--dropout", type=number_in(0.0, 1.0), default=0.3)
    add("--order", type=at_least(1), help="degree K of gfsa and agf [3; agf: as published]")
    add(
        "--basis",
        choices=("jacobi", "legendre", "chebyshev", "monomial"),
        help="agf's polynomials [jacobi]",
    )
    add("--alpha", type=float, help="agf's Jacobi parameter a [as published]")
    add("--beta", type=float, help="agf's Jacobi parameter b [as published]")
    add(
        "--orthogonality-weight",
        type=number_in(0.0, math.inf),
        help="agf's gamma, shared out over the layers [as published]",
    )


def _refuse_unused_filter_options(options: argparse.Namespace) -> None:
    users = {
        "order": {"gfsa", "agf"},
        "basis": {"agf"},
        "alpha": {"agf"},
        "beta": {"agf"},
        "orthogonality_weight": {"agf"},
    }
    for name, attentions in users.items():
        if getattr(options, name) is not None and not attentions & set(options.attention):
            raise UsageError(
                f"--{name.replace('_', '-')} is an option of {' and '.join(sorted(attentions))} "
                f"attention; --attention is {','.join(options.attention)}"
            )


def _first(given: Any, default: Any) -> Any:
    return default if given is None else given
