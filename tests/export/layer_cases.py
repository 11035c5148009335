"""Every public layer with its filters and masks, as branches of one model to export.

A branch is "open" (one graph for all lengths), "open but jax", "fixed" (any length, but each needs
its own signature), or "bound" (its mask has the length `LENGTH`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_graphattn import biases, layers, masks
from keras_graphattn.filters import Jacobi
from keras_graphattn.layers.token_layer import TokenLayer
from tests import reference_topology
from tests.numerics import BACKEND, randomise

LENGTH, CHANNELS, HEADS, SIZE = 16, 6, 2, 4
PARENTS = reference_topology.random_parents(LENGTH, seed=2, cut=0.25)
EDGES = reference_topology.random_edges(LENGTH, 3.0, 1)
EDGES_PER_EXAMPLE = 20
WALKS, WALK_LENGTH = 5, 3


class Case(NamedTuple):
    kind: type
    length: str  # "open", "open but jax", "fixed" or "bound"
    options: Callable[[], dict[str, Any]] = dict
    inputs: tuple[str, ...] = ()  # names of the inputs of the mask
    padded: bool = False
    call: dict[str, Any] = {}  # noqa: RUF012

    @property
    def served(self):
        """Returns how this backend serves a case: "open", "fixed" or "bound"."""
        if self.length == "open but jax":
            return "fixed" if BACKEND == "jax" else "open"
        return self.length


def kernel(length, mask, *inputs, **options):
    """MaskedKernelAttention with a mask, but without a padding mask."""
    return Case(
        layers.MaskedKernelAttention, length, lambda: {"mask": mask(), **options}, tuple(inputs)
    )


def gkat(*arguments, **options):
    """GraphKernelAttention with a mask, on padded series."""
    return kernel(*arguments, **options)._replace(kind=layers.GraphKernelAttention, padded=True)


def along_edges(length, *inputs, **options):
    """EdgeAttention on padded series."""
    return Case(layers.EdgeAttention, length, lambda: dict(options), inputs, True)


def filtered(length, kind, call=None, **options):
    """A layer without a mask object, on padded series."""
    return Case(kind, length, lambda: dict(options), (), True, call or {})


def biased(length, bias, *inputs, **options):
    """GraphFilterAttention with a bias, on padded series."""
    make = lambda: {"bias": bias(), **options}  # noqa: E731
    return Case(layers.GraphFilterAttention, length, make, tuple(inputs), True)


GFA, AGF = layers.GraphFilterAttention, layers.AttentiveGraphFilter
P_LAPLACIAN = layers.PLaplacianAttention
CAUSAL = {"use_causal_mask": True}

CASES = {
    "gfa": filtered("open", GFA),
    "gfa_monomial": filtered("open", GFA, filter="monomial", order=2),
    "gfa_jacobi": filtered("open", GFA, filter=Jacobi(alpha=1.0, beta=-0.5)),
    "gfa_causal": filtered("open", GFA, CAUSAL),
    "gfa_blockwise": filtered("open", GFA, attention_path="blockwise"),
    "gfa_fused": filtered("open", GFA, attention_path="fused"),
    "gfa_RelativePositions": biased("open", biases.RelativePositions),
    "gfa_HopDecay": biased("open but jax", biases.HopDecay, "distances"),
    "gfa_Sum": biased(
        "open but jax",
        lambda: biases.Sum([biases.ShortestPath(), biases.EdgePath(3, 4)]),
        *("distances", "paths"),
        attention_path="blockwise",
    ),
    "differential": filtered("open", layers.DifferentialAttention, CAUSAL),
    "differential_2": filtered(
        "open", layers.DifferentialAttention, version=2, filter="chebyshev", order=2
    ),
    "p_laplacian": filtered("open", P_LAPLACIAN, p=2.5),
    "p_laplacian_heads": filtered("open", P_LAPLACIAN, p=[1.5, 2.0]),
    "agf": filtered("open", AGF),
    "agf_chebyshev": filtered("open", AGF, filter="chebyshev", order=4),
    "agf_causal": filtered("open", AGF, causal=True),
    "delta_rule": filtered("open", layers.GatedDeltaRule),
    "delta_rule_packed": Case(
        layers.GatedDeltaRule, "open", lambda: {"filter": "first_order"}, ("segment_ids",)
    ),
    "high_frequency": filtered("open", layers.ScaledHighFrequencyAttention),
    "contra_norm": filtered("open", layers.ContraNorm, scale=0.3),
    "contra_norm_attention": filtered("open", layers.ContraNormAttention, scale=0.3),
    "mean_pooling": filtered("open", layers.GraphMeanPooling),
    "max_pooling": filtered("open", layers.GraphMaxPooling),
    "sum_pooling": filtered("open", layers.GraphSumPooling),
    "kernel": filtered("open", layers.MaskedKernelAttention, feature_map="favor"),
    "kernel_filtered": filtered("open", layers.MaskedKernelAttention, filter="first_order"),
    "kernel_causal": kernel("open", masks.Causal, filter="first_order"),
    "kernel_exponential": kernel("open", lambda: masks.Exponential(2)),
    "kernel_gated": kernel("open", masks.GatedDecay),
    "kernel_low_rank": kernel("open", lambda: masks.LowRank(2, 40)),
    "kernel_positions": kernel("open", lambda: masks.ExponentialPositions(40, 2, 3, seed=0)),
    "kernel_stochastic": kernel("open", lambda: masks.StochasticPositions(2, seed=0)),
    "kernel_segments": kernel("open", masks.Segments, "segment_ids"),
    "kernel_packed": kernel(
        "open", lambda: masks.Product([masks.Causal(), masks.Segments()]), "segment_ids"
    ),
    "kernel_distances": kernel("open but jax", lambda: masks.DistanceTable(5), "distances"),
    "kernel_entries": kernel("open but jax", masks.Entries, "entries"),
    "kernel_toeplitz": kernel("open", lambda: masks.Toeplitz(40), path="dense"),
    "kernel_toeplitz_auto": kernel("open", lambda: masks.Toeplitz(40)),
    "kernel_toeplitz_rows": kernel("open", lambda: masks.Toeplitz(40), path="blockwise"),
    "kernel_toeplitz_fft": kernel("fixed", lambda: masks.Toeplitz(40), path="fft"),
    "kernel_alibi": kernel("fixed", lambda: masks.Toeplitz.alibi(40), path="fft"),
    "kernel_causal_toeplitz": kernel(
        "fixed", lambda: masks.Product([masks.Causal(), masks.Toeplitz(40)]), path="fft"
    ),
    "kernel_tree_per_example": kernel("open", lambda: masks.Tree(max_depth=40), "parents"),
    "kernel_diffusion_per_example": kernel(
        "open", lambda: masks.GraphDiffusion(operator="normalized_laplacian"), "edges"
    ),
    "kernel_walks_per_example": kernel("open", masks.RandomWalk, "walks"),
    "kernel_grid": kernel("bound", lambda: masks.BlockToeplitz((2, 7), 2), path="dense"),
    "kernel_grid_fft": kernel("bound", lambda: masks.BlockToeplitz((2, 7), 2), path="fft"),
    "kernel_grid_rows": kernel("bound", lambda: masks.BlockToeplitz((2, 7), 2), path="blockwise"),
    "kernel_tree": kernel("bound", lambda: masks.Tree(PARENTS)),
    "kernel_diffusion": kernel("bound", lambda: masks.GraphDiffusion(EDGES, num_nodes=LENGTH)),
    "kernel_hypercube": kernel("bound", lambda: masks.Hypercube(dimension=4)),
    "kernel_walks": kernel("bound", lambda: masks.RandomWalk(EDGES, num_nodes=LENGTH)),
    "kernel_random_features": kernel(
        "bound", lambda: masks.GraphRandomFeatures(EDGES, num_nodes=LENGTH)
    ),
    "edges": along_edges("bound", graph=EDGES, num_nodes=LENGTH, num_virtual_nodes=1),
    "edges_per_example": along_edges(
        "open", "edges", "edge_features", edge_dim=3, expander_degree=4, filter="first_order"
    ),
    "gkat": gkat("bound", lambda: masks.RandomWalk(EDGES, num_nodes=LENGTH)),
    "gkat_walks_per_example": gkat("open", masks.RandomWalk, "walks"),
    "gkat_factored": gkat("open", masks.RandomWalk, "walks", feature_map="favor"),
    "gkat_dynamic_walks": gkat("open", masks.RandomWalk, "walks", dynamic_walks=True),
    "gkat_additive": gkat("open", masks.Exponential, score="additive"),
    "gkat_exponential": gkat("open", masks.Exponential),
}
# The first case of each layer, and further ways to serve. The fast tests run only these.
FIRST = {case.kind: name for name, case in reversed(CASES.items())}
CORE = (*FIRST.values(), "kernel_causal", "kernel_packed", "kernel_toeplitz_fft")
CORE += ("gkat_exponential",)


def shapes_of_inputs(length):
    """Maps the name of each possible input to its (shape without the batch, dtype)."""
    return {
        "series": ((length, CHANNELS), "float32"),
        "padding_mask": ((length,), "bool"),
        "segment_ids": ((length,), "int32"),
        "entries": ((length, length), "float32"),
        "parents": ((length,), "int32"),
        "edges": ((EDGES_PER_EXAMPLE, 2), "int32"),
        "edge_features": ((EDGES_PER_EXAMPLE, 3), "float32"),
        "walks": ((length, WALKS, WALK_LENGTH), "int32"),
        "distances": ((length, length), "int32"),
        "paths": ((length, length, 4), "int32"),
    }


def model_of(names, length):
    """Makes a model with a branch for each case and random weights and coefficients."""
    wanted = {"series"}
    for name in names:
        wanted |= {*CASES[name].inputs, *(["padding_mask"] if CASES[name].padded else [])}
    inputs = {
        name: keras.Input(shape, dtype=dtype, name=name)
        for name, (shape, dtype) in shapes_of_inputs(length).items()
        if name in wanted
    }
    model = keras.Model(inputs, {name: _branch(name, inputs) for name in names})
    randomise(model)
    return model


def _branch(name, inputs):
    case, series = CASES[name], inputs["series"]
    call = dict(case.call)
    if case.inputs:
        takes = "bias_inputs" if "bias" in case.options() else "mask_inputs"
        call[takes] = {key: inputs[key] for key in case.inputs}
    if issubclass(case.kind, TokenLayer):
        return case.kind(name=name, **case.options())(series, mask=inputs["padding_mask"])
    if case.padded:
        call |= dict.fromkeys(("query_mask", "value_mask"), inputs["padding_mask"])
    return case.kind(HEADS, SIZE, name=name, **case.options())(series, **call)


def _edges(generator, batch, length):
    """Random edges; some occur several times."""
    first = generator.integers(0, length, (batch, EDGES_PER_EXAMPLE))
    if length == 1:  # an edge needs two nodes, so there is only padding
        return np.full((batch, EDGES_PER_EXAMPLE, 2), -1)
    steps = generator.integers(1, length, first.shape)
    return np.stack([first, (first + steps) % length], axis=-1)


def batch_for(model, batch, length):
    """Makes random inputs of a model: series padded at their end, sorted segments, graphs."""
    generator = np.random.default_rng(100 * batch + length)
    lengths = generator.integers(1, length + 1, (batch, 1))
    parents = [reference_topology.random_parents(length, seed=i, cut=0.25) for i in range(batch)]
    series = generator.standard_normal((batch, length, CHANNELS))
    series[:, 1:2] = series[:, :1]  # p-LaT has a way of its own for equal tokens
    arrays = {
        "series": series,
        "padding_mask": np.arange(length) < lengths,
        "segment_ids": np.sort(generator.integers(-1, 3, (batch, length)), axis=1),
        "entries": generator.uniform(0.0, 1.0, (batch, length, length)),
        "parents": np.array(parents),
        "edges": (edges := _edges(generator, batch, length)),
        "edge_features": edges.sum(axis=-1, keepdims=True) % [2, 3, 5],  # equal where edges are
        "walks": generator.integers(0, length, (batch, length, WALKS, WALK_LENGTH)),
        "distances": generator.integers(-2, 9, (batch, length, length)),
        "paths": generator.integers(-1, 3, (batch, length, length, 4)),
    }
    types = {name: dtype for name, (_, dtype) in shapes_of_inputs(length).items()}
    return {name: arrays[name].astype(types[name]) for name in model.input}
