"""Speed of tree and graph masks against the dense mask and scipy, by number of nodes.

    KERAS_BACKEND=jax python benchmarks/tree_and_graph_masks.py
    KERAS_BACKEND=torch python benchmarks/tree_and_graph_masks.py --kind trees --lengths 100000
    KERAS_BACKEND=jax python benchmarks/tree_and_graph_masks.py --auto --backward --lengths 1000000

M x with `--columns` columns, forward, and with `--backward` also forward and backward, gradients of
the mask's weights included. Cases of one topology take turns. For trees each path as a multiple of
the fastest, and which one "auto" takes; for graphs the series, a Chebyshev loop of scipy CSR
products with as many terms, and with `--expm` scipy's `expm_multiply`; for both, where they are
small enough, the dense mask, M formed beforehand.
"""

import math
import time

import numpy as np
from measure import (
    Parser,
    add_output,
    at_least,
    check_folder,
    device_name,
    keep_pages,
    make_step,
    median_times,
    positive,
    run,
    table,
    write_results,
)

SCAN_LIMIT = 2000  # levels; beyond it an interpreted loop (torch, eager) is hopeless


def tree_of_kind(kind, count, seed=0):
    """Parents of a path, star, balanced (binary), random recursive, caterpillar or deep tree."""
    nodes, generator = np.arange(count), np.random.default_rng(seed)
    if kind == "path":
        return nodes - 1
    if kind == "caterpillar":  # a path of half the nodes, a leaf at each of them
        spine = count - count // 2
        return np.where(nodes < spine, nodes - 1, nodes - spine)
    if kind == "star":
        return np.where(nodes > 0, 0, -1)
    if kind == "balanced":
        return np.where(nodes > 0, (nodes - 1) // 2, -1)
    reach = nodes if kind == "random" else np.minimum(nodes, 20)
    back = np.floor(generator.random(count) * np.maximum(reach, 1)).astype("int64")
    return np.where(nodes > 0, nodes - 1 - back, -1)


def graph_of_degree(count, degree=6.0, seed=0):
    """Edges of a random graph, each once."""
    generator = np.random.default_rng(seed)
    edges = np.sort(generator.integers(0, count, (int(count * degree / 2), 2)), axis=1)
    return np.unique(edges[edges[:, 0] < edges[:, 1]], axis=0)


def mask_steps(mask, path, x, options):
    """Steps of M x; the mask's weights are arguments, so that nothing of them is folded away."""
    import keras
    from keras import ops

    if not mask.built:
        mask.build((1, x.shape[1], 1, options.columns))
    weights = [ops.convert_to_tensor(w) for w in mask.trainable_variables]

    def function(x, *weights):
        pairs = zip(mask.trainable_variables, weights, strict=True)
        with keras.StatelessScope(state_mapping=list(pairs)):
            return mask.apply(x, path)

    return both_steps(function, [x, *weights], options)


def dense_steps(mask, x, options):
    from keras import ops

    if not mask.built:
        mask.build((1, x.shape[1], 1, options.columns))
    matrix = ops.convert_to_tensor(ops.convert_to_numpy(mask.dense()))
    return both_steps(lambda x: ops.einsum("bnts,bsnd->btnd", matrix, x), [x], options)


def both_steps(function, arrays, options):
    """The forward step and, if it is asked for, the step with gradients."""
    return [
        make_step(function, arrays, backward=backward, compiled=options.compile)
        for backward in ([False, True] if options.backward else [False])
    ]


def medians_of(steps, options):
    """Median milliseconds of each case: forward and, where it was timed, with gradients."""
    flat = {(name, k): step for name, pair in steps.items() for k, step in enumerate(pair)}
    medians = median_times(flat, options.repeats, options.seconds)
    return {name: [medians.get((name, k)) for k in range(2)] for name in steps}


def row(case, count, times, best, chosen, prepared, options):
    row = {"case": case, "length": count, "ms": times[0], "to best": times[0] / best}
    if options.backward:
        row["with backward ms"] = math.nan if times[1] is None else times[1]
    return row | {"chosen": chosen, "topology s": prepared}


def signal(count, options):
    from keras import ops

    values = np.random.default_rng(0).standard_normal((1, count, 1, options.columns))
    return ops.convert_to_tensor(values.astype("float32"))


def tree_rows(count, kind, function, options):
    import keras

    from keras_graphattn.masks import Tree

    start = time.perf_counter()
    mask = Tree(tree_of_kind(kind, count), function=function)
    x = signal(count, options)
    mask.build((1, count, 1, options.columns))
    paths = [path for path in mask.paths if path != "dense"]
    height = mask._forest.height
    compiled_loop = keras.backend.backend() == "jax" or options.compile == "xla"
    if height > 250 and "levels" in paths:
        paths.remove("levels")
    padded = (height + 1) * mask._forest.widest
    if "scan" in paths and (padded > 8 * count or (height > SCAN_LIMIT and not compiled_loop)):
        paths.remove("scan")
    if "depths" in paths and mask.max_distance > 300:
        paths.remove("depths")
    chosen = chosen_path(mask, options)
    paths = [chosen] if options.auto else paths
    steps = {path: mask_steps(mask, path, x, options) for path in paths}
    if count <= options.dense_limit:
        steps["dense"] = dense_steps(mask, x, options)
    prepared = time.perf_counter() - start
    medians = medians_of(steps, options)
    best = min(medians[path][0] for path in paths)
    names = {"exponential": "exponential", "table": "any f"}
    return [
        row(
            f"{kind} {names[function]} {path}",
            count,
            times,
            best,
            "auto" if path == chosen else "",
            prepared,
            options,
        )
        for path, times in medians.items()
    ]


def chosen_path(mask, options):
    """The path that "auto" takes where the step is compiled as it is here."""
    path = mask._own_path()
    return "scan" if path == "doubling" and options.compile == "xla" else path


def graph_rows(count, options):
    from scipy.sparse.csgraph import laplacian
    from scipy.sparse.linalg import expm_multiply

    from keras_graphattn.masks import GraphDiffusion
    from keras_graphattn.masks.graphs.edges import read_graph, spectral_radius

    start = time.perf_counter()
    graph = read_graph(graph_of_degree(count), count)
    matrix = laplacian(graph, form="array").tocsr()
    low, high = 0.0, spectral_radius(abs(matrix))
    longest = options.time_radius / high
    mask = GraphDiffusion(graph, initial_time=longest, learn_time=False)
    x, matrix = signal(count, options), matrix.astype("float32")
    values = np.asarray(np.random.default_rng(0).standard_normal((count, options.columns)))
    values = values.astype("float32")
    coefficients = np.ones(mask.num_terms, "float32")

    def scipy_loop():
        scale, middle = np.float32(2 / (high - low)), np.float32((high + low) / 2)
        before, now = values, scale * (matrix @ values - middle * values)
        total = coefficients[0] * before + coefficients[1] * now
        for coefficient in coefficients[2:]:
            before, now = now, 2 * scale * (matrix @ now - middle * now) - before
            total += coefficient * now
        return total

    steps = {"scipy CSR loop": [scipy_loop], "series": mask_steps(mask, "series", x, options)}
    if options.expm:
        steps["scipy expm_multiply"] = [lambda: expm_multiply(-longest * matrix, values)]
    if count <= options.dense_limit:
        steps["dense"] = dense_steps(mask, x, options)
    prepared = time.perf_counter() - start
    medians = medians_of(steps, options)
    best = medians["scipy CSR loop"][0]
    return [
        row(f"diffusion, {mask.num_terms} terms, {name}", count, times, best, "", prepared, options)
        for name, times in medians.items()
    ]


def parse(arguments=None):
    parser = Parser(description=__doc__.splitlines()[0])
    kinds = ["path", "star", "balanced", "random", "caterpillar", "deep"]
    parser.add_argument("--lengths", type=positive, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--kind", default="both", choices=["trees", "any", "graphs", "both"])
    parser.add_argument("--trees", nargs="+", default=kinds, choices=kinds)
    parser.add_argument("--columns", type=positive, default=64)
    parser.add_argument("--time-radius", type=float, default=10.0, help="t times the spectrum")
    parser.add_argument("--dense-limit", type=at_least(0), default=4096)
    parser.add_argument("--compile", default=None, choices=["eager", "graph", "xla"])
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--auto", action="store_true", help='of the paths, only what "auto" takes')
    parser.add_argument("--expm", action="store_true", help="time expm_multiply too (slow)")
    parser.add_argument("--repeats", type=positive, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="for one topology")
    add_output(parser)
    return parser.parse_args(arguments)


def main():
    options = parse()
    keep_pages()
    check_folder(options)
    import torch  # noqa: F401, I001  # before TensorFlow
    import keras

    backend = keras.backend.backend()
    defaults = {"jax": "graph", "tensorflow": "xla", "torch": "eager"}
    options.compile = options.compile or defaults[backend]
    functions = {"trees": ["exponential"], "any": ["table"], "both": ["exponential", "table"]}
    rows = []
    for count in options.lengths:
        for function in functions.get(options.kind, []):
            for kind in options.trees:
                rows += tree_rows(count, kind, function, options)
                print(*rows[-4:], sep="\n", flush=True)
        if options.kind in ("graphs", "both"):
            rows += graph_rows(count, options)
            print(*rows[-3:], sep="\n", flush=True)
    settings = {
        "backend": backend,
        "device": device_name(),
        "compile": options.compile,
        "columns": options.columns,
        "backward": options.backward,
    }
    print(table(rows, settings))
    stem = f"tree_and_graph_masks-{backend}-{options.kind}"
    for row in rows:
        del row["chosen"]
    write_results(options.output, stem, settings, rows)


if __name__ == "__main__":
    run(main)
