"""All attentions that the recipes compare: the one place for their names, colours and options.

A recipe reads here the values of `--attention`, the layers of its models, and the names in its
tables and plots. A new attention is one entry here, named in the recipes that have it.
Does not import Keras itself: it must come after the choice of the backend.
"""

import argparse
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

Settings = dict[str, Any]  # of one attention, as numbers and names that go into a file


ORDER = "-order"  # between the name of an attention and one of several orders of its filter


def with_order(attention: str, order: int) -> str:
    """The name of an attention with one of several orders; `compared` takes it apart."""
    return f"{attention}{ORDER}{order}"


class Trial(NamedTuple):
    """The settings of one training: a problem, an attention and a seed."""

    problem: Any  # what the recipe's `data.load` returns
    attention: str
    settings: Settings  # of the attention
    options: argparse.Namespace  # of the command line
    seed: int = 0
    order: int | None = None  # of its filter, where several are compared

    @property
    def name(self) -> str:
        """The name of the attention in tables and files, such as `gfsa` or `gfsa-order5`."""
        return self.attention if self.order is None else with_order(self.attention, self.order)


class Attention(NamedTuple):
    """One attention."""

    name: str  # as `--attention` takes it
    label: str  # in tables and plots
    colour: str  # in plots
    layer: str  # what makes it in a model of a recipe's own, as "module:name"
    convert: str | None = None  # its name in `keras_graphattn.convert`; None: the model's own
    options: tuple[str, ...] = ()  # of the command line, that it has
    filter: str | None = None  # the name of its filter, where `--filter` gives none
    start: Mapping[str, float] | None = None  # of its filter's coefficients; None: the filter's


JACOBI = ("alpha", "beta")  # options of one filter only
FILTER = ("filter", "order", "start", *JACOBI)
RATE = "coefficient_learning_rate_multiplier"
# H = I / 2 + A - P / 2, with P near a power of A: H is 1 where A is 1 (what tokens have in common)
# and 1 / 2 where A is 0 (their differences)
HIGH_PASS = {"identity": 0.5, "linear": 1.0, "power": -0.5}
MASKED_KERNEL = {"mask": "exponential", "feature_map": "relu"}  # its defaults
GFSA = "keras_graphattn.layers:GraphFilterAttention"
KERNEL = "keras_graphattn.layers:MaskedKernelAttention"
GFSA_OPTIONS = (*FILTER, "constant", "trained_coefficients", RATE)
AGF_OPTIONS = (*FILTER, "orthogonality_weight", "learned_constant", "vector_activation", RATE)
ABLATION_OPTIONS = ("orthogonality_weight",)  # of AGF without a polynomial of singular values
KERNEL_OPTIONS = ("feature_map", RATE)

