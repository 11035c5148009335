"""Speed and memory of the linear layers against softmax attention, by length.

    KERAS_BACKEND=jax python benchmarks/attentive_graph_filter.py
    KERAS_BACKEND=torch python benchmarks/attentive_graph_filter.py --memory --lengths 512 2048

Cases of a length take turns, and each ratio is the median over turns of this case's time to that
of its rival in the same turn. Exponents are slopes of log time and log memory over log length.
Rivals of quadratic cost run up to `--dense-limit`.
"""

import statistics

from measure import (
    Parser,
    add_options,
    at_least,
    make_step,
    memory_of,
    positive,
    run,
    run_child,
    start,
    table,
    times_in_turns,
    write_results,
)

RIVALS = {
    "filter core": "softmax core",
    "causal filter core": "causal softmax core",
    "AttentiveGraphFilter": "keras MultiHeadAttention",
    "AttentiveGraphFilter, causal": "keras MultiHeadAttention, causal",
    "MaskedKernelAttention, Exponential": "keras MultiHeadAttention",
}


def core_cases(order):
    """Functions of the projections for query (U), key (V), singular and value."""
    from keras import ops

    from keras_graphattn.filters.polynomial import polynomial, recurrence
    from keras_graphattn.operators.singular import SingularOperator, left_singular_vectors

    steps = recurrence("jacobi", order)
    coefficients = [1.0] + [0.1] * order

    def filtered(query, singular):
        gain = polynomial(ops.sigmoid(singular), ops.convert_to_tensor(coefficients), steps)
        return left_singular_vectors(query) * gain

    def filter_core(query, key, singular, value):
        return SingularOperator(filtered(query, singular), key)(value)

    def causal_filter_core(query, key, singular, value):
        return SingularOperator(filtered(query, singular), key, causal=True)(value)

    def softmax_core(query, key, singular, value, causal=False):
        scores = ops.einsum("btnh,bsnh->bnts", query * query.shape[-1] ** -0.5, key)
        if causal:
            positions = ops.arange(query.shape[1])
            scores = ops.where(positions[None, :] <= positions[:, None], scores, -1e9)
        return ops.einsum("bnts,bsnh->btnh", ops.softmax(scores, axis=-1), value)

    return {
        "softmax core": softmax_core,
        "filter core": filter_core,
        "causal softmax core": lambda *x: softmax_core(*x, causal=True),
        "causal filter core": causal_filter_core,
    }


def layer_cases(heads, size, order):
    """Built layers as functions of the tokens and all their weights, by name."""
    import keras

    from keras_graphattn.layers import AttentiveGraphFilter, MaskedKernelAttention
    from keras_graphattn.masks import Exponential

    layers = {
        "keras MultiHeadAttention": keras.layers.MultiHeadAttention(heads, size),
        "AttentiveGraphFilter": AttentiveGraphFilter(heads, size, order=order),
        "keras MultiHeadAttention, causal": keras.layers.MultiHeadAttention(heads, size),
        "AttentiveGraphFilter, causal": AttentiveGraphFilter(heads, size, order=order, causal=True),
        "MaskedKernelAttention, Exponential": MaskedKernelAttention(
            heads, size, mask=Exponential()
        ),
    }

    def as_function(layer, causal):
        def function(x, *values):
            variables = zip(layer.trainable_variables, values, strict=True)
            with keras.StatelessScope(state_mapping=list(variables)):
                return layer(x, x, use_causal_mask=causal)

        return function

    for layer in layers.values():
        layer.build((None, None, heads * size), (None, None, heads * size))
    return {n: (as_function(layer, "causal" in n), layer) for n, layer in layers.items()}


def cases(options, length):
    """Each case by name: a function and its arrays."""
    import keras

    shape = (options.batch_size, length, options.heads, options.key_dim)
    signals = [keras.random.normal(shape, dtype=options.dtype, seed=i) for i in range(4)]
    functions = {}
    if options.kind in ("core", "both"):
        functions = {name: (f, signals) for name, f in core_cases(options.order).items()}
    if options.kind in ("layer", "both"):
        policy = options.dtype if options.dtype == "float32" else f"mixed_{options.dtype}"
        keras.config.set_dtype_policy(policy)
        tokens = keras.random.normal((*shape[:2], options.heads * options.key_dim), seed=0)
        layers = layer_cases(options.heads, options.key_dim, options.order)
        for name, (function, layer) in layers.items():
            weights = [keras.ops.convert_to_tensor(v) for v in layer.trainable_variables]
            functions[name] = (function, [tokens, *weights])
    slow = length > options.dense_limit
    return {n: case for n, case in functions.items() if not (slow and n in RIVALS.values())}


def median_ratio(times, name):
    """The median over turns of a case's time to its rival's; NaN where the rival did not run."""
    rival = times.get(RIVALS.get(name))
    if rival is None:
        return float("nan")
    return statistics.median(a / b for a, b in zip(times[name], rival, strict=True))


def exponent(rows, case, column, start=0):
    """The slope of log(column) over log(length) by least squares, from length `start` on."""
    import numpy as np

    points = [(r["length"], r[column]) for r in rows if r["case"] == case and r["length"] >= start]
    points = [(x, y) for x, y in points if y > 0]
    if len(points) < 2:
        return float("nan")
    return float(np.polyfit(*np.log(points).T, 1)[0])


def parse(arguments=None):
    parser = Parser(description=__doc__.splitlines()[0])
    lengths = [512, 1024, 2048, 4096, 8192, 16384, 32768]
    parser.add_argument("--lengths", type=positive, nargs="+", default=lengths)
    parser.add_argument("--dense-limit", type=at_least(0), default=4096)
    parser.add_argument("--order", type=positive, default=4)
    parser.add_argument("--kind", default="both", choices=["core", "layer", "both"])
    add_options(parser, seconds=60.0, repeats=9)
    return parser.parse_args(arguments)


def measure_length(options, length):
    functions = cases(options, length)
    steps = {
        name: make_step(*case, backward=True, compiled=options.compile)
        for name, case in functions.items()
    }
    times = times_in_turns(steps, options.repeats, options.seconds)
    keys = ("order", "kind")
    idle = memory_of(options, "", length, keys) if options.memory else 0.0
    rows = []
    for name in functions:
        row = {"case": name, "length": length}
        row["forward and backward ms"] = statistics.median(times[name])
        row["percent of rival"] = 100 * median_ratio(times, name)
        if options.memory:
            row["peak MiB"] = memory_of(options, name, length, keys) - idle
        rows.append(row)
    return rows


def main():
    options = parse()
    if options.child is not None:
        run_child(options, cases(options, options.lengths[0]).get(options.child))
        return
    settings, rows = start(options), []
    for length in options.lengths:
        new = measure_length(options, length)
        rows += new
        print(table(new, settings), flush=True)
    for case in RIVALS:
        for column in ("forward and backward ms", "peak MiB"):
            if any(row["case"] == case and column in row for row in rows):
                key = f"exponent of {column}, {case}, from 1024"
                settings[key] = round(exponent(rows, case, column, 1024), 3)
                print(key, settings[key])
    stem = f"attentive_graph_filter_{settings['backend']}_{settings['device']}_{options.compile}"
    write_results(options.output, f"{stem}_{options.dtype}", settings, rows)


if __name__ == "__main__":
    run(main)
