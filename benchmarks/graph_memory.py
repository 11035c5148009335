"""Peak memory of masks over large graphs, forward and backward, by number of nodes.

    KERAS_BACKEND=torch python benchmarks/graph_memory.py
    KERAS_BACKEND=torch python benchmarks/graph_memory.py --masks random_walk diffusion \
        --lengths 1000 3000 --dense-limit 3000 --times
    KERAS_BACKEND=torch python benchmarks/graph_memory.py --masks edges --heads 4 --columns 16 \
        --key-dim 16 --lengths 3000 10000 100000 --dense-limit 3000 --times
    KERAS_BACKEND=torch python benchmarks/graph_memory.py --masks layers --heads 8 --key-dim 8 \
        --walks 50 --lengths 1000 3000 10000 --dense-limit 3000 --times

A random graph with `--degree` edges at each node. "product" is M x with `--columns` columns,
"attention" is masked kernel attention with ReLU features of width `--key-dim` and values with
`--columns` columns, and "dense product" is M x by the matrix, up to `--dense-limit` nodes. Weights
of the mask get their gradients. "edges" is no mask but softmax attention along the edges, with
`--heads` heads: once, as three applications of A, and dense, with the edges as a mask of pairs.
"layers" is whole layers of nodes with `--columns` features: graph attention (GAT), and GKAT with
`--walks` walks from each node, dense and with random features. The peak is that of a process of
its own, which also draws the walks, less that of a process that does nothing. The exponents are
printed at the end. `--times` adds times, in milliseconds of this machine.
"""

import math

import numpy as np
from measure import (
    Parser,
    add_options,
    at_least,
    make_step,
    median_times,
    memory_of,
    number_in,
    positive,
    run,
    run_child,
    start,
    table,
    write_results,
)

MASKS = ("random_features", "random_walk", "diffusion", "edges", "layers")
OWN_OPTIONS = ("columns", "degree", "walks", "feature_chunk")


def graph_of_degree(count, degree, seed=0):
    """Edges of a random graph, each once."""
    generator = np.random.default_rng(seed)
    edges = np.sort(generator.integers(0, count, (int(count * degree / 2), 2)), axis=1)
    return np.unique(edges[edges[:, 0] < edges[:, 1]], axis=0)


def mask_of(name, count, options):
    from keras_graphattn.masks import GraphDiffusion, GraphRandomFeatures, RandomWalk

    edges = graph_of_degree(count, options.degree)
    if name == "diffusion":
        mask = GraphDiffusion(edges, num_nodes=count, operator="normalized_laplacian")
    elif name == "random_walk":
        mask = RandomWalk(edges, num_nodes=count, num_walks=options.walks, learn_decay=True)
    else:
        mask = GraphRandomFeatures(edges, num_nodes=count, num_walks=options.walks)
    mask.build((1, count, 1, options.columns))
    return mask


def case_of(name, kind, count, options):
    """A function and its arrays; the mask's weights are arguments, so that they get gradients."""
    if name in CASES:
        return CASES[name](kind, count, options)
    import keras
    from keras import ops

    from keras_graphattn.feature_maps import Relu
    from keras_graphattn.operators import KernelOperator

    mask = mask_of(name, count, options)
    path = "dense" if kind == "dense product" else mask.paths[-1]

    def function(x, *others):
        weights = others[-len(mask.trainable_variables) :]
        pairs = zip(mask.trainable_variables, weights, strict=True)
        with keras.StatelessScope(state_mapping=list(pairs)):
            if kind != "attention":
                return mask.apply(x, path)
            query, key = map(Relu(), others[:2])
            chunk = options.feature_chunk
            return KernelOperator(query, key, mask, path=path, feature_chunk=chunk)(x)

    widths = (options.columns, options.key_dim, options.key_dim)
    widths = widths if kind == "attention" else widths[:1]
    signals = [keras.random.normal((1, count, 1, width), seed=i) for i, width in enumerate(widths)]
    return function, [*signals, *map(ops.convert_to_tensor, mask.trainable_variables)]


def edge_case(kind, count, options):
    """Softmax attention along edges, as a function of values, queries and keys, and these."""
    import keras
    from keras import ops

    from keras_graphattn.operators import EdgeOperator, SoftmaxOperator
    from keras_graphattn.operators.softmax import scores_of

    edges, loops = graph_of_degree(count, options.degree), np.arange(count)[:, None]
    edges = np.concatenate([edges, edges[:, ::-1], loops.repeat(2, axis=1)]).astype("int32")
    seen = np.zeros((count, count) if kind.startswith("dense") else (0, 0), bool)
    if seen.size:
        seen[edges[:, 1], edges[:, 0]] = True

    def function(x, query, key):
        if seen.size:
            return SoftmaxOperator(scores_of(query, key), ops.convert_to_tensor(seen))(x)
        operator = EdgeOperator(query, key, ops.convert_to_tensor(edges[None]))
        return operator(operator(operator(x))) if kind == "three hops" else operator(x)

    widths = (options.columns, options.key_dim, options.key_dim)
    shapes = [(1, count, options.heads, width) for width in widths]
    return function, [keras.random.normal(shape, seed=i) for i, shape in enumerate(shapes)]