_ALL = (
    Attention("softmax", "softmax", "#999999", "recipes.common.training.layers:softmax"),
    Attention("linear", "linear", "#009e73", "recipes.common.training.layers:linear"),
    Attention("gfsa", "GFSA", "#0072b2", GFSA, "graph_filter", GFSA_OPTIONS, "first_order"),
    Attention(
        *("gfsa_high_pass", "GFSA, high-pass start", "#17becf", GFSA, "graph_filter"),
        *(("order", RATE), "first_order", HIGH_PASS),
    ),
    Attention(
        *("agf", "AGF", "#d55e00", "keras_graphattn.layers:AttentiveGraphFilter"),
        *("attentive_graph_filter", AGF_OPTIONS, "jacobi"),
    ),
    Attention(
        *("agf_ones", "AGF, H_UV", "#f4a582", "keras_graphattn.layers:AttentiveGraphFilter"),
        *("attentive_graph_filter", ABLATION_OPTIONS, "ones"),
    ),
    Attention(
        *("agf_singular_values", "AGF, H_SVD", "#8b3a00"),
        "keras_graphattn.layers:AttentiveGraphFilter",
        *("attentive_graph_filter", ABLATION_OPTIONS, "singular_values"),
    ),
    Attention(
        *("p_laplacian", "p-LaT", "#cc79a7", "keras_graphattn.layers:PLaplacianAttention"),
        *("p_laplacian", ("exponents",)),
    ),
    Attention(
        *("masked_kernel", "masked kernel", "#e69f00", KERNEL, "masked_kernel"),
        ("mask", *KERNEL_OPTIONS),
    ),
    Attention("performer", "performer", "#7f5539", KERNEL, "masked_kernel", ("feature_map",)),
    Attention(
        *("linformer", "Linformer", "#5e3c99", "recipes.common.training.layers:linformer"),
        options=("landmarks",),
    ),
    Attention(
        *("nystromformer", "Nyströmformer", "#e6ab02"),
        "recipes.common.training.layers:nystromformer",
        options=("landmarks", "value_convolution"),
    ),
    Attention("topological", "topological", "#2ca02c", KERNEL, "masked_kernel", KERNEL_OPTIONS),
    Attention(
        *("scaled_high_frequency", "AttnScale", "#bcbd22"),
        *("keras_graphattn.layers:ScaledHighFrequencyAttention", "scaled_high_frequency"),
        options=(RATE,),
    ),
    Attention(
        *("contra_norm", "ContraNorm", "#e377c2", "keras_graphattn.layers:ContraNormAttention"),
        "contra_norm",
    ),
    Attention("differential", "DIFF", "#1b9e77", "keras_graphattn.layers:DifferentialAttention"),
    Attention(
        "differential_2", "DIFF V2", "#66a61e", "keras_graphattn.layers:DifferentialAttention"
    ),
    Attention(
        "gated_decay", "gated decay", "#a6761d", "recipes.common.training.layers:gated_decay"
    ),
    Attention("forgetting", "forgetting", "#7570b3", "recipes.common.training.layers:forgetting"),
    Attention("gated_delta_rule", "delta rule", "#e7298a", "keras_graphattn.layers:GatedDeltaRule"),
    Attention("gcn", "GCN", "#56b4e9", "recipes.common.training.graphs:gcn"),
    Attention("sgc", "SGC", "#8c6bb1", "recipes.common.training.graphs:sgc"),
    Attention(
        *("gat", "GAT", "#b8860b", "recipes.common.training.graphs:gat"),
        options=("coefficient_dropout",),
    ),
    Attention("gin", "GIN", "#4d9221", "recipes.common.training.graphs:gin"),
    Attention(
        *("edges", "edges", "#2f4f4f", "recipes.common.training.graphs:edges"),
        options=(*FILTER, "expander_degree", "num_virtual_nodes", RATE),
    ),
    Attention(
        *("graph_kernel", "GKAT", "#6a3d9a", "recipes.common.training.graphs:graph_kernel"),
        options=("coefficient_dropout",),
    ),
    Attention(
        *("factored_graph_kernel", "GKAT, random features", "#cab2d6"),
        "recipes.common.training.graphs:factored_graph_kernel",
        options=("feature_map",),
    ),
    Attention(
        *("dynamic_graph_kernel", "GKAT, dynamic walks", "#b15928"),
        "recipes.common.training.graphs:dynamic_graph_kernel",
        options=("coefficient_dropout",),
    ),
    Attention(
        *("graph_masked_kernel", "graph-masked kernel", "#8b0000"),
        "recipes.common.training.graphs:graph_masked_kernel",
        options=("feature_map",),
    ),
    Attention(
        *("deep_multisets", "deep multisets", "#c51b7d"),
        "recipes.common.training.graphs:deep_multisets",
    ),
    Attention(
        *("molecular_fingerprint", "molecular fingerprint", "#80b1d3"),
        "recipes.common.training.graphs:molecular_fingerprint",
    ),
)
ATTENTIONS = {attention.name: attention for attention in _ALL}
# Attentions that `convert` does not put into a decoder.
OF_LAYERS = ("differential", "differential_2", "scaled_high_frequency", "contra_norm")
OF_LAYERS += ("forgetting", "gated_decay", "gated_delta_rule")
ABLATIONS = ("agf_ones", "agf_singular_values")  # AGF with g(S) = 1, and with g(S) = S

# For filters and masks of recipes: at 1e-3, Adam moves a coefficient by about 5e-2 in a step. The
# defaults of layers and masks are 10 and 30; the results of the recipes were made with 50.
MULTIPLIER = 50.0
# Names in the report of a run: how far its coefficients have moved, and the mean |w_K|.
DISTANCE, POWER = "coefficient_distance", "mean_absolute_power_coefficient"


class PublishedFilter(NamedTuple):
    """AGF's settings for one task: K, gamma, Jacobi's a and b, whether theta_0 is learned."""

    order: int
    orthogonality_weight: float
    alpha: float
    beta: float
    learned_constant: bool = False

    def defaults(self, *, one_rate: bool) -> dict[str, Settings]:
        """The default options of GFSA, AGF and AGF's ablations.

        Args:
            one_rate: Whether coefficients learn as fast as all other weights, as in the papers.
        """
        rate = 1.0 if one_rate else MULTIPLIER
        ablation = {"orthogonality_weight": self.orthogonality_weight}
        return {
            "gfsa": {"order": 3, RATE: rate},
            "agf": {**self._asdict(), RATE: rate},
            **dict.fromkeys(ABLATIONS, ablation),
        }


