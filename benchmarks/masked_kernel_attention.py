"""Speed and memory of masked kernel attention against the matrix formed, and performer-pytorch.

    KERAS_BACKEND=jax python benchmarks/masked_kernel_attention.py --lengths 1024 4096
    KERAS_BACKEND=jax python benchmarks/masked_kernel_attention.py --lengths 4096 65536 --no-dense
    KERAS_BACKEND=jax python benchmarks/masked_kernel_attention.py --masks algorithm \
        --lengths 8192 --memory
    KERAS_BACKEND=torch python benchmarks/masked_kernel_attention.py --masks unmasked causal \
        --performer --no-dense
    KERAS_BACKEND=torch python benchmarks/masked_kernel_attention.py --masks gated delta_rule

Queries, keys and values go in, features are made inside, and so are the gates, from queries. The
cases of a mask take turns, and ratios are to the first of them. With two lengths or more, the
exponent of the time in the length is printed at the end. `delta_rule` is the gated delta rule:
with all matrices formed, beside causal kernel attention, and in chunks. Runs unchanged on a GPU.
"""

import math

from measure import (
    Parser,
    add_options,
    make_step,
    median_times,
    memory_of,
    positive,
    ratios_to_first,
    run,
    run_child,
    start,
    table,
    write_results,
)


def attend_by(mask, path, feature_chunk=None, **inputs):
    """Kernel attention under a mask as a function of query, key and value."""
    from keras import ops

    from keras_graphattn.feature_maps import Relu
    from keras_graphattn.masks.mask import Mask, Operands
    from keras_graphattn.operators.kernel import KernelOperator

    def function(query, key, value):
        of_call = dict(inputs)
        if mask is not None and mask.reads_tokens:
            of_call["log_gates"] = ops.log_sigmoid(ops.convert_to_tensor(query)[..., 0] + 4.0)
        operator = KernelOperator(
            Relu()(query), Relu()(key), mask, of_call, path=path, feature_chunk=feature_chunk
        )
        if path == "Algorithm 1":
            features = operator.query_features, operator.key_features
            operator._sums = lambda x: Mask._attend(
                *(mask, Operands(x, *features, feature_chunk), "chunked"),
                *(mask.parameters(), of_call),
            )
        return operator(ops.convert_to_tensor(value))

    return function


def gates(query, key, value):
    """Queries, keys of length 1, values, decays and strengths that depend on the tokens."""
    from keras import ops

    query, key, value = (ops.convert_to_tensor(x) for x in (query, key, value))
    key = key / ops.sqrt(ops.sum(ops.square(key), axis=-1, keepdims=True) + 1e-6)
    return query, key, value, -ops.softplus(query[..., 0] - 4.0), ops.sigmoid(value[..., 0])


def delta_rule(query, key, value):
    """The gated delta rule in chunks."""
    from keras_graphattn.operators.delta_rule import DeltaRuleOperator

    query, key, value, log_decay, strength = gates(query, key, value)
    return DeltaRuleOperator(query, key, log_decay, strength)(value)


def dense_delta_rule(query, key, value):
    """The gated delta rule as M (I + L)^-1 diag(b) V, with both matrices formed."""
    from keras import ops

    query, key, value, log_decay, strength = gates(query, key, value)
    query, key, value = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
    log_decay, strength = (ops.transpose(x, (0, 2, 1))[..., None] for x in (log_decay, strength))
    sums, turned = ops.cumsum(log_decay, axis=2), ops.swapaxes(key, -1, -2)
    decay = ops.tril(ops.exp(ops.minimum(sums - ops.swapaxes(sums, -1, -2), 0.0)))
    system = ops.tril(strength * decay * ops.matmul(key, turned), -1)
    system = system + ops.eye(query.shape[2], dtype=system.dtype)
    written = ops.solve_triangular(system, strength * value, lower=True)
    outputs = ops.matmul(decay * ops.matmul(query, turned), written)
    return ops.transpose(outputs, (0, 2, 1, 3))


def performer(causal):
    """What performer-pytorch does of the same, without a GPU: ReLU features, no projection."""
    import torch
    from performer_pytorch.performer_pytorch import (
        causal_linear_attention_noncuda,
        linear_attention,
    )

    attend = causal_linear_attention_noncuda if causal else linear_attention

    def function(query, key, value):
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        outputs = attend(torch.relu(query) + 1e-3, torch.relu(key) + 1e-3, value)
        return outputs.transpose(1, 2)

    return function