def layer_case(kind, count, options):
    """A layer as a function of the nodes and its weights, and these."""
    import keras
    from keras import ops

    from keras_graphattn.layers import GraphKernelAttention
    from keras_graphattn.masks import RandomWalk
    from recipes.common.training.graph_layers import GraphAttention

    edges, sizes = graph_of_degree(count, options.degree), (options.heads, options.key_dim)
    nodes = keras.random.normal((1, count, options.columns), seed=0)
    if kind == "GAT":
        layer, given = GraphAttention(*sizes), [ops.convert_to_tensor(edges[None], "int32")]
    else:
        mask = RandomWalk(edges, num_nodes=count, num_walks=options.walks, seed=0)
        features = {"feature_map": "favor", "feature_chunk": options.feature_chunk}
        features = features if kind == FACTORED else {}
        width = options.heads * options.key_dim
        layer = GraphKernelAttention(*sizes, mask=mask, output_shape=width, **features)
        given = []
    layer.build(nodes.shape)
    variables = layer.trainable_variables

    def function(nodes, *weights):
        with keras.StatelessScope(state_mapping=list(zip(variables, weights, strict=True))):
            return layer(nodes, *given)

    return function, [nodes, *map(ops.convert_to_tensor, variables)]


FACTORED = "GKAT, random features"
CASES = {"edges": edge_case, "layers": layer_case}


def kinds_of(name, count, options):
    if name == "layers":
        return ["GAT", FACTORED, *["GKAT, dense"] * (count <= options.dense_limit)]
    if name == "edges":
        return ["once", "three hops", *["dense"] * (count <= options.dense_limit)]
    return ["product", "attention", *["dense product"] * (count <= options.dense_limit)]


def times_of(name, kinds, count, options):
    """Median milliseconds of each kind, taking turns."""
    cases = {kind: case_of(name, kind, count, options) for kind in kinds}
    steps = {
        kind: make_step(*case, backward=True, compiled=options.compile)
        for kind, case in cases.items()
    }
    return median_times(steps, options.repeats, options.seconds).values()


def exponents(rows):
    """The exponents of memory and time between the first and the last length of each case."""
    lines = []
    for name in dict.fromkeys(row["case"] for row in rows):
        points = [row for row in rows if row["case"] == name]
        first, last = points[0], points[-1]
        for column in [column for column in first if column not in ("case", "length")]:
            if last["length"] > first["length"] and first[column] > 0.0:
                growth = math.log(last[column] / first[column])
                exponent = growth / math.log(last["length"] / first["length"])
                lengths = f"from n = {first['length']} to {last['length']}"
                lines.append(f"{name}: {column} ~ n^{exponent:.2f} {lengths}")
    return "\n".join(lines)


def parse(arguments=None):
    parser = Parser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--lengths", type=positive, nargs="+", default=[10_000, 30_000, 100_000])
    add("--masks", nargs="+", default=["random_features"], choices=MASKS)
    add("--columns", type=positive, default=64)
    add("--degree", type=number_in(0.0, math.inf), default=10.0)
    add("--walks", type=positive, default=8, help="from each node; in each of two sets of features")
    add("--feature-chunk", type=positive, default=1)
    add("--dense-limit", type=at_least(0), default=0)
    add("--times", action="store_true", help="measure times too")
    add_options(parser, seconds=10.0, repeats=3)
    parser.set_defaults(heads=1, key_dim=8, memory=True)
    return parser.parse_args(arguments)


def child_case(options):
    """The case `mask|kind`; none where the name is empty."""
    name, _, kind = options.child.partition("|")
    return case_of(name, kind, options.lengths[0], options) if name else None


def main():
    options = parse()
    if options.child is not None:
        run_child(options, child_case(options))
        return
    settings, rows = start(options), []
    for count in options.lengths:
        idle = memory_of(options, "", count, OWN_OPTIONS)
        for name in options.masks:
            kinds = kinds_of(name, count, options)
            new = [{"case": f"{name}, {kind}", "length": count} for kind in kinds]
            for row, kind in zip(new, kinds, strict=True):
                row["peak MiB"] = memory_of(options, f"{name}|{kind}", count, OWN_OPTIONS) - idle
            if options.times:
                for row, time in zip(new, times_of(name, kinds, count, options), strict=True):
                    row["forward and backward ms"] = time
            rows += new
            print(table(new, settings), flush=True)
    print(exponents(rows))
    stem = f"graph_memory-{settings['backend']}-{settings['device']}-{'_'.join(options.masks)}"
    write_results(options.output, stem, settings, rows)


if __name__ == "__main__":
    run(main)
