"""How far mixed precision is from float32, layer by layer: outputs and gradients.

    KERAS_BACKEND=<backend> python benchmarks/precision.py --length 512

prints, for each layer, the relative root mean square difference of the outputs and of all
gradients (the input's and the weights', as one vector) from those of the same weights in float32.
The loss is the mean square of the outputs, scaled by 2^12 in float16 as Keras' loss scaling would.
"""

import keras
import numpy as np
from keras import ops

from keras_graphattn import masks
from keras_graphattn.layers import (
    AttentiveGraphFilter,
    ContraNormAttention,
    DifferentialAttention,
    EdgeAttention,
    GatedDeltaRule,
    GraphFilterAttention,
    GraphKernelAttention,
    MaskedKernelAttention,
    PLaplacianAttention,
    ScaledHighFrequencyAttention,
)

HEADS, HEAD, FEATURES = 4, 16, 64
PRECISIONS = ("mixed_bfloat16", "mixed_float16")
LOSS_SCALE = {"mixed_float16": 2.0**12}


def ring(length):
    """The edges of a cycle: a topology of any size."""
    return [[node, (node + 1) % length] for node in range(length)]


def parents(length):
    """A binary tree of `length` nodes."""
    return np.array([-1, *((node - 1) // 2 for node in range(1, length))])


def kernel(mask=None, **options):
    return lambda length, dtype: MaskedKernelAttention(
        HEADS, HEAD, mask=mask(length) if mask else None, dtype=dtype, **options
    )


def layer_of(cls, **options):
    return lambda length, dtype: cls(HEADS, HEAD, dtype=dtype, **options)


CASES = {
    "softmax (Keras)": layer_of(keras.layers.MultiHeadAttention),
    "graph filter, dense": layer_of(GraphFilterAttention, order=3, attention_path="dense"),
    "graph filter, blockwise": layer_of(GraphFilterAttention, order=3, attention_path="blockwise"),
    "Chebyshev filter, dense": layer_of(GraphFilterAttention, filter="chebyshev", order=4),
    "differential": layer_of(DifferentialAttention),
    "differential, version 2, blockwise": layer_of(
        DifferentialAttention, version=2, attention_path="blockwise"
    ),
    "p-Laplacian, dense": layer_of(PLaplacianAttention, attention_path="dense"),
    "p-Laplacian, blockwise": layer_of(PLaplacianAttention, attention_path="blockwise"),
    "p-Laplacian, p = 1, epsilon = 0.001": layer_of(PLaplacianAttention, p=1.0, epsilon=1e-3),
    "scaled high frequencies": layer_of(ScaledHighFrequencyAttention),
    "ContraNorm": layer_of(ContraNormAttention),
    "AGF": layer_of(AttentiveGraphFilter, order=4, orthogonality_weight=0.01),
    "AGF, causal": layer_of(AttentiveGraphFilter, order=4, causal=True),
    "delta rule": layer_of(GatedDeltaRule),
    "kernel, ReLU": kernel(),
    "kernel, FAVOR+": kernel(feature_map="favor", seed=0),
    "kernel, graph filter": kernel(filter="first_order"),
    "kernel, causal": kernel(lambda n: masks.Causal(), feature_map="favor", seed=0),
    "kernel, exponential": kernel(lambda n: masks.Exponential(2)),
    "kernel, Toeplitz by FFT": kernel(masks.Toeplitz, path="fft"),
    "kernel, tree": kernel(lambda n: masks.Tree(parents(n))),
    "kernel, diffusion": kernel(lambda n: masks.GraphDiffusion(ring(n))),
    "kernel, random walk": kernel(lambda n: masks.RandomWalk(ring(n), seed=0)),
    "edges": lambda length, dtype: EdgeAttention(
        HEADS, HEAD, graph=ring(length), expander_degree=4, seed=0, dtype=dtype
    ),
    "graph kernel": lambda length, dtype: GraphKernelAttention(
        HEADS, HEAD, mask=masks.RandomWalk(ring(length), seed=0), dtype=dtype
    ),
}


def tokens(length, batch=2, seed=0):
    shape = (batch, length, FEATURES)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def built(name, length, dtype="float32", seed=0):
    """The layer of one case, its weights away from where filters start."""
    keras.utils.set_random_seed(seed)
    layer = CASES[name](length, dtype)
    layer.build(*([(2, length, FEATURES)] * (2 if name.startswith("softmax") else 1)))
    random = np.random.default_rng(seed)
    for variable in layer.trainable_variables:
        value = np.asarray(ops.convert_to_numpy(ops.cast(variable, "float32")))
        variable.assign(value + 0.05 * random.standard_normal(value.shape).astype("float32"))
    return layer


def outputs_and_gradients(layer, x, scale=1.0, **call):
    """Outputs, and gradients of their mean square, all as float32 NumPy arrays."""
    trained = layer.trainable_variables
    frozen = [v.value for v in layer.non_trainable_variables]

    def loss(x, *values):
        outputs, _, losses = layer.stateless_call(
            list(values), frozen, x, x, return_losses=True, **call
        )
        outputs = ops.cast(outputs, "float32")
        return scale * (ops.mean(ops.square(outputs)) + sum(losses)), outputs

    tensors = [ops.convert_to_tensor(x), *(v.value for v in trained)]
    gradients = _differentiated(loss, tensors)
    outputs, gradients = gradients[0], gradients[1:]
    return _numpy(outputs), [_numpy(g) / scale for g in gradients]


def _differentiated(loss, tensors):
    if keras.backend.backend() == "jax":
        import jax

        function = jax.value_and_grad(loss, argnums=tuple(range(len(tensors))), has_aux=True)
        (_, outputs), gradients = jax.jit(function)(*tensors)
        return outputs, *gradients
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tensors = [tf.identity(x) for x in tensors]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value, outputs = loss(*tensors)
        return outputs, *(tf.convert_to_tensor(g) for g in tape.gradient(value, tensors))
    import torch

    tensors = [x.detach().clone().requires_grad_() for x in tensors]
    value, outputs = loss(*tensors)
    return outputs.detach(), *torch.autograd.grad(value, tensors)


def _numpy(x):
    return np.asarray(ops.convert_to_numpy(ops.cast(x, "float32")), "float64")


def difference(actual, expected):
    """Relative root mean square difference of lists of arrays, each taken as one vector."""
    actual, expected = (
        np.concatenate([a.ravel() for a in arrays]) for arrays in (actual, expected)
    )
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def compare(name, length, precision, **call):
    """Differences (outputs, gradients) of one layer in one precision from float32."""
    x = tokens(length)
    plain, half = built(name, length), built(name, length, precision)
    half.set_weights(plain.get_weights())
    expected, expected_gradients = outputs_and_gradients(plain, x, **call)
    scale = LOSS_SCALE.get(precision, 1.0)
    outputs, gradients = outputs_and_gradients(half, x, scale, **call)
    return difference([outputs], [expected]), difference(gradients, expected_gradients)


def main():
    from measure import Parser, positive

    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=positive, default=512)
    parser.add_argument("--layers", nargs="+", choices=list(CASES), default=list(CASES))
    options = parser.parse_args()
    print(f"{keras.backend.backend()}, {options.length} tokens, relative RMS from float32")
    print("| layer | bfloat16: outputs | gradients | float16: outputs | gradients |")
    print("| --- | --- | --- | --- | --- |")
    for name in options.layers:
        differences = [compare(name, options.length, precision) for precision in PRECISIONS]
        print(
            f"| {name} | {' | '.join(f'{x:.1e}' for pair in differences for x in pair)} |",
            flush=True,
        )


if __name__ == "__main__":
    from measure import run

    run(main)
