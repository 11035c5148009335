"""Speed and memory of the dense layers and their cores against Keras and the plain forms.

    KERAS_BACKEND=jax python benchmarks/dense_attention.py --lengths 128 512 2048
    KERAS_BACKEND=tensorflow python benchmarks/dense_attention.py --compile xla --memory
    KERAS_BACKEND=jax python benchmarks/dense_attention.py --kind block --batch-size 8 --heads 12
    KERAS_BACKEND=torch python benchmarks/dense_attention.py --kind bias --lengths 128 512 2048

`--kind bias` compares GraphFilterAttention under a bias of its logits with the same layer without.
Every case of a length is built first; then they take turns. Runs unchanged on a GPU.
"""

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


def core_cases(causal):
    """Functions of query, key and value, each (B, n, heads, size)."""
    from keras import ops

    from keras_graphattn.operators import (
        BlockwiseOperator,
        FusedOperator,
        SoftmaxOperator,
        Visibility,
    )
    from keras_graphattn.operators.softmax import scores_of
    from keras_graphattn.ops import (
        first_order_filter,
        p_laplacian_attention,
        polynomial_filter,
        recurrence,
    )

    mask, order = Visibility(causal=causal), 3
    weights, steps = [0.1, 0.8, 0.3], recurrence("chebyshev", order)

    def dense(query, key):
        visible = mask.joined(query.shape[1])
        return SoftmaxOperator(scores_of(query, key), visible, dtype=query.dtype)

    def squared(query, key, value):
        identity = ops.eye(query.shape[1], dtype=query.dtype)[None, :, None]
        matrix = dense(query, key)(ops.broadcast_to(identity, _square_shape(query)))
        matrix = ops.transpose(matrix, (0, 2, 1, 3))
        eye = ops.eye(query.shape[1], dtype=query.dtype)
        power = matrix + (order - 1) * (ops.matmul(matrix, matrix) - matrix)
        filtered = weights[0] * eye + weights[1] * matrix + weights[2] * power
        return ops.einsum("bnts,bsnh->btnh", filtered, value)

    def filtered(operator):
        return lambda q, k, v: first_order_filter(operator(q, k), v, *weights, order)

    def chebyshev(query, key, value):
        coefficients = ops.reshape(ops.convert_to_tensor([0.1, 0.5, 0.3, 0.1]), (4, 1, 1))
        return polynomial_filter(dense(query, key), value, coefficients, steps)

    def p_laplacian(query, key, value, block_size=512):
        heads = query.shape[2]
        exponents = [1.5 if head < heads / 2 else 2.5 for head in range(heads)]
        return p_laplacian_attention(query, key, value, exponents, mask, block_size=block_size)

    return {
        "plain attention": lambda q, k, v: dense(q, k)(v),
        "filter, A @ A": squared,
        "filter, dense": filtered(dense),
        "filter, fused": filtered(lambda q, k: FusedOperator(q, k, mask)),
        "filter, blockwise": filtered(lambda q, k: BlockwiseOperator(q, k, mask)),
        "chebyshev 3, dense": chebyshev,
        "p-Laplacian, blockwise": p_laplacian,
        "p-Laplacian, dense": lambda q, k, v: p_laplacian(q, k, v, block_size=q.shape[1]),
    }


def _square_shape(query):
    batch, length, heads, _ = query.shape
    return (batch, length, heads, length)


def layer_cases(heads, size, causal):
    """Built layers as functions of the tokens and all their weights, by name."""
    import keras

    from keras_graphattn.layers import GraphFilterAttention, PLaplacianAttention

    layers = {
        "keras MultiHeadAttention": keras.layers.MultiHeadAttention(heads, size),
        "GraphFilterAttention": GraphFilterAttention(heads, size),
        "GraphFilterAttention, fused": GraphFilterAttention(heads, size, attention_path="fused"),
        "GraphFilterAttention, blockwise": GraphFilterAttention(
            heads, size, attention_path="blockwise"
        ),
        "PLaplacianAttention": PLaplacianAttention(heads, size),
    }

    for layer in layers.values():
        layer.build((None, None, heads * size), (None, None, heads * size))
    return {name: (as_function(layer, causal), layer) for name, layer in layers.items()}


def bias_cases(heads, size, causal):
    """GraphFilterAttention without and with a bias of its logits."""
    from keras_graphattn import biases
    from keras_graphattn.layers import GraphFilterAttention

    chosen = {"no bias": None, "Alibi": biases.Alibi(), "positions": biases.RelativePositions()}
    functions = {}
    for name, bias in chosen.items():
        layer = GraphFilterAttention(heads, size, bias=bias)
        layer.build((None, None, heads * size), (None, None, heads * size))
        functions[f"GraphFilterAttention, {name}"] = (as_function(layer, causal), layer)
    return functions


