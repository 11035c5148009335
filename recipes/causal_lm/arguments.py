"""The options of `python -m recipes.causal_lm`. Imports no Keras."""

import argparse
import math
from pathlib import Path
from typing import Any

from recipes.causal_lm.corpus import DATASETS
from recipes.causal_lm.tokens import LEVELS
from recipes.common.attentions import (
    RATE,
    add_attention_options,
    refuse_unused,
    settings_of,
)
from recipes.common.command import (
    Parser,
    UsageError,
    at_least,
    names_among,
    number_in,
)
from recipes.common.run_options import PRECISIONS, add_run_options

ATTENTIONS = ("softmax", "gfsa", "p_laplacian", "masked_kernel")

# the option's value where nothing is given: of a small model from scratch, and of a preset
SCRATCH = {
    "layers": 4,
    "d_model": 128,
    "heads": 4,
    "feed_forward": 512,
    "dropout": 0.1,
    "context": 128,
    "batch_size": 16,
    "learning_rate": 1e-3,
    "warm_up": 100,
    "coefficient_learning_rate_multiplier": 10,
}
PRESET = {
    "context": 1024,
    "batch_size": 4,
    "learning_rate": 5e-5,
    "warm_up": 0,
    "coefficient_learning_rate_multiplier": 100,
}
SIZES = ("layers", "d_model", "heads", "feed_forward", "dropout")

# Choi et al., arXiv 2312.04234: GPT-2 with GFSA, (epochs, K) by data set
_GFSA = {"ptb": (15, 7), "wikitext-2": (10, 9), "wikitext-103": (4, 3)}