def cases(options, length):
    """Functions of query, key and value by mask and name."""
    import keras
    import numpy as np

    from keras_graphattn.masks import Causal, Exponential, GatedDecay, Segments

    is_torch = keras.backend.backend() == "torch"
    ids = np.arange(length)[None].repeat(options.batch_size, 0) // max(1, length // 5)
    ids = keras.ops.convert_to_tensor(ids.astype("int32"))
    kinds = {
        "causal": (Causal(), {}),
        "exponential": (Exponential(), {}),
        "one-sided exponential": (Exponential(causal=True), {}),
        "segments": (Segments(), {"segment_ids": ids}),
        "gated": (GatedDecay(), {}),
    }
    functions = {}
    for name, (mask, inputs) in kinds.items():
        mask.build((None, length, options.heads, options.key_dim))
        functions[name] = {"dense": attend_by(mask, "dense", **inputs)}
        functions[name]["blockwise"] = attend_by(mask, "blockwise", **inputs)
        functions[name]["chunked"] = attend_by(mask, "chunked", **inputs)
        if options.no_dense:
            functions[name] = {"chunked": functions[name]["chunked"]}
    functions["unmasked"] = {"linear": attend_by(None, "linear")}
    exponential = kinds["exponential"][0]
    functions["algorithm"] = {
        "all features": attend_by(exponential, "Algorithm 1"),
        "8 features at a time": attend_by(exponential, "Algorithm 1", 8),
    }
    causal = functions["causal"].get("dense")
    dense = {"dense": dense_delta_rule, "causal kernel attention, dense": causal}
    functions["delta_rule"] = {**({} if options.no_dense else dense), "chunked": delta_rule}
    if is_torch and options.performer:
        functions["unmasked"] = {"performer-pytorch": performer(False), **functions["unmasked"]}
        functions["causal"] = {"performer-pytorch": performer(True), **functions["causal"]}
    return {mask: functions[mask] for mask in options.masks}


def arrays_of(options, length):
    import keras

    shape = (options.batch_size, length, options.heads, options.key_dim)
    return [keras.random.normal(shape, dtype=options.dtype, seed=i) for i in range(3)]


def parse(arguments=None):
    parser = Parser(description=__doc__.splitlines()[0])
    masks = ["causal", "exponential", "segments"]
    kinds = [*masks, "gated", "one-sided exponential", "unmasked", "algorithm", "delta_rule"]
    parser.add_argument("--masks", nargs="+", default=masks, choices=kinds)
    parser.add_argument("--lengths", type=positive, nargs="+", default=[1024, 4096])
    parser.add_argument("--forward", action="store_true", help="time only the forward pass")
    parser.add_argument("--no-dense", action="store_true", help="leave quadratic cases out")
    parser.add_argument("--performer", action="store_true", help="add performer-pytorch, on torch")
    add_options(parser, seconds=30.0)
    parser.set_defaults(heads=4)
    return parser.parse_args(arguments)


def child_case(options):
    """The function and arrays of the case `mask|name`; none where the name is empty."""
    mask, _, name = options.child.partition("|")
    if not name:
        return None
    options.masks, length = [mask], options.lengths[0]
    return cases(options, length)[mask][name], arrays_of(options, length)


def exponents(rows, column):
    """The exponent of the time between the first and the last length of each case."""
    lines = []
    for name in dict.fromkeys(row["case"] for row in rows):
        points = [(row["length"], row[column]) for row in rows if row["case"] == name]
        if len(points) > 1:
            (first, before), (last, after) = points[0], points[-1]
            exponent = math.log(after / before) / math.log(last / first)
            lines.append(f"{name}: time ~ n^{exponent:.2f} from n = {first} to {last}")
    return "\n".join(lines)


def main():
    options = parse()
    if options.child is not None:
        run_child(options, child_case(options))
        return
    settings, rows = start(options), []
    column = "forward ms" if options.forward else "forward and backward ms"
    for length in options.lengths:
        arrays = arrays_of(options, length)
        for mask, functions in cases(options, length).items():
            steps = {
                case: make_step(
                    function, arrays, backward=not options.forward, compiled=options.compile
                )
                for case, function in functions.items()
            }
            times = median_times(steps, options.repeats, options.seconds)
            ratios = ratios_to_first(times)
            idle = memory_of(options, "", length) if options.memory else 0.0
            new = []
            for case in functions:
                row = {"case": f"{mask}, {case}", "length": length, column: times[case]}
                row["ratio"] = ratios[case]
                if options.memory:
                    row["peak MiB"] = (
                        memory_of(options, f"{mask}|{case}", length, ("performer",)) - idle
                    )
                new.append(row)
            rows += new
            print(table(new, settings), flush=True)
    print(exponents(rows, column))
    stem = f"masked_kernel_attention_{settings['backend']}_{settings['device']}_{options.compile}"
    write_results(options.output, f"{stem}_{'_'.join(options.masks)}", settings, rows)


if __name__ == "__main__":
    run(main)