# Options of one filter only, with its name.
OF_FILTER = {
    **dict.fromkeys(JACOBI, "jacobi"),
    **dict.fromkeys(("constant", "trained_coefficients"), "first_order"),
}


def option_names() -> list[str]:
    """The names of the options of all attentions."""
    return list(dict.fromkeys(name for one in ATTENTIONS.values() for name in one.options))


def compared(name: str) -> tuple[str, int | None]:
    """The attention of a name in tables, and the order of its filter if it is one of several."""
    parts = re.fullmatch(rf"(.+){ORDER}(\d+)", name)
    return (parts[1], int(parts[2])) if parts else (name, None)


def attention_of(name: str) -> Attention:
    """The attention of a name in tables; with an order, darker the higher it is.

    Raises:
        LookupError: If there is none.
    """
    attention, order = compared(name)
    own = ATTENTIONS[attention]
    if order is None:
        return own
    shade = min(math.log2(order) / 4, 1.0)
    end, share = ("ff", 0.6 - 1.2 * shade) if shade < 0.5 else ("00", 1.2 * shade - 0.6)
    parts = (int(own.colour[at : at + 2], 16) for at in (1, 3, 5))
    mixed = (round((1 - share) * part + share * int(end, 16)) for part in parts)
    colour = "#" + "".join(f"{part:02x}" for part in mixed)
    return own._replace(name=name, label=f"{own.label}, K = {order}", colour=colour)


def given_options(options: argparse.Namespace) -> dict[str, Any]:
    """The options of attentions that are set."""
    values = {name: getattr(options, name, None) for name in option_names()}
    return {name: value for name, value in values.items() if value is not None}


def filter_name(attention: str, options: argparse.Namespace) -> str | None:
    """The name of an attention's filter, if it has one."""
    own = ATTENTIONS[attention]
    asked = getattr(options, "filter", None) if "filter" in own.options else None
    return asked or own.filter


def settings_of(
    attention: str, options: argparse.Namespace, defaults: Mapping[str, Any]
) -> Settings:
    """The settings of an attention; `defaults` are the values of missing options."""
    own, asked = ATTENTIONS[attention], given_options(options)
    if isinstance(asked.get("order"), list):  # each run has one of them
        del asked["order"]
    filter = filter_name(attention, options)
    values = {name: value for name, value in defaults.items() if value is not None}
    if filter != own.filter and not _is_polynomial(filter):
        for name in ("order", "learned_constant"):
            values.pop(name, None)
    values |= {name: asked[name] for name in own.options if name in asked}
    settings: Settings = {}
    if filter is not None:
        names = (name for name in ("order", "start", *OF_FILTER) if name in values)
        own_names = [name for name in names if OF_FILTER.get(name, filter) == filter]
        settings["filter"] = {"name": filter, **{name: values[name] for name in own_names}}
        constant = settings["filter"].pop("constant", None)
        if own.start or constant:
            start = own.start or {"identity": constant}
            settings["filter"]["initial_coefficients"] = dict(start)
        trained = settings["filter"].pop("trained_coefficients", None)
        if trained is not None:
            settings["filter"]["trainable_coefficients"] = trained
    if "exponents" in values:
        p = values["exponents"]
        settings["p"] = p if len(p) > 1 else p[0]
    if "orthogonality_weight" in values:
        settings["orthogonality_weight"] = values["orthogonality_weight"] / options.layers
    apart = {*FILTER, *OF_FILTER, *settings, "exponents"}
    return {**settings, **{name: value for name, value in values.items() if name not in apart}}


def layer_arguments(settings: Mapping[str, Any], *, causal: bool = False) -> dict[str, Any]:
    """The arguments of a layer, or of `convert`, from settings: objects in place of names.

    With `causal`, a mask lets tokens see earlier ones only.

    Raises:
        ValueError: If the filter refuses its settings.
    """
    from keras_graphattn import filters, masks

    arguments = dict(settings)
    if "filter" in arguments:
        values = dict(arguments["filter"])
        name = values.pop("name")
        is_filter = name in filters.FILTERS  # else the name of an ablation of AGF
        arguments["filter"] = filters.FILTERS[name](**values) if is_filter else name
    if "mask" in arguments:
        exponential = arguments["mask"] == "exponential"
        arguments["mask"] = masks.Exponential(causal=causal) if exponential else None
    if "coefficient_dropout" in arguments:
        arguments["dropout"] = arguments.pop("coefficient_dropout")
    return arguments


def label(attention: str) -> str:
    """The name of an attention in tables and plots."""
    return attention_of(attention).label


def _is_polynomial(filter: str | None) -> bool:
    from keras_graphattn.filters import FILTERS, Polynomial

    return filter is not None and issubclass(FILTERS[filter], Polynomial)