def published(name: str, dataset: str) -> dict[str, Any]:
    """The options that `--published` stands for.

    `"gfsa"` is arXiv 2312.04234's GPT-2, `"p_laplacian"` arXiv 2311.03235's small model.

    Raises:
        UsageError: If the paper has no run on the data set.
    """
    known = _GFSA if name == "gfsa" else {"wikitext-103": None}
    if dataset not in known:
        raise UsageError(
            f"--published {name} has settings for --dataset {', '.join(known)}; --dataset is "
            f"{dataset}"
        )
    if name == "gfsa":
        epochs, order = _GFSA[dataset]
        return {
            **{"preset": "gpt2_base_en", "attention": ["softmax", "gfsa"], "order": order},
            **{"batch_size": 4, "learning_rate": 5e-5, "warm_up": 0, "context": 1024},
            **{"stride": 1024, "epochs": epochs, "patience": epochs},
            "coefficient_learning_rate_multiplier": 1.0,
        }
    return {
        **{
            "attention": ["softmax", "p_laplacian"],
            "exponents": [1.5] * 4 + [2.5] * 4,
            "tokens": "word",
        },
        **{"layers": 16, "d_model": 128, "heads": 8, "context": 256},
        **{"learning_rate": 2.5e-4, "warm_up": 2000},
    }


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line; raises `UsageError` with one line for what cannot be honoured."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.published:
        parser.set_defaults(**published(options.published, options.dataset))
        options = parser.parse_args(arguments)
    _refuse_unused(options)
    defaults = PRESET if options.preset else SCRATCH
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.tokens is None:
        words = options.dataset in ("ptb", "wikitext-2", "wikitext-103")
        options.tokens = "preset" if options.preset else "word" if words else "byte"
    if options.stride is None:
        options.stride = max(options.context // 2, 1)
    _check_sizes(options)
    if options.output is None:
        options.output = Path("results/causal_lm") / options.dataset
    return options


def settings(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What each attention is converted with."""
    rate = {RATE: getattr(options, RATE)}
    defaults = {
        "gfsa": {"order": 3, **rate},
        "masked_kernel": {"mask": "exponential", "feature_map": "relu", **rate},
    }
    return {name: settings_of(name, options, defaults.get(name, {})) for name in ATTENTIONS}


def departures(options: argparse.Namespace) -> list[str]:
    """In which options a run with `--published` is not the published one; for the table."""
    known = published(options.published, options.dataset) if options.published else {}
    return [
        f"{name} {getattr(options, name)} (published: {value})"
        for name, value in known.items()
        if name != "attention" and getattr(options, name) != value
    ]


def _refuse_unused(options: argparse.Namespace) -> None:
    known = published(options.published, options.dataset) if options.published else {}
    refuse_unused(options, ATTENTIONS, known)
    given = [name for name in SIZES if getattr(options, name) is not None]
    if options.preset and given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{flags}: the sizes of --preset {options.preset} are its own")
    if (options.tokens == "preset") > bool(options.preset):
        raise UsageError("--tokens preset takes the tokenizer of --preset, which is not given")
    if options.preset and options.tokens not in (None, "preset"):
        raise UsageError(
            f"--tokens {options.tokens}: --preset {options.preset} has a tokenizer of its own"
        )


def _check_sizes(options: argparse.Namespace) -> None:
    if options.stride > options.context:
        raise UsageError(
            f"--stride {options.stride} would leave out tokens: at most --context {options.context}"
        )
    if options.preset:
        return
    if options.d_model % options.heads:
        raise UsageError(
            f"--d-model {options.d_model} cannot be shared out over --heads {options.heads}"
        )
    if options.exponents is not None and len(options.exponents) not in (1, options.heads):
        raise UsageError(
            f"--exponents has {len(options.exponents)} numbers; one for all heads, or one for "
            f"each of --heads {options.heads}"
        )


def _parser() -> Parser:
    parser = Parser(
        prog="python -m recipes.causal_lm",
        description="Trains and compares causal language models of different attention; writes "
        "perplexities, curves, samples and the best model. [in brackets: the default]",
    )
    add = parser.add_argument
    add("--dataset", choices=DATASETS, default="text", help="[text]")
    add("--data-dir", type=Path, help="text: a file, or a folder with one; else the files' folder")
    add(
        "--preset",
        help="a KerasHub causal language model: a name such as gpt2_base_en, or a folder",
    )
    add(
        "--published",
        choices=("gfsa", "p_laplacian"),
        help="a paper's settings; options given here take their place, and are named",
    )
    add("--tokens", choices=LEVELS, help="[byte; word for PTB and WikiText; preset with --preset]")
    add(
        "--attention",
        type=names_among(ATTENTIONS),
        default=["softmax", "gfsa"],
        help=f"comma-separated, of {','.join(ATTENTIONS)} [softmax,gfsa]",
    )
    add_run_options(add, "causal_lm/<dataset>")
    add("--prompt", help="what the sample goes on from [the test text's first tokens]")
    add("--sample-tokens", type=at_least(0), default=200, help="tokens of the sample [200]")
    _add_training(parser.add_argument_group("training").add_argument)
    _add_model(parser.add_argument_group("model").add_argument)
    return parser


def _add_training(add: Any) -> None:
    def told(name: str) -> str:
        return f"[{SCRATCH[name]:g}; with --preset {PRESET[name]:g}]"

    add("--epochs", type=at_least(1), default=10, help="at most [10]")
    add("--patience", type=at_least(1), default=3, help="epochs without gain on validation [3]")
    add("--context", type=at_least(2), help=f"tokens of a window {told('context')}")
    add("--stride", type=at_least(1), help="tokens between windows of evaluation [half a context]")
    add("--batch-size", type=at_least(1), help=told("batch_size"))
    above_0 = number_in(0.0, math.inf, open_low=True)
    add("--learning-rate", type=above_0, help=f"the peak {told('learning_rate')}")
    add("--warm-up", type=at_least(0), help=f"steps, before a linear decay {told('warm_up')}")
    add("--precision", choices=PRECISIONS, default="float32", help="[float32]")


def _add_model(add: Any) -> None:
    add("--layers", type=at_least(1), help=f"[{SCRATCH['layers']}]")
    add("--d-model", type=at_least(1), help=f"width of the tokens [{SCRATCH['d_model']}]")
    add("--heads", type=at_least(1), help=f"[{SCRATCH['heads']}]")
    add("--feed-forward", type=at_least(1), help=f"[{SCRATCH['feed_forward']}]")
    add("--dropout", type=number_in(0.0, 1.0), help=f"[{SCRATCH['dropout']}]")
    multiplier = f"{SCRATCH[RATE]:g}; with --preset {PRESET[RATE]:g}"
    add_attention_options(add, ATTENTIONS, {RATE: multiplier, "order": "3"})