def as_function(layer, causal):
    """A built layer as a function of the tokens and the values of its weights."""
    import keras

    def function(x, *values):
        variables = zip(layer.trainable_variables, values, strict=True)
        with keras.StatelessScope(state_mapping=list(variables)):
            return layer(x, x, use_causal_mask=causal)

    return function


def block_cases(heads, size, causal):
    """A Transformer block (post-norm, GELU, four times the width) around each attention layer."""
    import keras

    class Block(keras.layers.Layer):
        def __init__(self, attention):
            super().__init__()
            self.attention = attention
            self.attention_norm = keras.layers.LayerNormalization()
            self.inner = keras.layers.Dense(4 * heads * size, activation="gelu")
            self.outer = keras.layers.Dense(heads * size)
            self.norm = keras.layers.LayerNormalization()

        def build(self, shape, _=None):
            self.attention.build(shape, shape)
            for layer in (self.attention_norm, self.inner, self.norm):
                layer.build(shape)
            self.outer.build((*shape[:-1], 4 * heads * size))

        def call(self, x, value, use_causal_mask=False):
            x = self.attention_norm(x + self.attention(x, value, use_causal_mask=use_causal_mask))
            return self.norm(x + self.outer(self.inner(x)))

    functions = {}
    for name, (_, layer) in layer_cases(heads, size, causal).items():
        block = Block(layer.__class__.from_config(layer.get_config()))
        block.build((None, None, heads * size))
        functions[f"block, {name}"] = (as_function(block, causal), block)
    return functions


def cases(options, length):
    """Each case by name: a function and its arrays."""
    import keras

    heads, size = options.heads, options.key_dim
    shape = (options.batch_size, length, heads, size)
    signals = [keras.random.normal(shape, dtype=options.dtype, seed=i) for i in range(3)]
    functions = {}
    if options.kind in ("core", "both"):
        functions = {name: (f, signals) for name, f in core_cases(options.causal).items()}
    makers = {"layer": layer_cases, "block": block_cases, "both": layer_cases, "bias": bias_cases}
    for make in [makers[options.kind]] if options.kind in makers else []:
        keras.config.set_dtype_policy(
            options.dtype if options.dtype == "float32" else f"mixed_{options.dtype}"
        )
        tokens = keras.random.normal((options.batch_size, length, heads * size), seed=0)
        for name, (function, layer) in make(heads, size, options.causal).items():
            weights = [keras.ops.convert_to_tensor(v) for v in layer.trainable_variables]
            functions[name] = (function, [tokens, *weights])
    first, *others = functions
    wanted = [first, *(n for n in others if any(word in n for word in options.cases))]
    return {name: functions[name] for name in wanted}


def parse(arguments=None):
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=positive, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--causal", action="store_true")
    parser.add_argument(
        "--kind", default="both", choices=["core", "layer", "block", "both", "bias"]
    )
    parser.add_argument("--cases", nargs="+", default=[""], help="words in the names of cases")
    add_options(parser, seconds=60.0)
    return parser.parse_args(arguments)


def main():
    options = parse()
    if options.child is not None:
        run_child(options, cases(options, options.lengths[0]).get(options.child))
        return
    settings, rows = start(options), []
    for length in options.lengths:
        functions, columns = cases(options, length), {}
        for column, backward in (("forward ms", False), ("forward and backward ms", True)):
            steps = {
                name: make_step(*case, backward=backward, compiled=options.compile)
                for name, case in functions.items()
            }
            columns[column] = median_times(steps, options.repeats, options.seconds)
            columns[column.replace("ms", "ratio")] = ratios_to_first(columns[column])
        if options.memory:
            idle, *peaks = (
                memory_of(options, name, length, ("kind", "causal")) for name in ("", *functions)
            )
            columns["peak MiB"] = dict(zip(functions, (peak - idle for peak in peaks), strict=True))
        new = [
            {"case": name, "length": length, **{c: columns[c][name] for c in columns}}
            for name in functions
        ]
        rows += new
        print(table(new, settings), flush=True)
    stem = f"dense_attention_{settings['backend']}_{settings['device']}_{options.compile}"
    write_results(options.output, f"{stem}_{options.dtype}", settings, rows)


if __name__ == "__main__":
    run(main)
