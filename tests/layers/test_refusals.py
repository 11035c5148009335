"""Options that a layer cannot have are refused by its constructor, in words."""

import keras
import numpy as np
import pytest

from keras_graphattn.filters import FirstOrder, Jacobi, Monomial
from keras_graphattn.layers import (
    AttentiveGraphFilter,
    ContraNorm,
    ContraNormAttention,
    EdgeAttention,
    GatedDeltaRule,
    GraphFilterAttention,
    GraphKernelAttention,
    MaskedKernelAttention,
    PLaplacianAttention,
    ScaledHighFrequencyAttention,
)
from keras_graphattn.masks import Causal, GatedDecay, RandomWalk, Segments, Tree
from tests.layers.twins import ALONG_EDGES, EDGES, IN_LAYER, built, tokens, with_a_mask

SAME_LENGTH = "same length"
WALKS, TREE = RandomWalk(), Tree([-1, 0])
TWO_POWERS = FirstOrder(initial_coefficients={"power": [1.0, 2.0]})
REFUSED = {
    GraphFilterAttention: [
        *(
            ({"order": order}, r"`order`.*at least 1.*Received")
            for order in (0, -1, 2.5, "3", True)
        ),
        ({"filter": "fourier"}, r"`filter` must be one of.*'fourier'"),
        ({"filter": 3}, "`filter` must be one of"),
        ({"filter": Monomial, "order": 2}, "`filter` must be one of"),
        ({"filter": Monomial(2), "order": 2}, "`order` may only be given if `filter` is a name"),
        ({"filter": TWO_POWERS}, "one for each of the 4 heads"),
        ({"dropout": 1.5}, "dropout"),
        ({"dropout_on": "values"}, r"`dropout_on` must be one of \['attention', 'filter'\]"),
        ({"attention_path": "sparse"}, "`attention_path` must be one of"),
        ({"attention_path": "blockwise", "dropout": 0.1}, "only attention_path=.dense. forms"),
        ({"attention_path": "fused", "dropout": 0.1}, "only attention_path=.dense. forms"),
        ({"flash_attention": True, "dropout": 0.1}, "Dropout is not supported when flash"),
        ({"flash_attention": True, "attention_path": "dense"}, "flash kernel runs on the fused"),
        ({"block_size": 0}, "`block_size`.*at least 1"),
        ({"block_size": 2.0}, "`block_size`.*at least 1"),
        ({"num_key_value_heads": 3}, "divides `num_heads`"),
        ({"num_key_value_heads": 0}, "divides `num_heads`"),
    ],
    PLaplacianAttention: [
        ({"p": 0.5}, r"`p` must be a number of at least 1.*Received: p=0.5"),
        ({"p": [1.5, 2.5]}, "for each of the 4"),
        ({"p": "1.5"}, "`p` must be a number"),
        ({"p": [1.5, 2.5, float("inf"), 2.0]}, "`p` must be a number"),
        ({"epsilon": 0.0}, "`epsilon` must be a finite number above 0"),
        ({"epsilon": None}, "`epsilon` must be a finite number above 0"),
        ({"diagonal": "keep"}, r"`diagonal` must be one of \['smooth', 'drop'\]"),
        ({"attention_path": "fused"}, "`attention_path` must be one of"),
        ({"attention_path": "blockwise", "dropout": 0.1}, "only attention_path=.dense. forms"),
    ],
    GatedDeltaRule: [
        ({"convolution": 0}, r"`convolution`.*at least 1.*convolution=0"),
        ({"order": 3}, "`order` is an option of a filter"),
        ({"filter": "hermite"}, r"`filter` must be one of.*'hermite'"),
        ({"sliding_window": 3}, "does not support `sliding_window`"),
        ({"flash_attention": True}, "does not run on a flash attention kernel"),
    ],
    AttentiveGraphFilter: [
        ({"order": 0}, r"`order`.*at least 1.*order=0"),
        ({"filter": "hermite"}, r"`filter` must be one of.*'hermite'"),
        ({"filter": "none"}, r"`filter` must be one of.*'none'"),
        ({"filter": Jacobi(4), "order": 3}, "`order` may only be given if `filter` is a name"),
        ({"filter": "ones", "order": 3}, r"has no polynomial. Received: order=3"),
        ({"filter": "singular_values", "learned_constant": True}, "learned_constant=True"),
        ({"vector_activation": "relu"}, "'softmax', 'sigmoid', 'tanh', 'linear'"),
        ({"vector_activation": "tanh", "causal": True}, "causal=True, vector_activation='tanh'"),
        ({"filter": "first_order", "learned_constant": True}, "weight of P_0 of a polynomial"),
        ({"filter": Jacobi(start="high_pass"), "learned_constant": True}, "weight of P_0 is 1"),
        ({"filter": Jacobi(start="band_pass")}, "`start` of a filter of singular values"),
        ({"filter": Jacobi(1, initial_coefficients=[1.0, 0.0])}, "its own weights theta"),
        ({"filter": "first_ordr"}, "Did you mean"),
        ({"filter": "singular_vlues"}, "Did you mean"),
        ({"learned_constant": 1}, "`learned_constant` must be True or False"),
        ({"causal": "yes"}, "`causal` must be True or False"),
        ({"orthogonality_scaling": "sum"}, "`orthogonality_scaling` must be one of"),
        ({"orthogonality_weight": True}, "`orthogonality_weight` must be a finite number"),
        ({"orthogonality_weight": -1}, "`orthogonality_weight`.*at least 0"),
        ({"orthogonality_weight": float("nan")}, "`orthogonality_weight`.*at least 0"),
        ({"attention_axes": 1}, "does not support `attention_axes`"),
        ({"sliding_window": 3}, "does not support `sliding_window`"),
    ],
    MaskedKernelAttention: [
        ({"mask": 3}, "`mask` must be one of"),
        ({"feature_map": "cosine"}, "`feature_map` must be one of"),
        ({"feature_map": lambda x: x}, "must be registered"),
        ({"path": "fft"}, "`path` must be one of"),
        ({"mask": Causal(), "path": "linear"}, "`path` must be one of"),
        ({"mask": Causal(), "feature_chunk": 0}, "`feature_chunk`"),
        ({"feature_chunk": 2}, "`feature_chunk` is an option of attention with a mask"),
        ({"order": 2}, "is an option of a filter"),
        ({"filter": "cubic"}, "`filter` must be one of"),
        ({"sliding_window": 3}, "does not support `sliding_window`"),
    ],
    EdgeAttention: [
        ({"order": 2}, "is an option of a filter"),
        ({"expander_degree": 3}, "`expander_degree` must be even"),
        ({"num_virtual_nodes": -1}, "`num_virtual_nodes` must be an integer of at least 0"),
        ({"self_loops": 1}, "`self_loops` must be True or False"),
        ({"num_nodes": 3}, "`num_nodes` is for a `graph` of edges.*no `graph`"),
        ({"graph": EDGES, "edge_dim": 2}, "`edge_dim` is for features that come with each call"),
        ({"graph": EDGES, "edge_features": [[1.0]]}, "a row for each row of `edges`"),
        ({"graph": [[0, 0]]}, "must join two different nodes"),
        ({"sliding_window": 3}, "does not support `sliding_window`"),
    ],
    GraphKernelAttention: [
        ({"mask": None}, "mask"),
        ({"mask": TREE, "attention_axes": (1,)}, "attention_axes"),
        ({"mask": TREE, "score": "cosine"}, "score"),
        ({"mask": TREE, "feature_map": "favor", "dropout": 0.1}, "dropout"),
        (
            {"mask": TREE, "feature_map": "favor", "score": "additive"},
            "`score` needs the attention matrix",
        ),
        ({"mask": TREE, "feature_map": "relu", "sliding_window": 2}, "sliding_window"),
        ({"mask": TREE, "feature_chunk": 2}, "feature_chunk"),
        ({"mask": TREE, "feature_map": "gaussian"}, "feature_map"),
        ({"mask": TREE, "dynamic_walks": True}, "masks.RandomWalk"),
        ({"mask": WALKS, "dynamic_walks": True, "sliding_window": 2}, "sliding_window"),
        (
            {"mask": WALKS, "dynamic_walks": True, "feature_map": "relu"},
            "`dynamic_walks` needs the attention matrix",
        ),
    ],
}


@pytest.mark.all_cases
@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [(kind, *case) for kind, cases in REFUSED.items() for case in cases],
)
def test_wrong_options(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(4, 3, **options)


@pytest.mark.parametrize("scale", [-0.1, float("nan"), "1"])
def test_wrong_scales_of_contra_norm(scale):
    with pytest.raises(ValueError, match=r"`scale`.*at least 0"):
        ContraNorm(scale)


GFA, P_LAPLACIAN, KERNEL = GraphFilterAttention, PLaplacianAttention, MaskedKernelAttention
AGF, GKAT, DELTA = AttentiveGraphFilter, GraphKernelAttention, GatedDeltaRule
BLOCKWISE = {"attention_path": "blockwise"}
IDS = {"mask_inputs": {"segment_ids": np.zeros((2, 16), int)}}
PAIRS = {"attention_mask": np.ones((16, 16), bool)}
MATRICES = ("return_attention_scores", "return_filter_matrix")
BIAS, SYMBOLIC = np.zeros((16, 16), "float32"), {*MATRICES, "attention_bias", "bias_inputs"}
SEEN, TWO_NAMES = np.ones((2, 16), bool), "`mask` and `query_mask` are two names of one mask"
FEATURES = r"\(batch, length, features\)"
NEVER, KEYS = r"never forms the attention matrix.*Received", r"shape \(B, 1, S\).*Received"
FOLLOWED = {"mask": lambda: RandomWalk(EDGES, num_nodes=16), "dynamic_walks": True}
CALLS = {  # the layer, what its call gets besides tokens, and the words of the error
    "rank": (GFA, {}, {"value": tokens()[0]}, "three dimensions|`value` must have"),
    "mask of one axis": (GFA, {}, {"attention_mask": np.ones(7, bool)}, r"attention_mask.*\(7,\)"),
    "filter, another length": (GFA, {}, {"value": tokens(5)}, r"same length.*cross-attention"),
    "p-Laplacian, another length": (P_LAPLACIAN, {}, {"value": tokens(5)}, SAME_LENGTH),
    "kernel, another length": (KERNEL, {"mask": Causal}, {"value": tokens(5)}, SAME_LENGTH),
    "kernel, another length, later tokens": (
        *(KERNEL, {}, {"value": tokens(5), "use_causal_mask": True}),
        SAME_LENGTH,
    ),
    "kernel, another length, pairs": (
        *(KERNEL, {}, {"value": tokens(5), "attention_mask": np.ones((16, 5), bool)}),
        SAME_LENGTH,
    ),
    **{
        f"{kind.__name__}, {path}, {name}": (kind, {"attention_path": path}, {name: True}, NEVER)
        for kind, path, name in (
            (P_LAPLACIAN, "blockwise", "return_attention_scores"),
            *((GFA, path, name) for path in ("blockwise", "fused") for name in MATRICES),
        )
    },
    **{
        f"{kind.__name__} has no filter of a matrix": (
            *(kind, options, {"return_filter_matrix": True}),
            r"no filter of its attention matrix.*Received",
        )
        for kind, options in (
            *((kind, {}) for kind in (AGF, DELTA, KERNEL, ContraNormAttention)),
            *((GFA, {"filter": None}), (GKAT, {"mask": Causal}), (ALONG_EDGES, IN_LAYER)),
        )
    },
    **{
        f"{kind.__name__} has no scores": (kind, {}, {"attention_bias": BIAS}, "no softmax of sc")
        for kind in (AGF, DELTA, KERNEL)
    },
    "inputs without a bias": (GFA, {}, {"bias_inputs": {"edges": BIAS}}, "this layer has none"),
    "two names of one mask": (GFA, {}, {"mask": SEEN, "query_mask": SEEN}, TWO_NAMES),
    "AGF, later tokens": (AGF, {}, {"use_causal_mask": True}, "is not causal"),
    **{
        f"AGF, pairs {shape}": (AGF, {}, {"attention_mask": np.ones(shape, bool)}, KEYS)
        for shape in ((16, 16), (2, 16, 16), (2, 1, 16, 16))
    },
    "delta rule, pairs": (DELTA, {}, PAIRS, KEYS),
    "delta rule, inputs": (
        DELTA,
        {},
        {"mask_inputs": {"ids": np.zeros((2, 16))}},
        "segment_ids.*R",
    ),
    "AGF, another length": (AGF, {"causal": True}, {"value": tokens(5)}, SAME_LENGTH),
    "dynamic walks, pairs": (GKAT, FOLLOWED, PAIRS, "attention_mask"),
    "gates, pairs": (KERNEL, {"mask": GatedDecay, "path": "dense"}, PAIRS, "hides their tokens"),
    "GKAT, gates, pairs": (GKAT, {"mask": GatedDecay}, PAIRS, "hides their tokens"),
    "gates that are given": (
        *(KERNEL, {"mask": GatedDecay}, {"mask_inputs": {"log_gates": np.zeros((2, 16, 4))}}),
        r"computes \['log_gates'\]",
    ),
    "pairs in chunks": (KERNEL, {"mask": Causal, "path": "chunked"}, PAIRS, "forms the pairs.*Rec"),
    "edges, later tokens": (ALONG_EDGES, IN_LAYER, {"use_causal_mask": True}, "is not causal"),
    "edges, pairs": (ALONG_EDGES, IN_LAYER, PAIRS, r"shape \(B, 1, S\).*Received"),
    "edges, a bias": (
        *(ALONG_EDGES, IN_LAYER, {"attention_bias": np.zeros((16, 16), "float32")}),
        "no matrix of scores.*`attention_bias`.*features",
    ),
    "edges, none given": (ALONG_EDGES, {}, {}, r"needs the tensors \['edges'\] at each call"),
    "edges, another length": (ALONG_EDGES, {"graph": [[0, 1]]}, {}, "has 2 nodes, one for each"),
    "axes, tokens of another shape": (
        *(GFA, {}, {"query_mask": np.ones((2, 16), bool)}, r"`query_mask` must have shape"),
        np.zeros((2, 16, 3, 6), "float32"),
    ),
    "axes, pairs of another size": (
        *(GFA, {"attention_axes": (2,)}, {"attention_mask": np.ones((16, 6), bool)}),
        r"`attention_mask` must broadcast.*\(16, 6\)",
        np.zeros((2, 16, 3, 6), "float32"),
    ),
    "axes, a bias of another rank": (
        *(GFA, {}, {"attention_bias": np.zeros((16, 16), "float32")}),
        r"`attention_bias` must have shape.*attention_bias\.shape=\(16, 16\)",
        np.zeros((2, 16, 3, 6), "float32"),
    ),
    "inputs without a mask": (KERNEL, {}, IDS, "this layer has no mask"),
    "a mask without inputs": (KERNEL, {"mask": Segments}, {}, "segment_ids"),
}


@pytest.mark.slow_on("jax")  # which compiles each layer's first weights
@pytest.mark.all_cases
@pytest.mark.parametrize("name", CALLS)
def test_wrong_calls(name):
    kind, options, call, message, *query = CALLS[name]
    layer = kind(4, 3, **with_a_mask(options))
    if not query:
        layer = built(lambda: layer)
    with pytest.raises(ValueError, match=message):
        layer(*(query or [tokens()]), **call)
    if query or (call and set(call) <= SYMBOLIC):
        with pytest.raises(ValueError, match=message):
            layer(keras.Input((query or [tokens()])[0].shape[1:]), **call)


RANKS = {
    "p-Laplacian": (lambda: P_LAPLACIAN(2, 4), (1, 2, 3, 4), "over one axis|three dimensions"),
    "graph filter": (lambda: GFA(2, 4), (3, 4), "over one axis|three dimensions"),
    "graph filter, fused": (lambda: GFA(2, 4, attention_path="fused"), (1, 2, 3, 6), FEATURES),
    "graph filter, groups": (lambda: GFA(2, 4, num_key_value_heads=1), (1, 2, 3, 6), FEATURES),
    "AGF": (lambda: AGF(2, 4), (1, 2, 3, 4), "one axis"),
    "delta rule": (lambda: DELTA(2, 4), (1, 2, 3, 4), "one axis"),
    "GKAT": (lambda: GKAT(2, 4, mask=TREE), (1, 2, 3, 4), r"attends over one axis.*query\.shape"),
    "ContraNorm's attention": (lambda: ContraNormAttention(2, 4), (1, 2, 3, 4), "over one axis"),
    "graph filter, bias": (lambda: GFA(2, 4, bias="alibi"), (1, 2, 3, 6), "`bias`.*one axis"),
    "AttnScale, bias": (
        *(lambda: ScaledHighFrequencyAttention(2, 4, bias="alibi"), (1, 2, 3, 6)),
        "`bias`.*one axis",
    ),
    "ContraNorm": (ContraNorm, (2, 3), r"`inputs` must have shape \(B, T, d\)"),
}


@pytest.mark.parametrize("name", RANKS)
def test_wrong_ranks(name):
    make, shape, message = RANKS[name]
    with pytest.raises(ValueError, match=message):
        make()(np.zeros(shape, "float32"))
